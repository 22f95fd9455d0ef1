# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Test cases of queues.py and bounce.py: memory that userspace and the device share, and completion events."""

import contextlib
import mmap
import os
import select
import struct

from objects import BUFFER_VA, CQ_WITH_COMPLETION_CHANNEL, CompletionChannel, CompletionQueue, Mapping, Memory, QueuePair
from selftest import PATIENCE, equal, errno_name
from uverbs import opened

PAGE = mmap.PAGESIZE
# User handle of a completion queue of objects.py, in the event that userspace reads.
CQ_USER_HANDLE = struct.pack("<Q", 0x1122334455667788)


@contextlib.contextmanager
def with_channel(context, vector=0):
    """Yields a completion queue and its channel. While the channel is open, the device can't be unbound."""
    channel = CompletionChannel(context)
    try:
        cq = CompletionQueue(context, flags=CQ_WITH_COMPLETION_CHANNEL, channel=channel.fd, vector=vector)
        yield cq, channel
        cq.destroy()
    finally:
        channel.close()


def events(channel, wait=1):
    """Waits for at least WAIT events of a completion queue; returns the number of events that could be read."""
    count = 0
    while select.select([channel.fd], [], [], PATIENCE if count < wait else 0)[0]:
        equal(os.read(channel.fd, 8), CQ_USER_HANDLE, "the queue of the event")
        count += 1
    return count


def pattern(number):
    """Returns bytes that occur nowhere else."""
    return struct.pack("<QQ", 0xEFA0EFA0EFA0EFA0, number)


def compared(seen):
    """Returns whether each place has its pattern."""
    wrong = sum(one != pattern(number) for number, one in enumerate(seen))
    return f"{wrong} of {len(seen)} places differ" if wrong else "ok"


def add_cases(suite, main, memory="ok"):
    """Adds the test cases of both programs, for a device. `memory` is the wanted result of a use of the process's own memory."""

    @suite.case("userspace sees what the device writes into a completion queue", "ok")
    def completion_queue():
        with opened(main) as context:
            cq = CompletionQueue(context, cqe=4 * PAGE // 32)
            places = [0, *range(PAGE - 16, 4 * PAGE, PAGE)]
            for number, place in enumerate(places):
                main.poke({"cq": cq.response.cq_idx}, place, pattern(number))
            mapping = Mapping(context, cq.response.q_mmap_key, cq.response.q_mmap_size, mmap.PROT_READ)
            seen = [mapping.memory[place : place + 16] for place in places]
            mapping.close()
            return compared(seen)

    @suite.case("the device sees what userspace writes into a receive queue", "ok")
    def receive_queue():
        with opened(main) as context:
            pd, _ = context.alloc_pd()
            cq = CompletionQueue(context)
            qp = QueuePair(context, pd, cq.handle, cq.handle, max_recv_wr=4 * PAGE // 16, rq_ring_size=4 * PAGE)
            places = range(0, 4 * PAGE, PAGE)
            mapping = Mapping(context, qp.response.rq_mmap_key, qp.response.rq_mmap_size)
            for number, place in enumerate(places):
                mapping.memory[place : place + 16] = pattern(number)
            mapping.close()
            return compared([main.peek({"rq": qp.qpn}, place, 16) for place in places])

    @suite.case("completion events of each vector arrive", "ok")
    def each_vector():
        with opened(main) as context:
            for vector in range(context.num_comp_vectors):
                with with_channel(context, vector) as (cq, channel):
                    for _ in range(3):
                        main.notify(cq.response.cq_idx)
                        equal(events(channel), 1, f"events of vector {vector}")
            return "ok"

    @suite.case("a completion queue in memory of the process", memory)
    def user_memory():
        with opened(main) as context:
            # A ring must be contiguous, as a single page is.
            pages = Memory(PAGE)
            try:
                cq = CompletionQueue(context, cqe=PAGE // 32, buffer=(BUFFER_VA, 0, pages.address, pages.length))
            except OSError as error:
                return errno_name(error.errno)
            main.poke({"cq": cq.response.cq_idx}, 0, pattern(1))
            return "ok" if pages.memory[:16] == pattern(1) else "the device writes to another address"

    @suite.case("nothing is left behind")
    def nothing_left():
        equal((main.held(), main.protocol_errors()), ({}, 0), "objects and protocol errors")
