#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Processes that are killed while they have a thousand objects of each kind, and removal of the module under such a process."""

import mmap
import os
import signal
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import objects
import selftest
from modules import load_module, remove_module
from selftest import Failed, Suite, equal, forked, function_with, result_of
from tracing import dma
from uverbs import opened

SPEC = "profile=efa3,max_pd=1200,max_cq=1200,max_qp=1200,max_llq_size=16384"
COUNT = 1000
ROUNDS = 50 if int(os.environ.get("EFA_ROUNDS") or 0) >= 100 else 1
KINDS = ("pd", "cq", "qp", "ah", "mr")

suite = Suite()
function: Any = function_with(SPEC)
if not (function and selftest.emulator):
    selftest.skip_all(f"needs the emulated device {SPEC}")


def make_all(memory):
    """Creates a thousand objects of each kind."""
    context = opened(function)
    for number in range(COUNT):
        pd, _ = context.alloc_pd()
        cq = objects.CompletionQueue(context, flags=number & objects.CQ_WITH_COMPLETION_CHANNEL)
        objects.QueuePair(context, pd, cq.handle, cq.handle)
        objects.AddressHandle(context, pd, dgid=struct.pack(">QQ", 0xFE80 << 48, number))
        # Some regions have more pages than fit into a command.
        objects.MemoryRegion(context, pd, memory.address, mmap.PAGESIZE << (number & 3))
    return context


@contextmanager
def process_with_all():
    """Runs a process with all objects, and kills it after the block. Yields a function that makes it use the device once more, and
    returns its results."""
    memory = objects.Memory(8 * mmap.PAGESIZE)
    reader, writer = os.pipe()
    gate, opener = os.pipe()

    def work():
        os.close(opener)
        context = make_all(memory)
        os.write(writer, b".")
        if os.read(gate, 1):
            os.write(writer, f"event {context.event()}, {result_of(context.alloc_pd)}".encode())
        signal.pause()

    process = forked(work)
    os.close(writer)
    os.close(gate)

    def use():
        os.write(opener, b".")
        return os.read(reader, 100).decode()

    try:
        if os.read(reader, 1) != b".":
            raise Failed("the process could not create all objects")
        resources = function.state()["resources"]
        equal([resources[kind] for kind in KINDS], [COUNT] * len(KINDS), "objects of the device")
        yield use
    finally:
        os.close(reader)
        os.close(opener)
        os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
    equal(os.WIFSIGNALED(status), True, "the process was killed")
    equal(function.held(), {}, "objects left in the device")


def pinned():
    """Returns the number of pinned pages of all processes."""
    # Each CPU adds its own counts to the totals only now and then. An access to this file makes all add them now.
    Path("/proc/sys/vm/stat_refresh").write_text("1")
    with open("/proc/vmstat") as file:
        counts = dict(line.split() for line in file)
    return int(counts["nr_foll_pin_acquired"]) - int(counts["nr_foll_pin_released"])


@suite.case(f"a process with {COUNT} objects of each kind is killed, {ROUNDS} times")
def many_times():
    if not function.is_bound:
        function.rebind()
    before = pinned()
    for _ in range(ROUNDS):
        with dma(function) as mappings:
            with process_with_all():
                pass
            left, made = mappings()
        # Both memory regions and rings have DMA mappings.
        equal(made >= 2 * COUNT, True, f"whether {made} DMA mappings are at least {2 * COUNT}")
        equal(left, {}, "leaked DMA mappings")
        equal(pinned(), before, "pinned pages")
    equal(function.protocol_errors(), 0, "protocol errors")


@suite.case(f"the module is removed under a process with {COUNT} objects of each kind", "ok, event 8, EIO")
def removed():
    with process_with_all() as use:
        result = result_of(remove_module)
        if result != "ok":
            # A refusal does not change anything.
            equal(result_of(remove_module), result, "a second attempt")
            return result
        # The process still has the device open, so the removal has not waited for it.
        try:
            equal(function.held(), {}, "objects of the device without its driver")
            equal(function.leftovers(), [], "leftovers of the driver")
            result += ", " + use()
        finally:
            load_module()
        function.settle()
    equal(function.protocol_errors(), 0, "protocol errors")
    return result


suite.run()
