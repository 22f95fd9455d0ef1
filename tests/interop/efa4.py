#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Features of the newest devices only, between two guests: completion counters, 64-bit request ids, RDMA writes of inline data.

Uses no library, as older ones lack these features. One side is the server, which executes requests of the client over TCP:
efa4.py serve, and efa4.py test GUEST.
"""

import contextlib
import json
import mmap
import os
import random
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "kselftest"))

import objects
from data_path import (
    COMP_REQ,
    FIRST,
    HAS_IMM,
    INLINE_MSG,
    LAST,
    META_DESC,
    PHASE,
    QUEUE,
    RECV_FIRST_AND_LAST,
    SEND_QUEUE,
    Doorbell,
    whole_pages,
)
from objects import (
    ATTACH_RDMA_READ,
    ATTACH_RDMA_WRITE,
    ATTACH_RECV,
    ATTACH_REMOTE_RDMA_READ,
    ATTACH_REMOTE_RDMA_WRITE,
    ATTACH_SEND,
    CQ_WITH_SQ_COMP_64_BIT_REQ_ID,
    QKEY,
    QP_WITH_SQ_64_BIT_REQ_ID,
    AddressHandle,
    CompletionCounter,
    CompletionQueue,
    Mapping,
    Memory,
    MemoryRegion,
    QueuePair,
)
from selftest import PATIENCE, Failed, Suite, equal, functions, wait_until
from uverbs import opened

PCI_DEVICE = "0xefa4"
PORT = 7101
# Depth of each queue and number of requests in flight, bytes of an entry of each queue, and entries of the completion queue.
DEPTH, WQE, RQE, CQE, CQ_ENTRIES = 64, 128, 16, 32, 256
# Bytes of each side's memory, of messages that fit into one packet, and of messages that may take several.
MEMORY = 1 << 20
LENGTHS = (1, 64, 1000, 8000)
LONG_LENGTHS = (*LENGTHS, 9000, 60000)
INLINE = 80
OPERATIONS = int(os.environ.get("EFA_OPERATIONS", "50000"))
# Batches between two progress lines. A silent side counts as hung.
PROGRESS = 16

SEND, READ, WRITE, WRITE_WITH_IMM = "send", "read", "write", "write with immediate"
OP_TYPE = {SEND: 0, READ: 1, WRITE: 2, WRITE_WITH_IMM: 2}
ATTACHED = {
    "send": ATTACH_SEND,
    "recv": ATTACH_RECV,
    "read": ATTACH_RDMA_READ,
    "write": ATTACH_RDMA_WRITE,
    "remote read": ATTACH_REMOTE_RDMA_READ,
    "remote write": ATTACH_REMOTE_RDMA_WRITE,
}
# Counters that each successful operation increments here, and at the peer.
COUNTED = {
    SEND: ("send", ("recv",)),
    READ: ("read", ("remote read",)),
    WRITE: ("write", ("remote write",)),
    WRITE_WITH_IMM: ("write", ("remote write", "recv")),
}

# Send work request: request id, control bytes, queue pair, number of buffers or bytes, immediate data, address handle, Q_Key, rest
# of the request id. Memory: length, key, address. Receive work request: address, request id, length, key.
META = struct.Struct("<HBBHHIHxxI6x6s")
PLACE = struct.Struct("<IIQ")
RECV = struct.Struct("<QHHI")
# Completion: request id, status, flags, queue pair, rest of the request id.
COMPLETED = struct.Struct("<HBBH6s20x")


def device():
    """Returns the first device of the generation PCI_DEVICE."""
    for function in functions():
        if (function.sysfs / "device").read_text().strip() == PCI_DEVICE:
            return function
    raise Failed(f"there is no device {PCI_DEVICE}")


class Endpoint:
    """A queue pair for all operations, its memory, and counters of all its operations."""

    def __init__(self):
        self.function = device()
        self.context = context = opened(self.function)
        self.pd, _ = context.alloc_pd()
        self.memory, self.values = Memory(MEMORY), Memory(mmap.PAGESIZE)
        # Counters begin with the values in memory.
        self.values.memory[: mmap.PAGESIZE] = bytes(mmap.PAGESIZE)
        access = objects.ACCESS_LOCAL_WRITE | objects.ACCESS_REMOTE_WRITE | objects.ACCESS_REMOTE_READ
        self.region = MemoryRegion(context, self.pd, self.memory.address, MEMORY, access)
        self.cq = CompletionQueue(context, cqe=CQ_ENTRIES, cq_entry_size=CQE, flags=CQ_WITH_SQ_COMP_64_BIT_REQ_ID)
        self.qp = QueuePair(
            *(context, self.pd, self.cq.handle, self.cq.handle, DEPTH, DEPTH),
            rq_ring_size=DEPTH * RQE,
            sq_ring_size=DEPTH * WQE,
            max_inline_data=INLINE,
            flags=QP_WITH_SQ_64_BIT_REQ_ID,
        )
        self.counters = {}
        for number, (name, operations) in enumerate(ATTACHED.items()):
            place = self.values.address + 16 * number
            self.counters[name] = CompletionCounter(context, place, place + 8)
            self.counters[name].attach(self.qp, operations)
        self.qp.to_rts()
        cq, qp = self.cq.response, self.qp.response
        self.cq_ring = Mapping(context, cq.q_mmap_key, cq.q_mmap_size).memory
        self.rq_ring = Mapping(context, qp.rq_mmap_key, qp.rq_mmap_size).memory
        self.sq_ring = Mapping(context, qp.llq_desc_mmap_key, whole_pages(qp.llq_desc_offset + DEPTH * WQE)).memory
        self.sq_doorbell = Doorbell(context, qp.sq_db_mmap_key, qp.sq_db_offset)
        self.rq_doorbell = Doorbell(context, qp.rq_db_mmap_key, qp.rq_db_offset)
        self.sent = self.posted = self.taken = 0

    def about(self):
        """Returns the address, keys and numbers that a peer needs."""
        place = {"address": self.memory.address, "rkey": self.region.rkey}
        return {"gid": self.gid().hex(), "qpn": self.qp.qpn, **place}

    def gid(self):
        (name,) = self.function.names("infiniband")
        text = (self.function.sysfs / "infiniband" / name / "ports/1/gids/0").read_text()
        return bytes.fromhex(text.strip().replace(":", ""))

    def meet(self, peer):
        self.peer = peer
        self.ah = AddressHandle(self.context, self.pd, dgid=bytes.fromhex(peer["gid"])).number

    def read_values(self):
        """Returns each counter's numbers of successful and of failed operations."""
        values = struct.unpack_from(f"<{2 * len(ATTACHED)}Q", self.values.memory)
        return {name: list(values[2 * number : 2 * number + 2]) for number, name in enumerate(ATTACHED)}

    def receive(self, count):
        """Posts `count` receive work requests, each for 65535 bytes at the start of the memory."""
        for _ in range(count):
            entry = RECV.pack(self.memory.address, self.posted & 0xFFFF, 0xFFFF, self.region.lkey | RECV_FIRST_AND_LAST)
            offset = self.posted % DEPTH * RQE
            self.rq_ring[offset : offset + RQE] = entry
            self.posted += 1
        self.rq_doorbell.ring(self.posted & 0xFFFF)

    def post(self, operation, number, length, inline=None, **wrong):
        """Posts a send work request. WRONG has an rkey or a queue pair number to use in place of the peer's."""
        rkey, qpn = wrong.get("rkey", self.peer["rkey"]), wrong.get("qpn", self.peer["qpn"])
        buffer = PLACE.pack(length, self.region.lkey, self.memory.address)
        body = buffer if inline is None else inline
        if operation != SEND:
            body = PLACE.pack(length, rkey, self.peer["address"]) + body
        ctrl1 = OP_TYPE[operation] | META_DESC
        ctrl1 |= (HAS_IMM if operation == WRITE_WITH_IMM else 0) | (0 if inline is None else INLINE_MSG)
        ctrl2 = FIRST | LAST | COMP_REQ | self.sent // DEPTH & 1
        id_bytes = number.to_bytes(8, "little")
        meta = META.pack(
            *(int.from_bytes(id_bytes[:2], "little"), ctrl1, ctrl2, qpn, 1 if inline is None else len(inline)),
            *(0, self.ah, QKEY, id_bytes[2:]),
        )
        offset = self.qp.response.llq_desc_offset + self.sent % DEPTH * WQE
        self.sq_ring[offset : offset + WQE] = (meta + body).ljust(WQE, b"\0")
        self.sent += 1
        self.sq_doorbell.ring(self.sent & 0xFFFF)

    def poll(self):
        """Takes a completion, if there is one; returns whether it is of a send, its request id and status."""
        offset = self.taken % CQ_ENTRIES * CQE
        _, _, flags, *_ = COMPLETED.unpack_from(self.cq_ring, offset)
        if flags & PHASE != 1 - (self.taken // CQ_ENTRIES & 1):
            return None
        # Read again, because fields before the phase may have been read before the device wrote them.
        low, status, flags, _, rest = COMPLETED.unpack_from(self.cq_ring, offset)
        self.taken += 1
        is_send = flags & QUEUE == SEND_QUEUE
        return is_send, int.from_bytes(low.to_bytes(2, "little") + rest, "little") if is_send else low, status

    def complete(self, count):
        """Waits for `count` completions, and returns them."""
        return [wait_until(self.poll, f"completion {number + 1} of {count}") for number in range(count)]

    def fail(self):
        """Moves the queue pair to the error state, which flushes all work requests; returns the number of receives posted so far."""
        waiting = self.posted
        self.qp.modify(objects.QP_STATE, objects.QPS_ERR)
        return waiting


class Server:
    """A proxy of the other side: each attribute is one of its functions."""

    def __init__(self, host):
        self.connection = socket.create_connection((host, PORT), PATIENCE)
        # A wait for completions at the server times out first.
        self.connection.settimeout(None)
        self.answers = self.connection.makefile()

    def __getattr__(self, name):
        def call(*arguments):
            self.connection.sendall(json.dumps([name, *arguments]).encode() + b"\n")
            answer = json.loads(self.answers.readline() or '{"error": "the connection is closed"}')
            if "error" in answer:
                raise Failed(f"the other side: {answer['error']}")
            return answer["result"]

        return call


def serve():
    """Executes the client's requests until it disconnects."""
    endpoint: Any = None

    def renew():
        nonlocal endpoint
        if endpoint:
            endpoint.context.close()
        endpoint = Endpoint()
        return endpoint.about()

    calls: dict[str, Callable] = {
        "renew": renew,
        "meet": lambda peer: endpoint.meet(peer),
        "receive": lambda count: endpoint.receive(count),
        "complete": lambda count: endpoint.complete(count),
        "values": lambda: endpoint.read_values(),
        "fail": lambda: endpoint.fail(),
        "content": lambda length: endpoint.memory.memory[:length].hex(),
        "clear": lambda length: endpoint.memory.memory.__setitem__(slice(0, length), bytes(length)),
    }
    with socket.create_server(("", PORT)) as listener:
        connection, _ = listener.accept()
    with connection, connection.makefile() as requests:
        for line in requests:
            name, *arguments = json.loads(line)
            try:
                answer = {"result": calls[name](*arguments)}
            except (OSError, Failed) as error:
                answer = {"error": f"{name}: {error}"}
            connection.sendall(json.dumps(answer).encode() + b"\n")


suite = Suite()
chance = random.Random(4)


@contextlib.contextmanager
def pair():
    """Creates an endpoint here and one at the server, and connects them."""
    endpoint = Endpoint()
    try:
        endpoint.meet(server.renew())
        server.meet(endpoint.about())
        yield endpoint
    finally:
        endpoint.context.close()


def nothing():
    return {name: [0, 0] for name in ATTACHED}


def many(operations, count):
    """Posts many of these operations in random order, each with a random id."""
    with pair() as endpoint:
        here, there = nothing(), nothing()
        done = 0
        while done < count:
            batch = [chance.choice(operations) for _ in range(min(DEPTH, count - done))]
            receives = sum("recv" in COUNTED[operation][1] for operation in batch)
            server.receive(receives)
            ids = [chance.randrange(1 << 64) for _ in batch]
            for operation, number in zip(batch, ids, strict=True):
                endpoint.post(operation, number, chance.choice(LENGTHS if operation == SEND else LONG_LENGTHS))
                mine, others = COUNTED[operation]
                here[mine][0] += 1
                for other in others:
                    there[other][0] += 1
            completions = endpoint.complete(len(batch))
            equal({(is_send, status) for is_send, _, status in completions}, {(True, 0)}, "statuses of requests")
            equal(sorted(number for _, number, _ in completions), sorted(ids), "their ids")
            equal({status for _, _, status in server.complete(receives)} - {0}, set(), "errors of receives")
            done += len(batch)
            if done // DEPTH % PROGRESS == 0:
                print(f"# {done} of {count} operations", flush=True)
        equal(endpoint.read_values(), here, "counters of this side")
        equal(server.values(), there, "counters of the peer")


def failing(operation, **wrong):
    """Posts operations that fail, and one that succeeds."""
    with pair() as endpoint:
        for number in range(3):
            endpoint.post(operation, 1 << 40 | number, 100, **wrong)
        failed = endpoint.complete(3)
        equal(all(status for _, _, status in failed), True, "whether all have failed")
        equal(sorted(number for _, number, _ in failed), [1 << 40 | number for number in range(3)], "their ids")
        equal(endpoint.read_values(), {**nothing(), COUNTED[operation][0]: [0, 3]}, "counters of this side")
        equal(server.values(), nothing(), "counters of the peer")
        server.receive(1)
        endpoint.post(operation, 7, 100)
        equal(endpoint.complete(1), [(True, 7, 0)], "completion of a valid request")
        equal(endpoint.read_values(), {**nothing(), COUNTED[operation][0]: [1, 3]}, "counters of this side afterwards")


@suite.case("receives that fail are counted", needs_emulator=False)
def failed_receives():
    with pair():
        server.receive(5)
        server.fail()
        equal({status != 0 for _, _, status in server.complete(5)}, {True}, "whether all have failed")
        equal(server.values(), {**nothing(), "recv": [0, 5]}, "counters of the peer")


@suite.case("sends that are flushed are counted", needs_emulator=False)
def flushed():
    with pair() as endpoint:
        # They wait, because the peer has posted no receives.
        for number in range(4):
            endpoint.post(SEND, number, 10)
        endpoint.fail()
        equal({status != 0 for _, _, status in endpoint.complete(4)}, {True}, "whether all have failed")
        equal(endpoint.read_values(), {**nothing(), "send": [0, 4]}, "counters of this side")


@suite.case(f"RDMA writes of 0 to {INLINE} bytes of inline data", needs_emulator=False)
def inline_writes():
    with pair() as endpoint:
        for length in range(INLINE + 1):
            data = chance.randbytes(length)
            server.clear(INLINE + 16)
            endpoint.post(WRITE, length, length, inline=data)
            equal(endpoint.complete(1), [(True, length, 0)], f"completion of {length} bytes")
            equal(bytes.fromhex(server.content(INLINE + 16)), data + bytes(INLINE + 16 - length), f"{length} bytes at the peer")


def add():
    for operation in COUNTED:
        name = f"each {operation} is counted once"
        suite.add(name, lambda operation=operation: many([operation], OPERATIONS // 10), needs_emulator=False)
    suite.add(f"{OPERATIONS} operations of all kinds", lambda: many(list(COUNTED), OPERATIONS), needs_emulator=False)
    for operation in (READ, WRITE):
        suite.add(f"{operation} of memory that is not the peer's", lambda op=operation: failing(op, rkey=0x123456), needs_emulator=False)
    suite.add("send to a queue pair that does not exist", lambda: failing(SEND, qpn=0xFFF0), needs_emulator=False)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        _, name = sys.argv[1:]
        server = Server(name)
        add()
        suite.run()
