# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The root of guests: the toolroot, or a root of a newer Debian, made by userland.sh, for its newer rdma-core."""

from . import arm64, cache, layer, namespace, steps, toolroot
from .failure import Failure

STABLE, NEXT = ALL = "stable", "next"
RECIPE = namespace.TOOLS / "userland.sh"
# Its path in the toolroot.
MOUNT = "/run/efa-rs/userland"
MODULES = "usr/lib/modules"


def require(name):
    """Fails unless there is such a userland."""
    if name not in ALL:
        raise Failure(f"There is no userland {name!r}: choose one of {', '.join(ALL)}.")


def key():
    return cache.key(RECIPE)


def root(name, release=""):
    """The userland's directory for guests with a kernel RELEASE, which is made first if it is not in the cache."""
    require(name)
    if arm64.is_release(release):
        if name != STABLE:
            raise Failure(f"There is no userland {name!r} for arm64: choose {STABLE}.")
        path = cache.folder("userland") / cache.key(arm64.RECIPE)
        return cache.make(path, "the arm64 userland", 0.5, lambda path: build(path, "arm64 userland", arm64.RECIPE)) / "root"
    if name == STABLE:
        return toolroot.root()
    return cache.make(cache.folder("userland") / key(), "the next userland", 0.5, build) / "root"


def build(path, what="next userland", recipe=RECIPE):
    path.mkdir()
    command = ["sh", f"/efa-rs/tools/{recipe.relative_to(namespace.TOOLS)}", f"{MOUNT}/root", *toolroot.apt_settings()]
    command = layer.enter(command, [(path, MOUNT, "rw")])
    with steps.step(what) as log:
        steps.run(command, log, f"Making the {what}")


def share(name, release=""):
    """Returns the path of a guest's root in the toolroot, and the mounts that it requires, including its kernel's modules."""
    if name == STABLE and not arm64.is_release(release):
        return "/", []
    return MOUNT, [(root(name, release), MOUNT, "ro"), (toolroot.modules_of(release), f"{MOUNT}/{MODULES}", "ro")]
