#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Processes that are killed while they have a thousand objects of each kind, and a module that can't be removed meanwhile."""

import ctypes
import mmap
import os
import signal
import struct
import time

import objects
import selftest
from selftest import Failed, Skipped, Suite, equal, function_with, result_of
from uverbs import opened

SPEC = "profile=efa3,max_pd=1200,max_cq=1200,max_qp=1200,max_llq_size=16384"
COUNT = 1000
ROUNDS = 50 if int(os.environ.get("EFA_ROUNDS", 0)) >= 100 else 1
KINDS = ("pd", "cq", "qp", "ah", "mr")

# KiB. A page of each object that stayed behind would be 20,000 in each round.
TOLERANCE = 12_000

# Seconds in which a process has made its objects, where a guest's processor is emulated.
PATIENCE = 120

DELETE_MODULE = 176

suite = Suite()


def free_memory():
    """Memory that nobody needs, in KiB. That includes pages that wait in a CPU's own list: up to tens of MiB."""
    with open("/proc/meminfo") as file:
        fields = {name: int(value) for name, value, *_ in map(str.split, file)}
    with open("/proc/zoneinfo") as file:
        listed = sum(int(line.split()[1]) for line in file if line.split()[:1] == ["count:"])
    free = sum(fields[name] for name in ("MemFree:", "Cached:", "Buffers:", "SReclaimable:"))
    return free - fields["Shmem:"] + listed * mmap.PAGESIZE // 1024


def remove_module():
    """Tries to, without force or patience."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(DELETE_MODULE, ctypes.c_char_p(b"efa"), os.O_NONBLOCK) < 0:
        raise OSError(ctypes.get_errno(), "delete_module")


def make_all(function, memory):
    """A thousand of each kind."""
    context = opened(function)
    for number in range(COUNT):
        pd, _ = context.alloc_pd()
        cq = objects.CompletionQueue(context, flags=number & objects.CQ_WITH_COMPLETION_CHANNEL)
        objects.QueuePair(context, pd, cq.handle, cq.handle)
        objects.AddressHandle(context, pd, dgid=struct.pack(">QQ", 0xFE80 << 48, number))
        # Some have more pages than fit a command.
        objects.MemoryRegion(context, pd, memory.address, 4096 << (number & 3))


def killed(function):
    """Kills a process that has all of it."""
    memory = objects.Memory(8 * 4096)
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            make_all(function, memory)
            os.write(writer, b".")
            time.sleep(PATIENCE * 10)
        except BaseException as error:
            print(f"# {type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os.close(writer)
    try:
        if os.read(reader, 1) != b".":
            raise Failed("the process did not get to have all objects")
        resources = function.state()["resources"]
        equal([resources[kind] for kind in KINDS], [COUNT] * len(KINDS), "what the device has")
        # Twice: a refusal must not change anything.
        equal([result_of(remove_module), result_of(remove_module)], ["EAGAIN"] * 2, "removal of the module")
    finally:
        os.close(reader)
        os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
    equal(os.WIFSIGNALED(status), True, "the process was killed")
    held = {name: count for name, count in function.state()["resources"].items() if count and name != "eq"}
    equal(held, {}, "what the device still has")


@suite.case(f"a process with {COUNT} objects of each kind is killed, {ROUNDS} times")
def many_times():
    function = function_with(SPEC)
    if not function:
        raise Skipped(f"there is no device {SPEC}")
    if not function.is_bound:
        function.rebind()
    # The first time, memory is cached for what comes.
    killed(function)
    before = free_memory()
    for _ in range(ROUNDS - 1):
        killed(function)
    missing = before - free_memory()
    print(f"# memory before {before} KiB, after {before - missing} KiB", flush=True)
    if missing > TOLERANCE:
        raise Failed(f"{missing} KiB of memory are missing")
    equal(function.state()["protocol_errors"], 0, "protocol errors")


if not selftest.emulator:
    selftest.skip_all("needs the emulator")
suite.run()
