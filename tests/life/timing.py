# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Durations: the only file of this folder that reads a clock and applies time limits.

Limits apply with EFA_LIMITS=1 only, which `make check-life` sets in a separate run. If a limit is exceeded because the machine stalled,
the result is inconclusive. That is printed and counted, and is no failure.
"""

import mmap
import os
import struct
import time
from pathlib import Path

from selftest import Failed, emulator

# Whether time limits apply.
COUNTS = os.environ.get("EFA_LIMITS") == "1"
# Seconds between two reads of the clock by the process that measures stalls of this guest, and the delay that is normal for it.
TICK, LATENESS = 0.005, 0.005
# File in which the host reports the total time of its stalls, in microseconds: see tools/lib/efa_tools/stalls.py.
HOST = "/run/efa-rs/stalls"
# Ratio by which a delay may exceed the stalls that cause it, as an operation waits for more than one processor.
FACTOR = 2
# Scheduling priority above that of the tests' own programs.
PRIORITY = 2

now = time.monotonic


def queued(pid="self"):
    """Returns the seconds in which a process has been able to run, but other processes had the processors.

    These depend on the machine and on the other processes, not on the driver. Limits of operations under load do not include them.
    Where no limits apply, the result is 0: the debug kernel does not count them.
    """
    if not COUNTS:
        return 0.0
    _, nanoseconds, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(nanoseconds) / 1e9


class Stalls:
    """Total time of stalls of the guest, since this object was created, and of its host."""

    def __init__(self):
        self.shared = mmap.mmap(-1, mmap.PAGESIZE)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.watch(os.getppid())
            finally:
                os._exit(0)
        os.sched_setscheduler(self.pid, os.SCHED_FIFO, os.sched_param(PRIORITY))

    def watch(self, parent):
        """Adds up the delays of its own wake-ups."""
        if emulator:
            emulator.close()
        total, before = 0.0, now()
        while os.getppid() == parent:
            time.sleep(TICK)
            after = now()
            late = after - before - TICK
            if late > LATENESS:
                total += late
                struct.pack_into("d", self.shared, 0, total)
            before = after

    def total(self):
        """Returns the sum for guest and host in seconds."""
        (guest,) = struct.unpack_from("d", self.shared, 0)
        try:
            with open(HOST) as file:
                host = int(file.read() or 0) / 1e6
        except FileNotFoundError:
            host = 0
        return guest + host


class Limits:
    """Time limits, and the inconclusive results of a test."""

    def __init__(self):
        self.stalls = Stalls() if COUNTS else None
        self.begin()

    def begin(self):
        """Starts a test."""
        self.longest, self.inconclusive = {}, []
        self.at_first = self.stalls.total() if self.stalls else 0

    def begin_round(self):
        """Starts a round. Only stalls from here on excuse a delay."""
        self.at_first = self.stalls.total() if self.stalls else 0

    def check(self, what, seconds, limit):
        """Fails if a duration exceeds LIMIT, unless the machine has stalled since the round began."""
        if not self.stalls:
            return
        self.longest[what] = max(self.longest.get(what, 0), seconds)
        if seconds <= limit:
            return
        text = f"{what} after {seconds:.2f} s, which may be {limit:.1f}"
        stalled = self.stalls.total() - self.at_first
        if seconds - limit > FACTOR * stalled:
            raise Failed(f"{text}, and the machine stalled for {stalled:.2f} s")
        self.inconclusive.append(f"{text}, while the machine stalled for {stalled:.2f} s")
        print(f"# inconclusive: {self.inconclusive[-1]}", flush=True)

    def summary(self):
        """Returns the longest times, as text to append to another."""
        return "".join(f", {what} within {seconds:.2f} s" for what, seconds in sorted(self.longest.items()))
