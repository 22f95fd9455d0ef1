# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Amazon's own C driver, which has kernel verbs: built from a checkout of the public repository amzn/amzn-drivers, if there is one."""

from . import build, cache, layer, steps, toolroot
from .failure import Failure

PLACE = "kernel/linux/efa"
SOURCE = "/run/efa-rs/amazon"
# What of 3.1.0 does not fit Linux 7.3: a function that got another name, and memory for a completion queue that a program
# brings, which was of the core's queue and is not any more. The second one is left out, as the bench does not use it.
FIXES = (
    (r"\bib_umem_get(", "ib_umem_get_va("),
    ("ibcq->umem", "((struct ib_umem *)NULL)"),
)
FIXED = ("config/efa.cmake", "src/efa_verbs.c")


def source(checkout):
    """The driver's folder in a checkout."""
    folder = checkout / PLACE
    if not (folder / "src/efa_data_verbs.c").is_file():
        raise Failure(f"There is no EFA driver with kernel verbs in {checkout}: is it a checkout of amzn/amzn-drivers?")
    return folder


def version(checkout):
    """The driver's version, as its package has it."""
    lines = (source(checkout) / "conf/dkms.conf").read_text().splitlines()
    return next(line.partition("=")[2].strip('"') for line in lines if line.startswith("PACKAGE_VERSION="))


def module(checkout, release, kverbs=True):
    """Builds the driver for a kernel of the toolroot, by its own CMake files; returns its efa.ko."""
    folder = source(checkout)
    flavour = toolroot.flavour_of(release)
    expressions = " ".join(f"-e 's/{old}/{new}/g'" for old, new in FIXES)
    script = f"""
        cp -r {SOURCE} {build.BUILD}/module && cd {build.BUILD}/module &&
        sed -i {expressions} {" ".join(FIXED)} &&
        cmake -B build -DKERNEL_VER={release} -DENABLE_KVERBS={"ON" if kverbs else "OFF"} &&
        make -C build
    """
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    names = [str(file.relative_to(folder)) for file in files]

    def compile_it(path):
        path.mkdir()
        with steps.step(f"Amazon's C module {flavour}") as log:
            command = layer.enter(["sh", "-c", script], [(folder, SOURCE, "ro"), (path, build.BUILD, "rw")])
            steps.run(command, log, "Building Amazon's C driver")

    place = cache.folder("amazon-module") / cache.key(toolroot.key(), release, script, *names, *files)
    return cache.make(place, "Amazon's C driver", 0.2, compile_it) / "module/build/src/efa.ko"
