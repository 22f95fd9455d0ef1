# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Support for arm64: the root with its kernels, compilers and QEMU, the guests' root, and their virtual machine.

The first root is the toolroot with a layer over it, which is made at the first use. Its cross compilers build modules. Programs for
arm64 run in guests, or by qemu-user, see PROGRAMS.
"""

from . import cache, namespace, steps

# Kernel flavours, as arguments of choose-kernel. The first is for clouds, the last has pages of 16 KiB.
FLAVOURS = ("cloud-arm64", "arm64", "arm64-16k")
# File name of a kernel, in the folder of its modules.
IMAGE = "vmlinuz"
# The headers' package depends on the compiler. rust-kit says why libc6-dev is needed.
PACKAGES = ("qemu-system-arm", "libc6-dev-arm64-cross")
SCRIPT = """
    set -eu
    export DEBIAN_FRONTEND=noninteractive
    dpkg --add-architecture arm64
    apt-get update
    kernels=$(sh -s {series} "binary modules headers" {flavours} </efa-rs/tools/choose-kernel)
    apt-get install --yes --no-install-recommends -t trixie-backports {packages} $kernels
    apt-get clean
    rm -rf /var/lib/apt/lists/*
"""
# A layer over that one, for rare uses: Rust's library, with which the emulator's tests are built, and qemu-user, which runs arm64
# programs without a kernel. They are only unpacked, as the library's dependencies are for a compiler that runs on arm64.
PROGRAMS = """
    set -eu
    cd /tmp
    apt-get update
    apt-get download libstd-rust-dev:arm64=$(dpkg-query --show --showformat='${Version}' libstd-rust-dev)
    apt-get download qemu-user
    for package in *.deb; do
        dpkg-deb --extract $package /
    done
    rm -rf /var/lib/apt/lists/*
"""
TARGET = "aarch64-unknown-linux-gnu"
LINKER = "aarch64-linux-gnu-gcc-14"
# The recipe of the guests' root.
RECIPE = namespace.TOOLS / "arm64" / "userland.sh"
# Factor for time limits of tests: the emulation of an arm64 CPU takes more instructions than that of x86-64.
SLOW = 3


def is_release(release):
    """Whether a kernel release is for arm64."""
    return release.endswith(tuple(f"-{flavour}" for flavour in FLAVOURS))


def slowness(*flavours):
    """Returns the factor for time limits of tests in guests with these kernels."""
    return SLOW if set(flavours) & set(FLAVOURS) else 1


def memory(flavour):
    """Returns the memory of a guest for the selftests.

    With 1 GiB, 64 processes of the selftests make an arm64 guest thrash: for seconds it only evicts and rereads pages of programs.
    """
    return "2G" if flavour in FLAVOURS else "1G"


# Bytes of a page.
SMALL_PAGE, LARGE_PAGE = 4096, 16384


def page_size(flavour):
    """Bytes of a page of a kernel."""
    return LARGE_PAGE if flavour.endswith("-16k") else SMALL_PAGE


def share_queue(flavour):
    """Returns the number of entries in the queue of a virtiofs share.

    virtiofsd refuses requests of more than 1 MiB, and states that limit in pages of its host. A guest with larger pages sends larger
    requests, as overlayfs does when it reads a folder. A request has at most as many pages as the queue has entries.
    """
    return 1024 if page_size(flavour) == SMALL_PAGE else 64


def folder(root, root_key, series):
    """The layer's folder, which is made first if it is not in the cache."""
    script = SCRIPT.format(series=series, flavours=" ".join(FLAVOURS), packages=" ".join(PACKAGES))
    key = cache.key(root_key, script, namespace.TOOLS / "choose-kernel")
    return layer([root], key, script, "arm64 kernels and compilers", 1.5)


def programs(root, kernels):
    """Returns the folder of the layer for arm64 programs, which lies over the layer KERNELS."""
    return layer([kernels / "layer", root], cache.key(kernels.name, PROGRAMS), PROGRAMS, "what programs for arm64 take", 0.3)


def layer(lowers, key, script, what, gigabytes):
    """Returns the folder of a layer over LOWERS that a script makes."""

    def build(path):
        for part in ("layer", "work", "mount"):
            (path / part).mkdir(parents=True)
        with steps.step(what) as log:
            overlay = namespace.Overlay(lowers, path / "mount", path / "layer", path / "work")
            binds = [(cache.CLONE, "/efa-rs", "ro")]
            steps.run(namespace.enter(overlay, ["sh", "-c", script], binds), log, f"Installing {what}")

    return cache.make(cache.folder("arm64") / key, what, gigabytes, build)


def machine(kernel, memory, cpus, append, threads=False):
    """Returns QEMU's options for a virtual machine, as qemu.machine() does for a PC.

    Its CPU is Graviton2's, which supports pages of 16 KiB, and has no feature that is expensive under TCG.
    """
    turns = "" if threads else ",thread=single"
    return [
        *("qemu-system-aarch64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", "virt,gic-version=3,memory-backend=memory", "-accel", f"tcg{turns}"),
        *("-cpu", "neoverse-n1", "-smp", str(cpus), "-m", memory),
        *("-object", f"memory-backend-memfd,id=memory,size={memory},share=on"),
        *("-kernel", kernel),
        *("-append", f"console=ttyAMA0 root=root rootfstype=virtiofs ro panic=-1 {append}"),
    ]
