#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Brings a guest's devices to states in which a power-off may find them. test_power_off.py then reads its effects in the trace.

The first device is in use by a process, the second has no driver, the third does not respond to a reset.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kselftest"))

from objects import CompletionQueue, Memory, MemoryRegion, QueuePair
from selftest import DRIVER, FUNCTIONS, equal
from uverbs import opened

used, unbound, silent = FUNCTIONS
equal(unbound.unbind(), "ok", "unbind")
silent.inject({"reset": True}, {"never_starts": True})
if DRIVER == "rust":
    # As in probe_errors.py. The C driver's doorbell in a reset is one of the known differences.
    used.inject({"reset": True}, {"with_event": True})
    used.set(reset_ms=1000, reset_timeout=50)

ready, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    context = opened(used)
    pd, _ = context.alloc_pd()
    cq = CompletionQueue(context)
    memory = Memory(1 << 20)
    region = MemoryRegion(context, pd, memory.address, memory.length)
    qp = QueuePair(context, pd, cq.handle, cq.handle)
    qp.to_rts()
    os.write(writer, b"+")
    # Sleeps until the power-off.
    time.sleep(3600)
os.close(writer)
equal(os.read(ready, 1), b"+", "the byte of the process that uses the device")
