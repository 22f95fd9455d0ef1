# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Durations: the one file of this folder that reads a clock and judges.

Limits count with EFA_LIMITS=1 only, which `make check-life` has in a run of its own. Whoever exceeds one because the machine stood still
meanwhile proves nothing: that is inconclusive, which is said and counted, and is no failure.
"""

import mmap
import os
import struct
import time

from selftest import SLOW, Failed, emulator

# Whether limits count.
COUNTS = os.environ.get("EFA_LIMITS") == "1"
# Seconds between two reads of the clock by the thread that measures stalls of this guest, and the delay that is normal for it.
TICK, LATENESS = 0.005, 0.005
# Where the host says, in microseconds, for how long it has stood still in all: see tools/lib/efa_tools/stalls.py.
HOST = "/run/efa-rs/stalls"
# How much longer something takes than its machine stands still: it waits for more than one processor.
FACTOR = 2
# Above the tests' own programs.
PRIORITY = 2

now = time.monotonic


class Stalls:
    """For how long the guest and its host have stood still since this was made."""

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
        """Adds up how late it is woken."""
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
        """Seconds, of guest and host."""
        (guest,) = struct.unpack_from("d", self.shared, 0)
        try:
            with open(HOST) as file:
                host = int(file.read() or 0) / 1e6
        except FileNotFoundError:
            host = 0
        return guest + host


class Limits:
    """Limits of time, and what of a test was inconclusive."""

    def __init__(self):
        self.stalls = Stalls() if COUNTS else None
        self.begin()

    def begin(self):
        """A test begins."""
        self.longest, self.inconclusive = {}, []
        self.at_first = self.stalls.total() if self.stalls else 0

    def begin_round(self):
        """What is then looked at happens from here on."""
        self.at_first = self.stalls.total() if self.stalls else 0

    def check(self, what, seconds, limit):
        """Fails if something took longer than LIMIT allows on a usual kernel, unless the machine stood still since the round has begun."""
        if not self.stalls:
            return
        limit *= SLOW
        self.longest[what] = max(self.longest.get(what, 0), seconds)
        if seconds <= limit:
            return
        text = f"{what} after {seconds:.2f} s, which may be {limit:.1f}"
        stood = self.stalls.total() - self.at_first
        if seconds - limit > FACTOR * stood:
            raise Failed(f"{text}, and the machine stood still for {stood:.2f} s")
        self.inconclusive.append(f"{text}, while the machine stood still for {stood:.2f} s")
        print(f"# inconclusive: {self.inconclusive[-1]}", flush=True)

    def summary(self):
        """The longest times, as text that follows others."""
        return "".join(f", {what} within {seconds:.2f} s" for what, seconds in sorted(self.longest.items()))
