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
# Makes the guests' root.
RECIPE = namespace.TOOLS / "arm64" / "userland.sh"
# Seconds from a guest's start to its first process, which takes 12 s on an idle host.
BOOT_LIMIT = 300
# How much longer than on x86-64 tests may take: its CPU is emulated by more instructions.
SLOW = 3


def is_release(release):
    """Whether a kernel release is one of these."""
    return release.endswith(tuple(f"-{flavour}" for flavour in FLAVOURS))


def slowness(*flavours):
    """By what time limits of tests in guests with these kernels are multiplied."""
    return SLOW if set(flavours) & set(FLAVOURS) else 1


def page_size(flavour):
    """Bytes of a page of a kernel."""
    return 16384 if flavour.endswith("-16k") else 4096


def share_queue(flavour):
    """The entries of the queue of a virtiofs share.

    virtiofsd refuses requests of more than 1 MiB, and says so in pages of its host: with larger ones a guest asks for more, as overlayfs does
    when it reads a folder. A request has no more pages than the queue has entries.
    """
    return 1024 if page_size(flavour) == 4096 else 64


def folder(root, root_key, series):
    """The layer's folder, which is made first if it is not in the cache."""
    script = SCRIPT.format(series=series, flavours=" ".join(FLAVOURS), packages=" ".join(PACKAGES))

    def build(path):
        for part in ("layer", "work", "mount"):
            (path / part).mkdir(parents=True)
        with steps.step("arm64 kernels and compilers") as log:
            overlay = namespace.Overlay([root], path / "mount", path / "layer", path / "work")
            binds = [(cache.CLONE, "/efa-rs", "ro")]
            steps.run(namespace.enter(overlay, ["sh", "-c", script], binds), log, "Installing arm64 kernels and compilers")

    key = cache.key(root_key, script, namespace.TOOLS / "choose-kernel")
    return cache.make(cache.folder("arm64") / key, "arm64 kernels and compilers", 1.5, build)


def machine(kernel, memory, cpus, append, one_thread=False):
    """A virtual machine, as qemu.machine() makes a PC. Its CPU is Graviton2's, which has pages of 16 KiB, and none of what costs TCG much."""
    turns = ",thread=single" if one_thread else ""
    return [
        *("qemu-system-aarch64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", "virt,gic-version=3,memory-backend=memory", "-accel", f"tcg{turns}"),
        *("-cpu", "neoverse-n1", "-smp", str(cpus), "-m", memory),
        *("-object", f"memory-backend-memfd,id=memory,size={memory},share=on"),
        *("-kernel", kernel),
        *("-append", f"console=ttyAMA0 root=root rootfstype=virtiofs ro panic=-1 {append}"),
    ]
