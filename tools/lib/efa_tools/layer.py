# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The packaging root: the toolroot with a layer of packages over it that only packaging, its tests and the bench need."""

from . import cache, namespace, steps, toolroot

# debhelper .. rpmlint: what packages are built and checked with; mmdebstrap: makes the machines of the install tests; cmake:
# what Amazon's driver finds out about a kernel with.
PACKAGES = ("debhelper", "dh-dkms", "fakeroot", "lintian", "rpm", "rpmlint", "mmdebstrap", "cmake")
SCRIPT = """
    set -eu
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install --yes --no-install-recommends {packages}
    apt-get clean
    rm -rf /var/lib/apt/lists/*
"""


def folder():
    """The layer's folder, which is made first if it is not in the cache."""
    script = SCRIPT.format(packages=" ".join(PACKAGES))

    def build(path):
        for part in ("layer", "work", "mount"):
            (path / part).mkdir(parents=True)
        with steps.step("packaging tools") as log:
            overlay = namespace.Overlay([toolroot.root()], path / "mount", path / "layer", path / "work")
            steps.run(namespace.enter(overlay, ["sh", "-c", script]), log, "Installing the packaging tools")

    return cache.make(cache.folder("layer") / cache.key(toolroot.key(), script), "the packaging tools", 1, build)


def enter(command, binds=(), environment=None):
    """The command line that runs COMMAND in the packaging root, where the clone is at /efa-rs."""
    path = folder()
    overlay = namespace.Overlay([path / "layer", toolroot.root()], path / "mount")
    return namespace.enter(overlay, command, [(cache.CLONE, "/efa-rs", "ro"), *binds], environment)
