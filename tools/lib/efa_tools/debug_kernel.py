# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The debug kernel: the toolroot's kernel source, built with KASAN, lockdep and other checks by tools/debug-kernel/build.sh."""

import os

from . import cache, namespace, steps, toolroot

RECIPE = namespace.TOOLS / "debug-kernel"
# Packages that it is built with and from. A build takes an hour, so other changes of the toolroot do not cause one.
INPUTS = (f"linux-source-{toolroot.SERIES}", "clang-19", "lld-19", "llvm-19", "rustc", "rust-src", "bindgen", "pahole")


def key():
    versions = toolroot.versions(*INPUTS)
    return cache.key(toolroot.kernel(toolroot.DEBUG), *versions, *(RECIPE / name for name in ("build.sh", "config")))


def folder(mount):
    """The folder with the kernel's build directory, which is at MOUNT in the toolroot."""

    def build(path):
        path.mkdir()
        with steps.step("debug kernel") as log:
            command = ["/efa-rs/tools/debug-kernel/build.sh", mount, toolroot.kernel(toolroot.DEBUG), str(os.cpu_count())]
            binds = [(cache.CLONE, "/efa-rs", "ro"), (path, mount, "rw")]
            steps.run(namespace.enter(toolroot.root(), command, binds), log, "Building the debug kernel")

    return cache.make(cache.folder("debug-kernel") / key(), "the debug kernel", 4, build)


def c_module(mount):
    """Linux's own C driver, which is a module of this kernel."""
    return folder(mount) / toolroot.kernel(toolroot.DEBUG) / "drivers/infiniband/hw/efa/efa.ko"
