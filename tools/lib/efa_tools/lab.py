# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The base of tests of the emulator's package: a clean Debian 13, and a cloud image for guests."""

from . import build, cache, layer, namespace, steps, toolroot

RECIPES = namespace.TOOLS / "lab"
MADE = "/run/efa-rs/lab"
# Number of guests of efa-emu-lab, each of which has a port of the host.
GUESTS = 2
# Packages that are installed with the emulator's package.
DOWNLOADS = ("qemu-system-x86", "qemu-utils", "openssh-client", "python3")


def host():
    """The root of a Debian on which nothing was installed."""

    def make(path):
        path.mkdir()
        with steps.step("clean Debian") as log:
            command = ["sh", "/efa-rs/tools/lab/host.sh", f"{MADE}/root", *DOWNLOADS]
            steps.run(layer.enter(command, [(path, MADE, "rw")]), log, "Making a clean Debian")

    key = cache.key(toolroot.key(), RECIPES / "host.sh", *DOWNLOADS)
    return cache.make(cache.folder("lab-host") / key, "a clean Debian", 1.5, make) / "root"


def image():
    """A cloud image whose kernel has Linux's own driver, so that it does not change with this clone's."""
    release = toolroot.kernel("cloud-amd64")
    module = build.c_module(release)

    def make(path):
        path.mkdir()
        with steps.step("cloud image") as log:
            command = ["sh", "/efa-rs/tools/lab/image.sh", MADE, release, f"{build.BUILD}/{module.name}"]
            binds = [(path, MADE, "rw"), (module.parent, build.BUILD, "ro")]
            steps.run(layer.enter(command, binds), log, "Making a cloud image")

    key = cache.key(toolroot.key(), RECIPES / "image.sh", release)
    return cache.make(cache.folder("lab-image") / key, "a cloud image", 8, make) / "image.qcow2"
