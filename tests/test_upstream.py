# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The layer over the RDMA core as patches for Linux: each is built and checked, and a kernel with all of them runs the examples and KUnit
tests. upstream/series.toml says which files are in which patch, and upstream/*.msg why.

The patches are in $EFA_KEEP/upstream. Results are kept by the content of a patch and of those before it.
"""

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import ktap
import pytest
from conftest import CLONE, ran
from guests import CACHE, in_user_namespace, mount, result

sys.path.insert(0, str(CLONE / "upstream"))

import series

MINUTES = 40
TIER = "named"
# Patches are applied one after the other.
pytestmark = pytest.mark.xdist_group("upstream")
NEEDS = ["linux-tree"]
KEPT = CACHE / "upstream"
# Where tools/builds.mk built the tree. The patches are applied to an overlay over it.
TREE = Path("/tmp/linux")
NAMES = [(table["name"], number, patch["message"]) for table in series.TABLE["series"] for number, patch in enumerate(table["patch"], 1)]
CHECKS = ("builds", "clippy", "rustdoc", "checkpatch")
MAKE = f"make --no-print-directory -j{os.cpu_count()} LLVM=-19 CLIPPY=1"
BUILD = f"{MAKE} -s KCONFIG_ALLCONFIG=this.config allnoconfig && {MAKE} bzImage modules"
DOCUMENT = f"{MAKE} -f {CLONE}/upstream/rustdoc.mk efa_rustdoc KEEP='core ffi macros pin_init compiler_builtins clean'"
CHECKPATCH = (
    f"./scripts/checkpatch.pl --strict --no-signoff --terse --show-types --ignore {','.join(series.TABLE['checkpatch'])} this.patch"
)
# A warning of a compiler, and where it is.
WARNING = re.compile(r"^(?:warning|error)(?:\[\w+\])?: (?P<what>.*)\n(?:.*\n){0,2}?\s*--> (?P<place>\S+)", re.MULTILINE)
# Minimum number of examples and tests of the layer that run. Those of the whole kernel crate do, but only those with such names count.
TESTS = 60
OURS = re.compile(r"rdma|sample")
# Time limit of the guest in seconds.
LIMIT = 600
INIT = """#!/bin/busybox sh
busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sysfs /sys
number=0
result() {
	number=$((number + 1)) name=$1
	shift
	if "$@"; then echo "ok $number - sample: $name"; else echo "not ok $number - sample: $name"; fi
}
echo 1..8
result "the core sets handlers early, and disables devices" $busybox insmod /core_test.ko
result "the provider loads" $busybox insmod /rust_null_rdma.ko
result "its device is registered" $busybox test -e /sys/class/infiniband/null0/node_guid
result "the client loads" $busybox insmod /rust_rdma_exchange.ko
result "the client is removed" $busybox rmmod rust_rdma_exchange
result "the provider is removed" $busybox rmmod rust_null_rdma
result "the driver loads" $busybox insmod /efa.ko
result "the driver is removed" $busybox rmmod efa
$busybox reboot -f
"""
# This kernel has only what patches and KUnit need, so that its guest has a file system of its own.
IMAGE = """
    set -e
    rm -rf guest && mkdir -p guest/bin guest/proc guest/sys guest/dev && cp /bin/busybox guest/bin
    make -s LLVM=-19 M=core_test modules && cp core_test/core_test.ko samples/rust/rust_null_rdma.ko guest
    cp samples/rust/rdma_exchange/rust_rdma_exchange.ko drivers/infiniband/hw/efa_rust/efa.ko guest
    cp guest.init guest/init && chmod +x guest/init && cd guest && find . | cpio -o -H newc >../guest.cpio
"""
# On a busy machine, timers of an emulated CPU are too late for the kernel's check of them.
GUEST = (
    f"timeout {LIMIT} qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -machine q35 -cpu qemu64 -m 512M"
    " -bios qboot.rom -kernel arch/x86/boot/bzImage -initrd guest.cpio -serial stdio"
    " -append 'console=ttyS0 panic=-1 no_timer_check kunit.enable=1 kunit.autorun=1'"
)


@functools.cache
def tree():
    """Mounts an overlay without patches over the built tree; returns its folder. One run at a time has it."""
    KEPT.mkdir(exist_ok=True)
    fcntl.flock(os.open(KEPT, os.O_RDONLY), fcntl.LOCK_EX)
    upper, work = KEPT / "upper", KEPT / "work"
    for folder in (upper, work, TREE):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    user = ",userxattr" if in_user_namespace() else ""
    mount("-t", "overlay", "-o", f"lowerdir={result('linux-tree')},upperdir={upper},workdir={work}{user}", "overlay", TREE)
    return TREE


@functools.cache
def patches():
    """The patches by name, each with its key."""
    found = series.patches(result("linux-tree"))
    series.write(found, Path(os.environ["EFA_KEEP"], "upstream"))
    digest = hashlib.sha256(f"{result('linux-tree').name}{BUILD}{DOCUMENT}{CHECKPATCH}".encode())
    keys = {}
    for patch in found:
        digest.update(f"{patch.config}{patch.text}".encode())
        keys[patch.name] = patch, digest.hexdigest()[:16]
    return keys


def put(files):
    """Writes the files of a tree that differ. A later patch has all files of the earlier ones."""
    for name, text in files.items():
        file = tree() / name
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def run(command):
    """Runs a shell command in the tree; returns its exit status and its output."""
    done = ran(command, shell=True, cwd=tree())
    return done.returncode, done.stdout


def warnings(text, paths=None):
    """Returns the warnings in the output of a compiler: all, or those of some files."""
    found = [f"{match['place']}: {match['what']}" for match in WARNING.finditer(text)]
    return [line for line in found if paths is None or line.split(":")[0] in paths]


def inspect(patch):
    """Checks a patch; returns its problems by check."""
    put({**patch.state, "this.patch": patch.text, "this.config": patch.config})
    status, said = run(BUILD)
    found = {"builds": [said[-3000:]] if status else [], "clippy": ["it does not build"] if status else warnings(said)}
    status, said = run(DOCUMENT)
    found["rustdoc"] = ([said[-3000:]] if status else []) + warnings(said, patch.state)
    status, said = run(CHECKPATCH)
    found["checkpatch"] = re.findall(r".*\b(?:ERROR|WARNING|CHECK):.*", said) or ([said[-3000:]] if status else [])
    return found


@pytest.mark.parametrize("name", [pytest.param(name, id=f"{of}-{number}-{name}") for of, number, name in NAMES])
def test_patch(request, name):
    patch, key = patches()[name]
    kept = KEPT / key
    found = json.loads(kept.read_text()) if kept.exists() else inspect(patch)
    if not any(found.values()):
        kept.write_text(json.dumps(found))
    request.node.ktap = [(check, "failed" if found[check] else "passed", "\n".join(found[check])) for check in CHECKS]
    assert not any(found.values()), "\n".join(line for lines in found.values() for line in lines)


def boot(patch, core):
    """Returns the output of a guest that runs the examples and KUnit tests of a tree with all patches, and loads its modules."""
    tests = {"core_test/core_test.c": core, "core_test/Kbuild": "obj-m := core_test.o\n", "guest.init": INIT}
    put({**patch.state, **tests, "this.config": f"{patch.config}CONFIG_RUST_KERNEL_DOCTESTS=y\n"})
    said = ""
    for command in (BUILD, IMAGE, GUEST):
        status, said = run(command)
        assert status == 0, f"{command}: exit status {status}\n{said[-6000:]}"
    return said.replace("\r", "")


def test_kernel_with_all_patches(request):
    patch, key = list(patches().values())[-1]
    core = (series.FOLDER / "tests/core_test.c").read_text()
    kept = KEPT / hashlib.sha256(f"{key}{INIT}{IMAGE}{GUEST}{core}".encode()).hexdigest()[:16]
    said = kept.read_text() if kept.exists() else boot(patch, core)
    lines = request.node.ktap = [line for line in ktap.parse(said) if OURS.search(line[0])]
    failed = [name for name, outcome, _ in lines if outcome == "failed"]
    assert not failed, "\n".join(failed)
    count = sum("rdma" in name for name, _, _ in lines)
    assert count >= TESTS, f"{count} examples and KUnit tests of the layer ran, not {TESTS}"
    kept.write_text(said)
