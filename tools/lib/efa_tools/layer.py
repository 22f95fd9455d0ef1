# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Layers of packages over the toolroot, for rare uses: packaging and its tests, pictures, captures, linters."""

from dataclasses import dataclass

from . import cache, namespace, steps, toolroot

SCRIPT = """
    set -eu
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install --yes --no-install-recommends {packages}
    apt-get clean
    rm -rf /var/lib/apt/lists/*
"""


@dataclass(frozen=True)
class Layer:
    """The toolroot with more packages."""

    what: str
    packages: tuple[str, ...]

    def folder(self):
        """The layer's folder, which is made first if it is not in the cache."""
        script = SCRIPT.format(packages=" ".join(self.packages))

        def build(path):
            for part in ("layer", "work", "mount"):
                (path / part).mkdir(parents=True)
            with steps.step(self.what) as log:
                overlay = namespace.Overlay([toolroot.root()], path / "mount", path / "layer", path / "work")
                steps.run(namespace.enter(overlay, ["sh", "-c", script]), log, f"Installing the {self.what}")

        return cache.make(cache.folder("layer") / cache.key(toolroot.key(), script), f"the {self.what}", 1, build)

    def enter(self, command, binds=(), environment=None, emulator=None):
        """Returns the command line that runs COMMAND in the layer, with the clone at /efa-rs; see namespace.enter()."""
        path = self.folder()
        overlay = namespace.Overlay([path / "layer", toolroot.root()], path / "mount")
        return namespace.enter(overlay, command, [(cache.CLONE, "/efa-rs", "ro"), *binds], environment, emulator)


# debhelper .. rpmlint: build and check packages; mmdebstrap: makes the machines of the install tests;
# dosfstools .. syslinux: make a bootable disk.
PACKAGING = Layer(
    "packaging tools",
    (
        *("debhelper", "dh-dkms", "fakeroot", "lintian", "rpm", "rpmlint", "mmdebstrap"),
        *("dosfstools", "fdisk", "mtools", "qemu-utils", "syslinux", "syslinux-common"),
    ),
)
PLOTTING = Layer("plotting tools", ("python3-matplotlib",))
DISSECTING = Layer("dissecting tools", ("tshark",))
# python3-pip: installs ruff, which Debian 13 does not have, see linters.py.
LINTING = Layer("linting tools", ("mypy", "shellcheck", "codespell", "python3-pip"))

folder, enter = PACKAGING.folder, PACKAGING.enter
