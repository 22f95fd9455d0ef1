# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Messages over SRD without any library: a program with an open device, its queues, and their entries.

The layouts are those of rdma-core's efa_io_defs.h.
"""

import ctypes
import mmap
import struct
from typing import Any

from objects import (
    ACCESS_LOCAL_WRITE,
    CQ_WITH_COMPLETION_CHANNEL,
    QKEY,
    AddressHandle,
    CompletionChannel,
    CompletionQueue,
    Mapping,
    Memory,
    MemoryRegion,
    QueuePair,
)
from selftest import Failed, wait_until

# Bits of a send work request: that it is one, in the first control byte, and its framing, in the second.
META_DESC = 1 << 7
FIRST, LAST, COMP_REQ = 1 << 2, 1 << 3, 1 << 4
# Framing of a receive work request, in the same word as the key.
RECV_FIRST_AND_LAST = 1 << 30 | 1 << 31
# Bits of a completion's flags: the phase, which alternates with each round through the queue, and the type of the queue.
PHASE, SEND_QUEUE = 1, 1 << 1

MESSAGE = 4096
# Slots of a program's memory: for sent data, for received data, and their number.
SENT, RECEIVED, SLOTS = 0, 1, 2
# Number of entries of each queue, and sizes of an entry in the rings.
DEPTH = 32
SEND_ENTRY, RECV_ENTRY, COMPLETION = 64, 16, 32

# Layout of a send work request: request id, control bytes, queue pair and buffers, immediate data, address handle, Q_Key; then
# the buffer: length, key and address.
SEND = struct.Struct("<HBBHHIHHI12xIIQ16x")
# Layout of a receive work request: address, request id, length, key and framing.
RECV = struct.Struct("<QHHI")
# Layout of a completion: request id, status, flags, queue pair, length.
COMPLETED = struct.Struct("<HBBHH24x")
ARM = 1 << 31


def whole_pages(length):
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


class Doorbell:
    """A mapped 32-bit register. Each write is a single store."""

    def __init__(self, context, key, offset):
        self.mapping = Mapping(context, key, whole_pages(offset + 4))
        self.register = ctypes.c_uint32.from_buffer(self.mapping.memory, offset)

    def ring(self, value):
        self.register.value = value

    def read(self):
        return self.register.value

    def close(self):
        del self.register
        self.mapping.close()


class Endpoint:
    """A program's objects of a device, one of each kind, and their mappings."""

    def __init__(self, context, events=False):
        self.context = context
        try:
            self.make(context, events)
        except BaseException:
            context.close()
            raise

    def make(self, context, events):
        self.pd, _ = context.alloc_pd()
        self.memory = Memory(SLOTS * MESSAGE)
        self.region = MemoryRegion(context, self.pd, self.memory.address, self.memory.length, ACCESS_LOCAL_WRITE)
        self.channel: Any = CompletionChannel(context) if events else None
        options = {"flags": CQ_WITH_COMPLETION_CHANNEL, "channel": self.channel.fd} if self.channel else {}
        self.cq = CompletionQueue(context, cqe=4 * DEPTH, cq_entry_size=COMPLETION, **options)
        self.qp = QueuePair(
            *(context, self.pd, self.cq.handle, self.cq.handle, DEPTH, DEPTH),
            rq_ring_size=DEPTH * RECV_ENTRY,
            sq_ring_size=DEPTH * SEND_ENTRY,
        )
        self.qp.to_rts()
        self.map()
        self.handles = {}
        self.sent = self.posted = self.taken = 0

    def map(self):
        cq, qp = self.cq.response, self.qp.response
        self.cq_ring = Mapping(self.context, cq.q_mmap_key, cq.q_mmap_size)
        self.rq_ring = Mapping(self.context, qp.rq_mmap_key, qp.rq_mmap_size)
        self.send_queue = Mapping(self.context, qp.llq_desc_mmap_key, whole_pages(qp.llq_desc_offset + DEPTH * SEND_ENTRY))
        self.sq_doorbell = Doorbell(self.context, qp.sq_db_mmap_key, qp.sq_db_offset)
        self.rq_doorbell = Doorbell(self.context, qp.rq_db_mmap_key, qp.rq_db_offset)
        self.doorbells = [self.sq_doorbell, self.rq_doorbell]
        if self.channel:
            self.cq_doorbell = Doorbell(self.context, cq.db_mmap_key, cq.db_off)
            self.doorbells.append(self.cq_doorbell)

    def close(self):
        """Closes the device, which destroys all objects. All mappings are removed, too, as each keeps the device open."""
        for mapping in (self.cq_ring, self.rq_ring, self.send_queue):
            mapping.close()
        for doorbell in self.doorbells:
            doorbell.close()
        if self.channel:
            self.channel.close()
        self.context.close()
        self.memory.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def handle(self, gid):
        """Returns the address handle for the device with a GID."""
        if gid not in self.handles:
            self.handles[gid] = AddressHandle(self.context, self.pd, dgid=gid)
        return self.handles[gid]

    def slot(self, number):
        """Returns the address of a slot."""
        return self.memory.address + number * MESSAGE

    def write(self, number, data):
        ctypes.memmove(self.slot(number), data, len(data))

    def read(self, number):
        return ctypes.string_at(self.slot(number), MESSAGE)

    def post_recv(self, number):
        """Posts a slot for the next message that arrives."""
        entry = RECV.pack(self.slot(number), number, MESSAGE, self.region.lkey | RECV_FIRST_AND_LAST)
        offset = self.posted % DEPTH * RECV_ENTRY
        self.rq_ring.memory[offset : offset + RECV_ENTRY] = entry
        self.posted += 1
        self.rq_doorbell.ring(self.posted & 0xFFFF)

    def post_send(self, gid, qpn, number):
        """Sends a slot to a queue pair of a device."""
        phase = self.sent // DEPTH & 1
        entry = SEND.pack(
            *(number, META_DESC, FIRST | LAST | COMP_REQ | phase, qpn, 1, 0, self.handle(gid).number, 0, QKEY),
            *(MESSAGE, self.region.lkey, self.slot(number)),
        )
        offset = self.qp.response.llq_desc_offset + self.sent % DEPTH * SEND_ENTRY
        self.send_queue.memory[offset : offset + SEND_ENTRY] = entry
        self.sent += 1
        self.sq_doorbell.ring(self.sent & 0xFFFF)

    def arm(self):
        """Requests an event for the next completion."""
        self.cq_doorbell.ring(ARM | self.taken & 0xFFFF)

    def poll(self):
        """Polls a completion. Returns whether it is of a send, its request id, status and length; None if there is none."""
        entries = int.from_bytes(self.cq.cqe.bytes(), "little")
        offset = self.taken % entries * COMPLETION
        _, _, flags, *_ = COMPLETED.unpack_from(self.cq_ring.memory, offset)
        if flags & PHASE != 1 - (self.taken // entries & 1):
            return None
        # Reads all fields again: those before the phase may have been read before the device wrote them.
        number, status, flags, _, length = COMPLETED.unpack_from(self.cq_ring.memory, offset)
        self.taken += 1
        return bool(flags & SEND_QUEUE), number, status, length

    def await_completion(self, what):
        """Waits for a completion, which must be a success; returns whether it is of a send, and its request id."""
        is_send, number, status, length = wait_until(self.poll, f"{what}: a completion")
        if status or (not is_send and length != MESSAGE):
            raise Failed(f"{what}: a completion of request {number} with status {status} and length {length}")
        return is_send, number


def contents(seed):
    """Returns a message's bytes, which differ between seeds."""
    return struct.pack("<Q", seed) * (MESSAGE // 8)


def send(sender, receiver, gid, seed):
    """Sends a message from one endpoint of this process to another, on the device with this GID, and checks every byte."""
    what = f"message {seed:#x}"
    receiver.write(RECEIVED, bytes(MESSAGE))
    receiver.post_recv(RECEIVED)
    sender.write(SENT, contents(seed))
    sender.post_send(gid, receiver.qp.qpn, SENT)
    completions = {sender.await_completion(what), receiver.await_completion(what)}
    if completions != {(True, SENT), (False, RECEIVED)}:
        raise Failed(f"{what}: completions {completions}")
    if receiver.read(RECEIVED) != contents(seed):
        raise Failed(f"{what}: wrong bytes arrived")
