#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Limits and other values that a device reports: the driver uses valid values fully, and rejects invalid ones.

In each test case, the device reports a value as an attribute in the probe, or in a completion.
"""

import contextlib
import itertools
import re
import struct

import objects
import selftest
from objects import CQ_WITH_COMPLETION_CHANNEL, CompletionChannel, CompletionQueue, Memory, MemoryRegion, QueuePair
from queue_cases import PAGE, events, with_channel
from selftest import Failed, KernelLog, Skipped, Suite, equal, result_of
from uverbs import Context, opened

if not selftest.emulator:
    selftest.skip_all("needs the emulator")

suite = Suite()
main = selftest.any_function()
log = KernelLog()

# Fields in the response to QUERY_DEVICE, and in that to GET_CONTEXT.
PAGE_SIZE_CAP, MAX_CQE = 4, 14
INLINE_BUF_SIZE = struct.Struct("<H")
INLINE_BUF_SIZE_OFFSET = 10

# Offsets of fields in completions.
CQ_IDX_OFFSET, QP_STATE_OFFSET = 8, 8

# Size of a huge page, whose pages are adjacent, and number of pieces of memory of this size to try: the kernel may have no such page.
HUGE, TRIES = 2 << 20, 16


def before():
    main.clear()
    main.set(keep_alive_ms=0)


def after():
    main.clear()
    main.rebind()


@contextlib.contextmanager
def device_with(**attributes):
    """Yields a context of a device that had these attributes in the probe. It has its default attributes from then on."""
    main.set(**attributes)
    main.rebind()
    main.clear()
    main.set(keep_alive_ms=0)
    list(log.records())
    with opened(main) as context:
        yield context


def corrupt(opcode, offset, value):
    """Overwrites bytes of the next completion of a command, which the device executes nevertheless."""
    bytes_ = [{"offset": offset + number, "value": byte} for number, byte in enumerate(value)]
    main.inject({"opcode": opcode}, {"corrupt": bytes_}, times=1)


def logged():
    """Fails if the driver has not logged an error."""
    if selftest.DRIVER == "rust" and not log.driver_errors(main):
        raise Failed("the driver has not logged an error")


# Attributes.


@suite.case("page sizes below 4 KiB are not used", "0x1000")
def small_pages():
    with device_with(page_size_cap=0x1FFF) as context:
        return hex(context.query_device()[0][PAGE_SIZE_CAP])


@suite.case("a completion queue is no deeper than the command can encode", "32768 EINVAL")
def deep_queue():
    if selftest.DRIVER == "c":
        raise Skipped("the C driver sends the lower 16 bits to the device, and the kernel warns of it")
    with device_with(max_cq_depth=1 << 17) as context:
        # The lower 16 bits alone are a valid depth. The limit is reported as a power of two, as kernel clients need it.
        result = result_of(CompletionQueue, context, (1 << 16) + 128)
        return f"{context.query_device()[0][MAX_CQE]} {result}"


@suite.case("more inline data than the response can report", "65535")
def inline_data():
    main.set(inline_buf_size=(1 << 16) + 8)
    main.rebind()
    with Context(main.uverbs()) as context:
        return INLINE_BUF_SIZE.unpack_from(context.get_context(), INLINE_BUF_SIZE_OFFSET)[0]


def adjacent_pages():
    """Returns memory of this process, and the address and the physical number of the first of two adjacent pages of it."""
    tried = []
    for _ in range(TRIES):
        # Memory that was tried before is kept, so that its pages are not allocated again.
        tried.append(Memory(HUGE, huge=True))
        numbers = tried[-1].page_numbers(HUGE // PAGE)
        for index, (first, second) in enumerate(itertools.pairwise(numbers)):
            if first and second == first + 1:
                return tried[-1], tried[-1].address + index * PAGE, first
    raise Failed(f"no two pages of {TRIES} times {HUGE} bytes are adjacent")


@suite.case("memory is registered in pages of 4 GiB", "ok phys_page_size_shift=32")
def giant_pages():
    _memory, start, number = adjacent_pages()
    with device_with(page_size_cap=PAGE | 1 << 32) as context:
        main.set(page_size_cap=PAGE | 1 << 32)
        pd, _ = context.alloc_pd()
        main.trace()
        # The IOVA has the same offset in a page of 4 GiB as the physical address.
        result = result_of(MemoryRegion, context, pd, start, 2 * PAGE, objects.ACCESS_LOCAL_WRITE, number * PAGE)
        return " ".join([result, *re.findall(r"phys_page_size_shift=\d+", " ".join(main.trace()))])


@suite.case("relaxed ordering is not requested by a bit that is a guess", "ok, 0 times")
def relaxed_ordering():
    if selftest.DRIVER == "c":
        raise Skipped("the C driver knows the bit since Linux 7.4")
    memory = Memory(PAGE)
    with device_with(relaxed_ordering=True) as context:
        main.set(relaxed_ordering=True)
        pd, _ = context.alloc_pd()
        main.trace()
        result = result_of(MemoryRegion, context, pd, memory.address, PAGE, objects.ACCESS_LOCAL_WRITE | 1 << 20)
        return f"{result}, {str(main.trace()).count('relaxed_ordering')} times"


# Completions.


@suite.case("a queue pair is in an unknown state", "EIO, then 0")
def unknown_state():
    with device_with() as context:
        pd, _ = context.alloc_pd()
        cq = CompletionQueue(context)
        pair = QueuePair(context, pd, cq.handle, cq.handle)
        corrupt("QUERY_QP", QP_STATE_OFFSET, struct.pack("<I", 77))
        result = result_of(pair.query)
        logged()
        return f"{result}, then {pair.query()['qp_state']}"


def add_doubles():
    for text, vector in (("of the same event queue", 0), ("of another event queue", 1), ("without events", None)):

        def run(vector=vector):
            with device_with() as context, with_channel(context) as (cq, channel), with_channel(context) as (after, after_channel):
                others = CompletionChannel(context)
                options = {} if vector is None else dict(flags=CQ_WITH_COMPLETION_CHANNEL, channel=others.fd, vector=vector)
                corrupt("CREATE_CQ", CQ_IDX_OFFSET, struct.pack("<H", cq.response.cq_idx))
                result = result_of(lambda: CompletionQueue(context, **options))
                logged()
                main.notify(cq.response.cq_idx)
                # Events of one event queue arrive in order.
                main.notify(after.response.cq_idx)
                equal(events(after_channel), 1, "events of a third queue")
                count = events(channel, wait=0)
                others.close()
                # The number can be reused once the queue is destroyed.
                result += f", {count} event"
            with opened(main) as context, with_channel(context) as (cq, channel):
                main.notify(cq.response.cq_idx)
                return f"{result}, then {events(channel)}"

        suite.add(f"a completion queue has the number of another {text}", run, "EIO, 1 event, then 1")


add_doubles()


suite.run(before, after)
