#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Writes and reads by Mooncake's transfer engine over EFA, whose contents are checked.

usage: mooncake_engine.py [SERVER]      the second host's argument is the name of the first one
"""

import os
import socket
import sys

import numpy as np
from link import Link
from mooncake.engine import TransferEngine

PORT = 7201
SIZES = (1, 4096, 65537, 1 << 20, 32 << 20)
# Transfers of a batch, and bytes of each.
BATCH, PIECE = 64, 8192


def main(words):
    # In seconds. The defaults are too short for an emulated CPU.
    os.environ |= {"MC_TRANSFER_TIMEOUT": "300", "MC_HANDSHAKE_CONNECT_TIMEOUT": "300"}
    link, engine = Link(PORT, words), TransferEngine()
    address = socket.gethostbyname(socket.gethostname())
    assert engine.initialize(address, "P2PHANDSHAKE", "efa", "") == 0
    # Before the first transfer, as the engine asks only then what the other one has registered.
    target, mine, back = (np.zeros(max(SIZES), np.uint8) for _ in range(3))
    for memory in (target, mine, back):
        assert engine.register_memory(memory.ctypes.data, memory.size) == 0
    other = link.swap(f"{address}:{engine.get_rpc_port()}")
    there = int(link.swap(target.ctypes.data))
    for size in SIZES:
        mine[:size] = link.pattern(size)
        link.by_turns(lambda size=size: engine.transfer_sync_write(other, mine.ctypes.data, there, size))
        assert (target[:size] == link.pattern(size, mine=False)).all() and not target[size:].any(), size
        link.by_turns(lambda size=size: engine.transfer_sync_read(other, back.ctypes.data, there, size))
        assert (back[:size] == mine[:size]).all() and not back[size:].any(), size
        target[:] = back[:] = 0
        link.swap("cleared")
        print(f"{size} bytes written and read", flush=True)
    places = [PIECE * number for number in range(BATCH)]
    mine[: BATCH * PIECE] = link.pattern(BATCH * PIECE)
    # The last piece is written to the first place.
    sources, targets = [mine.ctypes.data + place for place in places], [there + place for place in reversed(places)]
    link.by_turns(lambda: engine.batch_transfer_sync_write(other, sources, targets, [PIECE] * BATCH))
    wanted = link.pattern(BATCH * PIECE, mine=False).reshape(BATCH, PIECE)[::-1].reshape(-1)
    assert (target[: BATCH * PIECE] == wanted).all()
    link.swap("batch checked")
    print("all is as expected", flush=True)
    # The engine's threads do not end.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
