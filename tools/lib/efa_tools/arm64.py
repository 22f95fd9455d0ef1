# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What is otherwise with arm64: the root with its kernels, compilers and QEMU, the guests' root, and their machine.

That root is the toolroot with a layer over it, made at the first use. Modules are built by cross compilers, in it; no program of
arm64 runs but in guests.
"""

from . import cache, namespace, steps

# As choose-kernel takes them. The first is for clouds, the last has pages of 16 KiB.
FLAVOURS = ("cloud-arm64", "arm64", "arm64-16k")
# The file of a kernel, beside its modules.
IMAGE = "vmlinuz"
# The headers depend on the compiler. What libc6-dev is for, rust-kit says.
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
# Over that, for what few need: Rust's library, which the emulator's tests are built with, and what runs programs of arm64 without a
# kernel. Only unpacked: what the library depends on is for a compiler that runs on arm64.
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
# Makes the guests' root.
RECIPE = namespace.TOOLS / "arm64" / "userland.sh"
# How much longer than on x86-64 tests may take: its CPU is emulated by more instructions.
SLOW = 3


def is_release(release):
    """Whether a kernel release is one of these."""
    return release.endswith(tuple(f"-{flavour}" for flavour in FLAVOURS))


def slowness(*flavours):
    """By what time limits of tests in guests with these kernels are multiplied."""
    return SLOW if set(flavours) & set(FLAVOURS) else 1


def memory(flavour):
    """The memory of a guest for the selftests.

    With 1 GiB, 64 processes of them make a guest of arm64 thrash: for seconds it only evicts and reads again the pages of programs.
    """
    return "2G" if flavour in FLAVOURS else "1G"


# Bytes of a page.
SMALL_PAGE, LARGE_PAGE = 4096, 16384


def page_size(flavour):
    """Bytes of a page of a kernel."""
    return LARGE_PAGE if flavour.endswith("-16k") else SMALL_PAGE


def share_queue(flavour):
    """The entries of the queue of a virtiofs share.

    virtiofsd refuses requests of more than 1 MiB, and states that limit in pages of its host. A guest with larger pages asks for more, as
    overlayfs does when it reads a folder. A request has no more pages than the queue has entries.
    """
    return 1024 if page_size(flavour) == SMALL_PAGE else 64


def folder(root, root_key, series):
    """The layer's folder, which is made first if it is not in the cache."""
    script = SCRIPT.format(series=series, flavours=" ".join(FLAVOURS), packages=" ".join(PACKAGES))
    key = cache.key(root_key, script, namespace.TOOLS / "choose-kernel")
    return layer([root], key, script, "arm64 kernels and compilers", 1.5)


def programs(root, kernels):
    """The same of the layer over the one with the KERNELS that is for programs of arm64."""
    return layer([kernels / "layer", root], cache.key(kernels.name, PROGRAMS), PROGRAMS, "what programs for arm64 take", 0.3)


def layer(lowers, key, script, what, gigabytes):
    """The folder of a layer over others that a script makes."""

    def build(path):
        for part in ("layer", "work", "mount"):
            (path / part).mkdir(parents=True)
        with steps.step(what) as log:
            overlay = namespace.Overlay(lowers, path / "mount", path / "layer", path / "work")
            binds = [(cache.CLONE, "/efa-rs", "ro")]
            steps.run(namespace.enter(overlay, ["sh", "-c", script], binds), log, f"Installing {what}")

    return cache.make(cache.folder("arm64") / key, what, gigabytes, build)


def machine(kernel, memory, cpus, append, threads=False):
    """A virtual machine, as qemu.machine() makes a PC.

    Its CPU is Graviton2's, which has pages of 16 KiB, and none of what costs TCG much.
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
