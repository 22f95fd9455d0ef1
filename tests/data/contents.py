#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Moves random data between two guests by every operation of EFA, and checks every byte of both sides' memory.

One side is the server (contents.py serve), which executes requests of the client (contents.py test GUEST) over TCP.
contents.py soak GUEST... sends many messages between all guests.
"""

import contextlib
import ctypes
import hashlib
import json
import mmap
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "kselftest"), str(TESTS / "abi")]

import pyverbs.enums as e
import pyverbs.providers.efa.efa_enums as efa_e
from memory import MAP_NORESERVE, PAGE, READ, WRITE, Area, map_memory
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.providers.efa.efadv import EfaContext, EfaQPInitAttr, SRDQPEx
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR
from selftest import PATIENCE, Failed, Suite, equal, wait_until

PORT = 7100
QKEY = 0x1EFA
QKEY_UD = 0x2EFA
IMMEDIATE = 0x12345678
# Bytes of the space in front of the data that a UD queue pair receives.
GRH = 40
KIB, MIB = 1 << 10, 1 << 20
# Lengths of large transfers. Each side's memory holds the largest one, and bytes around it that must not change.
LARGE = 64 * KIB + 1, MIB + 5, 8 * MIB
LARGEST = LARGE[-1]
MEMORY = LARGEST + 64 * KIB
QUEUE = 256
RNR_RETRY_FOREVER = 7
CQ_ENTRIES = 4096
# Numbers of small messages: between two guests, and between all of them.
MESSAGES, SOAK_MESSAGES = 1000, int(os.environ.get("EFA_MESSAGES", "50000"))
# Slot size of these messages in memory. QUEUE slots for receives precede WINDOW slots for sends. Completions are polled after BATCH
# posted messages.
SLOT, WINDOW, BATCH = 16 * KIB, 64, 16
# Messages between two progress lines. A silent side counts as hung.
PROGRESS = 1000
LENGTHS = (0, 1, 17, 60, 500, 1500, 4096, 8000)
# A region with a page list so long that two chunks refer to it. A page of the list, a piece of it and a chunk begin at
# multiples of these numbers of pages. The region maps fewer pages repeatedly, a number that divides none of these.
LIST_PAGE, LIST_PIECE, LIST_CHUNK = 512, 8192, 510 * 512
FAR_PAGES, FAR_MEMORY_PAGES = LIST_CHUNK + 2 * LIST_PIECE, 1021

OPERATIONS_UD = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM
OPERATIONS = OPERATIONS_UD | e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | e.IBV_QP_EX_WITH_RDMA_READ
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


# Source of both sides' data, the same on both.
NOISE = random.Random(0).randbytes(MEMORY)
# Distance in NOISE between the data of consecutive seeds. No multiple of a page or a packet, so that no two seeds' data match in places.
STEP = 104729


def noise(seed, length):
    """Returns a seed's data, the same on both sides. It is a part of NOISE, as new random data takes long on an emulated CPU."""
    start = seed * STEP % MEMORY
    return (NOISE[start:] + NOISE[:start])[:length]


def digest(data):
    return hashlib.blake2b(data).hexdigest()


def message(sender, number):
    """Returns one of many small messages. It begins with its sender and number, which determine its length and content."""
    start = (number * 7919 + sender * 104729) % (MIB - LENGTHS[-1])
    return bytes([sender]) + number.to_bytes(4) + NOISE[start : start + LENGTHS[(number + number // 11) % len(LENGTHS)]]


class Side:
    """A guest's objects and memory. The client calls the server's methods, with arguments and results in JSON."""

    def __init__(self):
        self.context = EfaContext(name=min(os.listdir("/sys/class/infiniband")))
        self.device = self.context.query_efa_device()
        self.mtu = self.context.query_port(1).max_msg_sz
        self.pd = PD(self.context)
        self.memory = mmap.mmap(-1, MEMORY)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.mr = MR(self.pd, MEMORY, ACCESS, address=self.address)
        self.qps, self.handles = [], {}

    def open(self, ud=False, count=1, unsolicited=False, events=False, inline=0):
        """Creates queue pairs in place of the existing ones; returns the data by which a peer reaches them and the memory."""
        self.close()
        self.channel: Any = CompChannel(self.context) if events else None
        # Separate completion queues for sends and receives, so that a wait for one kind takes no completions of the other.
        self.send_cq = CQ(self.context, CQ_ENTRIES, None, self.channel)
        self.recv_cq = CQ(self.context, CQ_ENTRIES, None, self.channel)
        self.ud = ud
        for _ in range(count):
            self.qps.append(self.make_qp(ud, unsolicited, inline))
        gid = str(self.context.query_gid(1, 0).gid)
        return {"gid": gid, "qpns": [qp.qp_num for qp in self.qps], "rkey": self.mr.rkey, "address": self.address}

    def make_qp(self, ud, unsolicited, inline):
        attributes = QPInitAttrEx(
            cap=QPCap(max_send_wr=QUEUE, max_recv_wr=QUEUE, max_send_sge=2, max_recv_sge=2, max_inline_data=inline),
            qp_type=e.IBV_QPT_UD if ud else e.IBV_QPT_DRIVER,
            scq=self.send_cq,
            rcq=self.recv_cq,
            pd=self.pd,
            send_ops_flags=OPERATIONS_UD if ud else OPERATIONS,
            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        )
        if ud:
            qp = QPEx(self.context, attributes)
        else:
            efa_attributes = EfaQPInitAttr()
            efa_attributes.driver_qp_type = efa_e.EFADV_QP_DRIVER_TYPE_SRD
            if unsolicited:
                efa_attributes.flags = efa_e.EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV
            qp = SRDQPEx(self.context, attributes, efa_attributes)
        attributes = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attributes.qkey = QKEY_UD if ud else QKEY
        attributes.pkey_index = 0
        attributes.rnr_retry = RNR_RETRY_FOREVER
        qp.modify(attributes, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_QKEY)
        attributes.qp_state = e.IBV_QPS_RTR
        qp.modify(attributes, e.IBV_QP_STATE)
        attributes.qp_state = e.IBV_QPS_RTS
        qp.modify(attributes, e.IBV_QP_STATE | e.IBV_QP_SQ_PSN | (0 if ud else e.IBV_QP_RNR_RETRY))
        return qp

    def close(self):
        """Destroys the queue pairs."""
        for thing in (*self.qps, *self.handles.values()):
            thing.close()
        if self.qps:
            self.send_cq.close()
            self.recv_cq.close()
            if self.channel:
                self.channel.close()
        self.qps, self.handles = [], {}

    def open_far(self):
        """Registers a region of very many pages, of which only some are distinct; returns its rkey and address."""
        file = os.memfd_create("far")
        os.truncate(file, FAR_MEMORY_PAGES * PAGE)
        self.far = Area(FAR_PAGES * PAGE, prot=0, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE).address
        # The mappings of the file end at odd pages of the region, so that it can't be registered in larger pages.
        for page in range(0, FAR_PAGES, FAR_MEMORY_PAGES):
            pages = min(FAR_MEMORY_PAGES, FAR_PAGES - page)
            map_memory(pages * PAGE, READ | WRITE, mmap.MAP_SHARED, file, address=self.far + page * PAGE)
        os.close(file)
        self.far_mr = MR(self.pd, FAR_PAGES * PAGE, ACCESS, address=self.far)
        return {"rkey": self.far_mr.rkey, "address": self.far}

    def peek_far(self, offset, length):
        """Returns some bytes of the region of open_far(), in hexadecimal."""
        return ctypes.string_at(self.far + offset, length).hex()

    def close_far(self):
        self.far_mr.close()

    def fill(self, seed):
        """Fills the memory with a seed's data."""
        self.memory[:] = noise(seed, MEMORY)

    def sum(self):
        """Returns a digest of the memory."""
        return digest(self.memory)

    def sges(self, places):
        return [SGE(self.address + offset, length, self.mr.lkey) for offset, length in places]

    def receive(self, places, number=1, qp=0):
        """Posts a receive into places, which are pairs of offset and length."""
        sges = self.sges(places)
        self.qps[qp].post_recv(RecvWR(wr_id=number, num_sge=len(sges), sg=sges))

    def send(self, peer, operation, places, number=1, qp=0, inline=False, target=0, immediate=None):
        """Posts a send work request to one of the peer's queue pairs; TARGET is an offset in the peer's memory."""
        endpoint = self.qps[qp]
        endpoint.wr_start()
        endpoint.wr_id = number
        endpoint.wr_flags = e.IBV_SEND_SIGNALED
        where = (peer["rkey"], peer["address"] + target)
        if operation == "send":
            endpoint.wr_send() if immediate is None else endpoint.wr_send_imm(immediate)
        elif operation == "write":
            endpoint.wr_rdma_write(*where) if immediate is None else endpoint.wr_rdma_write_imm(*where, immediate)
        else:
            endpoint.wr_rdma_read(*where)
        self.know(peer["gid"])
        endpoint.wr_set_ud_addr(self.handles[peer["gid"]], peer["qpns"][qp], QKEY_UD if self.ud else QKEY)
        if inline:
            ((offset, length),) = places
            endpoint.wr_set_inline_data(self.address + offset, length)
        else:
            endpoint.wr_set_sge_list(len(places), self.sges(places))
        endpoint.wr_complete()

    def know(self, gid):
        """Creates the address handle of a peer, without which a device accepts no RDMA from it."""
        if gid not in self.handles:
            route = GlobalRoute(dgid=GID(gid), sgid_index=0)
            self.handles[gid] = AH(self.pd, attr=AHAttr(port_num=1, is_global=1, gr=route))

    def poll(self, queue, count=1):
        """Waits for completions; fails if any of them has an error status."""
        found = self.completions(queue, count)
        bad = [completion.status for completion in found if completion.status != e.IBV_WC_SUCCESS]
        if bad:
            raise Failed(f"{len(bad)} of {count} completions are bad: status {bad[0]}")
        return found

    @staticmethod
    def completions(queue, count):
        """Waits for `count` completions, whatever their status."""
        found = []
        while len(found) < count:
            found.extend(wait_until(lambda: queue.poll(count - len(found))[1], f"completion {len(found) + 1} of {count}"))
        return found

    def received(self):
        """Waits for a received message; returns its number, length, immediate data or None, opcode and sender."""
        (wc,) = self.poll(self.recv_cq)
        immediate = socket.ntohl(wc.imm_data) if wc.wc_flags & e.IBV_WC_WITH_IMM else None
        return [wc.wr_id, wc.byte_len, immediate, wc.opcode, wc.src_qp]

    def sent(self, count=1):
        """Waits for completions of sends; returns their numbers."""
        return [wc.wr_id for wc in self.poll(self.send_cq, count=count)]

    def arm(self):
        """Requests a completion event for the next received message."""
        self.recv_cq.req_notify()

    def await_event(self):
        """Waits for the event, and acknowledges it."""
        queue = self.channel.get_cq_event(self.recv_cq)
        equal(queue is None or queue is self.recv_cq, True, "the queue of the event")
        self.recv_cq.ack_events(1)

    def peek(self, offset, length):
        """Returns some bytes of the memory, in hexadecimal."""
        return self.memory[offset : offset + length].hex()

    def ready_for_messages(self):
        """Posts receives for many small messages, one for each slot."""
        for slot in range(QUEUE):
            self.receive([(slot * SLOT, SLOT)], slot)

    def exchange(self, peers, me, count):
        """Sends COUNT messages to the peers in turn, and receives theirs; returns the number of errors of each kind.

        PEERS has the results of open() by the number of each side, including ME. All sides do this at the same time.
        """
        others = [(int(number), peer) for number, peer in peers.items() if int(number) != me]
        # Sender and number of each message for this side, as each side sends to the others in turn.
        turns = {number: [int(other) for other in peers if int(other) != number].index(me) for number, _ in others}
        awaited = {(number, one) for number, turn in turns.items() for one in range(turn, count, len(others))}
        free, sent, completed, taken = list(range(QUEUE, QUEUE + WINDOW)), 0, 0, 0
        found, seen = dict.fromkeys(("bad completions", "wrong contents", "twice", "missing"), 0), set()

        def step():
            """Sends while slots are free, and takes completions; returns whether there were any."""
            nonlocal sent, completed, taken
            for _ in range(min(len(free), count - sent, BATCH)):
                slot, data = free.pop(), message(me, sent)
                self.memory[slot * SLOT : slot * SLOT + len(data)] = data
                self.send(others[sent % len(others)][1], "send", [(slot * SLOT, len(data))], slot)
                sent += 1
            polled, completions = self.send_cq.poll(WINDOW)
            for wc in completions if polled else ():
                found["bad completions"] += wc.status != e.IBV_WC_SUCCESS
                free.append(wc.wr_id)
                completed += 1
            received, completions = self.recv_cq.poll(WINDOW)
            for wc in completions if received else ():
                taken += 1
                self.take(wc, awaited, seen, found)
                if taken % PROGRESS == 0:
                    print(f"# {taken} of {len(awaited)} messages have arrived", flush=True)
            return polled > 0 or received > 0

        while completed < count or taken < len(awaited):
            try:
                wait_until(step, "the next message, or the completion of one")
            except Failed:
                # Missing messages are counted below.
                break
        return {**found, "missing": len(awaited - seen)}

    def late(self):
        """Returns the number of messages that arrive after all expected ones."""
        time.sleep(0.5)
        return max(self.recv_cq.poll(QUEUE)[0], 0)

    def take(self, wc, awaited, seen, found):
        """Checks a received message, and posts a receive for its slot again."""
        start = wc.wr_id * SLOT
        data = self.memory[start : start + wc.byte_len]
        one = data[0] if data else -1, int.from_bytes(data[1:5])
        if wc.status != e.IBV_WC_SUCCESS:
            found["bad completions"] += 1
        elif one not in awaited or data != message(*one):
            found["wrong contents"] += 1
        elif one in seen:
            found["twice"] += 1
        else:
            seen.add(one)
        # Old content must not pass for that of the next message.
        self.memory[start : start + 5] = bytes(5)
        self.receive([(start, SLOT)], wc.wr_id)


class Server:
    """A proxy of the other guest's side, which executes the methods."""

    def __init__(self, host):
        self.connection = socket.create_connection((host, PORT), PATIENCE)
        self.connection.settimeout(None)
        self.stream = self.connection.makefile("rb")

    def start(self, method, **arguments):
        """Calls a method without waiting for its result."""
        self.connection.sendall(json.dumps([method, arguments]).encode() + b"\n")

    def result(self):
        """Waits for the result of a call."""
        reply = json.loads(self.stream.readline() or '{"failed": "the connection is closed"}')
        if "failed" in reply:
            raise Failed(f"the server: {reply['failed']}")
        return reply["result"]

    def __getattr__(self, method):
        def call(**arguments):
            self.start(method, **arguments)
            return self.result()

        return call


def serve(side):
    """Serves one client until it disconnects."""
    with socket.create_server(("", PORT)) as listener:
        connection, _ = listener.accept()
    # The server ends with its client, however that ends.
    with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as requests:
        for line in requests:
            method, arguments = json.loads(line)
            try:
                reply = {"result": getattr(side, method)(**arguments)}
            except Exception as error:
                reply = {"failed": f"{type(error).__name__}: {error}"}
            connection.sendall(json.dumps(reply).encode() + b"\n")


class Test:
    """Both sides, with their memory full of known noise."""

    def __init__(self, host):
        self.ours, self.server = Side(), Server(host)
        self.seed = 0

    def open(self, **options):
        self.peer = self.server.open(**options)
        self.server.know(gid=self.ours.open(**options)["gid"])

    def fill(self):
        """Fills both memories with new data. `mine` and `theirs` have their expected contents."""
        self.seed += 2
        self.ours.fill(self.seed)
        self.server.fill(seed=self.seed + 1)
        self.mine, self.theirs = bytearray(noise(self.seed, MEMORY)), bytearray(noise(self.seed + 1, MEMORY))

    def look(self, what):
        """Fails unless every byte on both sides has its expected value."""
        equal(self.server.sum(), digest(self.theirs), f"{what}: the peer's memory")
        equal(self.ours.memory[:] == self.mine, True, f"{what}: whether our memory has the expected contents")

    def taken(self, places):
        return b"".join(self.mine[offset : offset + length] for offset, length in places)

    def put(self, memory, places, data):
        for offset, length in places:
            memory[offset : offset + min(length, len(data))] = data[:length]
            data = data[length:]

    def message(self, source, target, immediate=None, inline=False):
        """Sends a message from places of this side to places of the peer, and checks its completions."""
        data = self.taken(source)
        self.server.receive(places=target, number=7)
        self.ours.send(self.peer, "send", source, 9, inline=inline, immediate=immediate)
        equal(self.ours.sent(), [9], "ids of completed requests")
        header = GRH if self.ours.ud else 0
        number, length, got, opcode, sender = self.server.received()
        equal((number, length, got), (7, header + len(data), immediate), "number, length and immediate data")
        equal((opcode, sender), (e.IBV_WC_RECV, self.ours.qps[0].qp_num), "opcode and sender")
        (first, room), *rest = target
        # A device may write anything into the header's space.
        self.theirs[first : first + header] = bytes.fromhex(self.server.peek(offset=first, length=header))
        self.put(self.theirs, [(first + header, room - header), *rest], data)


suite = Suite()
test: Any = None


def sizes(*limits):
    """Returns the limits, and the sizes next to them."""
    return sorted({max(size + more, 0) for size in limits for more in (-1, 0, 1)})


@suite.case("SRD send: every length arrives unchanged", needs_emulator=False)
def srd_send():
    test.open()
    test.fill()
    for number, size in enumerate([*sizes(0, 32, 64, 80, 4096, 8192), test.ours.mtu]):
        test.message([(64 * KIB * number + number, size)], [(96 * KIB * number + 3, size + number)])
    test.look("after all lengths")


@suite.case("SRD send: inline", needs_emulator=False)
def srd_inline():
    # More than 32 bytes make libefa use work requests of 128 bytes.
    for most in sorted({min(32, test.ours.device.inline_buf_size), test.ours.device.inline_buf_size}):
        test.open(inline=most)
        test.fill()
        for number, size in enumerate((0, 1, most - 1, most)):
            test.message([(1000 * number + 5, size)], [(3000 * number + 1, 2000)], inline=True)
        test.look(f"after at most {most} bytes inline")


@suite.case("SRD send: two pieces into two, with immediate data", needs_emulator=False)
def srd_pieces():
    test.open()
    test.fill()
    for number, (first, second) in enumerate(((1, 8000), (4000, 4000), (8000, 1), (4096, 0), (0, 64))):
        base = 128 * KIB * number
        source = [(base + 17, first), (base + 40000, second)]
        for shift, room in enumerate((1, 4096, 5000)):
            target = [(base + 20000 * shift + 9, room), (base + 20000 * shift + 9000, 9000)]
            test.message(source, target, immediate=IMMEDIATE + number)
    test.look("after all pieces")


def remote(operation, largest=LARGEST, **options):
    """Moves data of every length by writes or reads."""
    for number, size in enumerate([size for size in (*sizes(1, 64, 4096, 8928), *LARGE) if size <= largest]):
        if size == LARGEST:
            # The largest transfer writes to most of the memory.
            test.look("after all smaller lengths")
            test.fill()
        here, there = 24 * KIB * number % (MEMORY - size) // 2 + 3, 40 * KIB * number % (MEMORY - size) // 3 + 1
        test.ours.send(test.peer, operation, [(here, size)], 5, target=there, **options)
        yield size
        equal(test.ours.sent(), [5], "ids of completed requests")
        if operation == "write":
            test.theirs[there : there + size] = test.mine[here : here + size]
        else:
            test.mine[here : here + size] = test.theirs[there : there + size]
    test.look(f"after all lengths to {largest} bytes")


def rdma(operation):
    test.open()
    test.fill()
    for _ in remote(operation):
        pass


suite.add("RDMA write: every length arrives unchanged", lambda: rdma("write"), needs_emulator=False)
suite.add("RDMA read: every length arrives unchanged", lambda: rdma("read"), needs_emulator=False)


@suite.case("RDMA write and read: each page of a long list has its correct place", needs_emulator=False)
def long_list():
    test.open()
    test.fill()
    far = {**test.peer, **test.server.open_far()}
    here, back, length = 5, MIB + 3, 3 * PAGE + 1
    for number, page in enumerate((1, LIST_PAGE, LIST_PIECE, LIST_CHUNK, LIST_CHUNK + LIST_PAGE, FAR_PAGES - 2)):
        here += length
        data, target = test.mine[here : here + length], page * PAGE - length // 2
        test.ours.send(far, "write", [(here, length)], number, target=max(target, 0))
        equal(test.ours.sent(), [number], "ids of completed requests")
        equal(test.server.peek_far(offset=max(target, 0), length=length), data.hex(), f"data written around page {page}")
        test.ours.send(far, "read", [(back, length)], number, target=max(target, 0))
        equal(test.ours.sent(), [number], "ids of completed requests")
        equal(test.ours.peek(back, length), data.hex(), f"data read around page {page}")
    test.server.close_far()


def write_with_immediate(unsolicited):
    test.open(unsolicited=unsolicited)
    test.fill()
    if not unsolicited:
        for number in range(20):
            test.server.receive(places=[(number, 1)], number=number + 1)
    # Writes without immediate data test lengths of more packets.
    for number, size in enumerate(remote("write", LARGE[0], immediate=IMMEDIATE)):
        identity, length, got, opcode, sender = test.server.received()
        equal((length, got), (size, IMMEDIATE), "length and immediate data")
        equal((opcode, sender), (e.IBV_WC_RECV_RDMA_WITH_IMM, test.ours.qps[0].qp_num), "opcode and sender")
        equal(identity, 0 if unsolicited else number + 1, "number of the receive")


suite.add("RDMA write with immediate data takes a receive", lambda: write_with_immediate(False), needs_emulator=False)
suite.add(
    "RDMA write with immediate data takes no receive of an unsolicited queue pair", lambda: write_with_immediate(True), needs_emulator=False
)


@suite.case("four queue pairs write and read at once", needs_emulator=False)
def many_transfers():
    test.open(count=4)
    test.fill()
    size, half = 48 * KIB, MEMORY // 2
    order = list(range(half // size - 1))
    random.Random(1).shuffle(order)
    for number, slot in enumerate(order):
        # The first half of both memories is for writes, the second one for reads.
        write = number % 2 == 0
        here, there = (slot * size + 11, order[-slot - 1] * size + 5)
        here, there = (here, there) if write else (here + half, there + half)
        test.ours.send(test.peer, "write" if write else "read", [(here, size - 16)], number, qp=number % 4, target=there)
        to, source, at, start = (test.theirs, test.mine, there, here) if write else (test.mine, test.theirs, here, there)
        to[at : at + size - 16] = source[start : start + size - 16]
    equal(sorted(test.ours.sent(len(order))), list(range(len(order))), "ids of completed requests")
    test.look("after all transfers")


def arrive_once(ours, servers, count):
    """Sends COUNT messages from every guest to the others, all at once; fails if any kind of error has occurred."""
    sides = {0: ours} | dict(enumerate(servers, 1))
    peers = {number: side.open() for number, side in sides.items()}
    for side in sides.values():
        side.ready_for_messages()
    for number, server in enumerate(servers, 1):
        server.start("exchange", peers=peers, me=number, count=count)
    found = [ours.exchange(peers, 0, count), *(server.result() for server in servers)]
    total = {what: sum(one[what] for one in found) for what in found[0]}
    total["twice"] += sum(side.late() for side in sides.values())
    equal({what: number for what, number in total.items() if number}, {}, "messages")


suite.add(
    "many SRD messages in both directions: each arrives once and unchanged",
    lambda: arrive_once(test.ours, [test.server], MESSAGES // 2),
    needs_emulator=False,
)


@suite.case("a completion event for a received message", needs_emulator=False)
def events():
    test.open(events=True)
    test.fill()
    for number in range(20):
        test.server.receive(places=[(number * 8192, 8192)], number=number)
        test.server.arm()
        test.server.start("await_event")
        test.ours.send(test.peer, "send", [(number * 9000, 8000)], number)
        equal(test.ours.sent(), [number], "ids of completed requests")
        test.server.result()
        equal(test.server.received()[:2], [number, 8000], "number and length")
        test.theirs[number * 8192 : number * 8192 + 8000] = test.mine[number * 9000 : number * 9000 + 8000]
    test.look("after all events")


@suite.case("UD send: every length arrives unchanged, behind 40 bytes", needs_emulator=False)
def ud_send():
    test.open(ud=True)
    test.fill()
    for number, size in enumerate([*sizes(0, 64, 4096, 8192)]):
        for immediate in (None, IMMEDIATE):
            place = 64 * KIB * number + (20000 if immediate else 1)
            test.message([(place, size)], [(place + 2, GRH + size + number)], immediate=immediate)
    test.look("after all lengths")


def soak(hosts):
    """Exchanges messages between all guests."""
    soaking, guests = Suite(), len(hosts) + 1
    count = SOAK_MESSAGES // guests
    name = f"{count * guests:,} messages between {guests} guests: each arrives once and unchanged"
    soaking.add(name, lambda: arrive_once(Side(), [Server(host) for host in hosts], count), needs_emulator=False)
    soaking.run()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            serve(Side())
        case ["test", host]:
            test = Test(host)
            if os.environ.get("EFA_LOSS"):
                # UD has no retransmission of lost messages.
                suite.cases = [one for one in suite.cases if not one[0].startswith("UD")]
            suite.run()
        case ["soak", *hosts] if hosts:
            soak(hosts)
        case _:
            sys.exit("usage: contents.py serve, contents.py test GUEST, or contents.py soak GUEST...")
