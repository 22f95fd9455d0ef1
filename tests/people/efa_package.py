#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Messages, writes and reads by the package efa, whose contents are checked; and what a device refuses.

usage: efa_package.py [SERVER]      the second host's argument is the name of the first one
"""

import sys

import efa
import numpy as np
from link import Link

PORT, QKEY = 7200, 0x1EFA
MESSAGES = (1, 63, 64, 1024, 4096, 8192)
REGIONS = (1, 4097, 1 << 20, 16 << 20)
ACCESS = efa.AccessFlags.LOCAL_WRITE | efa.AccessFlags.REMOTE_WRITE | efa.AccessFlags.REMOTE_READ


class Side(Link):
    """One of the two hosts."""

    def __init__(self, words):
        super().__init__(PORT, words)
        self.context = efa.get_efa_device_list()[0].open()
        self.pd = self.context.alloc_pd()

    def connect(self, kind):
        self.cq = self.context.create_cq(256)
        attributes = efa.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=kind, max_send_wr=64, max_recv_wr=64)
        self.qp = self.pd.create_qp(attributes).prepare(qkey=QKEY)
        mine = efa.local_endpoint_info(self.qp, qkey=QKEY).to_bytes().hex()
        self.peer = efa.EndpointInfo.from_bytes(bytes.fromhex(self.swap(mine))).peer(self.pd)

    def complete(self, count):
        """Waits for completions, and returns them. The suite ends a program that waits for ever."""
        found = []
        while len(found) < count:
            found += self.cq.poll(16)
        return found

    def post(self, opcode, region, **more):
        self.qp.post_send(efa.SendWR(sg_list=[region.sge()], opcode=opcode, send_flags=efa.SendFlags.SIGNALED, dest=self.peer, **more))

    def messages(self, kind):
        """Both sides send each size, with an immediate."""
        self.connect(kind)
        # A datagram begins with a global route header.
        header = 40 if kind == efa.QPType.UD else 0
        memory = [np.zeros(MESSAGES[-1] + header, np.uint8) for _ in MESSAGES]
        regions = [efa.reg_tensor(self.pd, one, ACCESS) for one in memory]
        self.qp.post_recv([efa.RecvWR(wr_id=number, sg_list=[region.sge()]) for number, region in enumerate(regions)])
        self.swap("receives are posted")
        sent = [efa.reg_tensor(self.pd, self.pattern(size), ACCESS) for size in MESSAGES]
        for size, region in zip(MESSAGES, sent, strict=True):
            self.post(efa.WROpcode.SEND_WITH_IMM, region, imm_data=size)
        done = self.complete(2 * len(MESSAGES))
        received = [one for one in done if one.wc_flags & efa.WCFlags.WITH_IMM]
        for one in done:
            one.raise_for_status()
        # Messages may overtake each other.
        assert sorted(one.imm_data for one in received) == sorted(MESSAGES)
        for one in received:
            assert one.byte_len == one.imm_data + header, one.byte_len
            assert (memory[one.wr_id][header : one.byte_len] == self.pattern(one.imm_data, mine=False)).all()
        self.swap("messages are checked")

    def regions(self):
        """Both sides write a region of the other one, and read it."""
        self.connect(efa.QPType.SRD)
        for size in REGIONS:
            target = np.zeros(size, np.uint8)
            region = efa.reg_tensor(self.pd, target, ACCESS)
            address, key = map(int, self.swap(f"{region.addr} {region.rkey}").split())
            written = efa.reg_tensor(self.pd, self.pattern(size), ACCESS)
            self.qp.post_send(efa.write_wrs(written, self.peer, address, key, chunk=1 << 20))
            count = -(-size // (1 << 20))
            for one in self.complete(count):
                one.raise_for_status()
            self.swap("written")
            assert (target == self.pattern(size, mine=False)).all(), size
            back = np.zeros(size, np.uint8)
            into = efa.reg_tensor(self.pd, back, ACCESS)
            self.qp.post_send(efa.read_wrs(into, self.peer, address, key, chunk=1 << 20))
            for one in self.complete(count):
                one.raise_for_status()
            assert (back == self.pattern(size)).all(), size
            self.swap("read")
            print(f"{size} bytes written and read", flush=True)

    def refusals(self):
        """Requests that a device refuses, each by a queue pair of its own."""
        small = np.zeros(4096, np.uint8)
        region = efa.reg_tensor(self.pd, small, ACCESS)
        private = efa.reg_tensor(self.pd, np.zeros(4096, np.uint8), efa.AccessFlags.LOCAL_WRITE)
        address, key, other, hidden = map(int, self.swap(f"{region.addr} {region.rkey} {private.addr} {private.rkey}").split())
        mine = efa.reg_tensor(self.pd, np.ones(4096, np.uint8), ACCESS)
        for what, place, of in (("key", address, key ^ 1), ("end", address + 1, key), ("access", other, hidden)):
            for opcode in (efa.WROpcode.RDMA_WRITE, efa.WROpcode.RDMA_READ):
                self.connect(efa.QPType.SRD)
                self.post(opcode, mine, remote_addr=place, rkey=of)
                [one] = self.complete(1)
                assert not one.is_success, what
                print(f"{opcode.name} with a wrong {what}: {one.status_str}, {one.vendor_err}", flush=True)
                self.swap("refused")
        assert not small.any()


def main(words):
    side = Side(words)
    side.messages(efa.QPType.SRD)
    side.messages(efa.QPType.UD)
    side.regions()
    side.refusals()
    print("all is as expected", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
