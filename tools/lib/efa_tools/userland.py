# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What guests have as their root: the toolroot, or a root of a newer Debian, made by userland.sh, for its newer rdma-core."""

from . import cache, layer, namespace, steps, toolroot
from .failure import Failure

STABLE, NEXT = ALL = "stable", "next"
RECIPE = namespace.TOOLS / "userland.sh"
# Where it is in the toolroot.
MOUNT = "/run/efa-rs/userland"
MODULES = "usr/lib/modules"


def require(name):
    """Fails unless there is such a userland."""
    if name not in ALL:
        raise Failure(f"There is no userland {name!r}: choose one of {', '.join(ALL)}.")


def key():
    return cache.key(RECIPE)


def root(name):
    """The userland's directory, which is made first if it is not in the cache."""
    require(name)
    if name == STABLE:
        return toolroot.root()
    return cache.make(cache.folder("userland") / key(), "the next userland", 0.5, build) / "root"


def build(path):
    path.mkdir()
    command = ["sh", f"/efa-rs/tools/{RECIPE.name}", f"{MOUNT}/root", *toolroot.apt_settings()]
    command = layer.enter(command, [(path, MOUNT, "rw")])
    with steps.step("next userland") as log:
        steps.run(command, log, "Making the next userland")


def share(name):
    """What a guest's root is as seen in the toolroot, and what has to be mounted for that: its kernel's modules, too."""
    if name == STABLE:
        return "/", []
    return MOUNT, [(root(name), MOUNT, "ro"), (toolroot.root() / MODULES, f"{MOUNT}/{MODULES}", "ro")]
