#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Findings of the debug kernel at the end of the tests: leaks, locks, DMA, and remains of the removed module."""

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kselftest"))

import selftest
from selftest import Suite, equal

DEBUGFS = Path("/sys/kernel/debug")
KMEMLEAK = DEBUGFS / "kmemleak"
DMA_API = DEBUGFS / "dma-api"
CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
# Age in seconds below which kmemleak does not report memory as leaked.
MIN_AGE = 5
# Number of scans. A pointer may be in a register or on a stack that is not in use, so that a single finding is no leak.
SCANS = 2

suite = Suite()
text_address = Path("/sys/module/efa/sections/.text").read_text().strip()


def known_leaks():
    """Returns the functions of known leaks outside the driver. The file known-leaks has them, with the driver in use and the reason."""
    lines = (Path(__file__).resolve().parent / "known-leaks").read_text().splitlines()
    entries = [line.split(maxsplit=2) for line in lines if line and not line.startswith("#")]
    return {function for driver, function, reason in entries if driver == selftest.DRIVER}


def leaks():
    """Returns kmemleak's reports with their backtraces, without known leaks."""
    for _ in range(SCANS):
        time.sleep(MIN_AGE + 1)
        # Fails if kmemleak has turned itself off, as it does for lack of memory.
        KMEMLEAK.write_text("scan")
    reports = []
    for line in KMEMLEAK.read_text().splitlines():
        if line.startswith("unreferenced object"):
            reports.append([])
        reports[-1].append(line)
    known = known_leaks()
    return [report for report in reports if not any(function in line for line in report for function in known)]


@suite.case("the clock needs no calibration", needs_emulator=False)
def clock():
    """The TSC does. If its calibration is wrong, all timeouts are too short, and keep-alives are missed."""
    equal(CLOCK.read_text().strip(), "hpet", "clock source")


@suite.case("lockdep is enabled")
def lockdep():
    stats = dict(line.rsplit(":", 1) for line in Path("/proc/lockdep_stats").read_text().splitlines() if line.count(":") == 1)
    stats = {name.strip(): value.strip() for name, value in stats.items()}
    equal(stats["debug_locks"], "1", "debug_locks")


@suite.case("DMA-API debugging is enabled and reports no error")
def dma_api():
    equal((DMA_API / "disabled").read_text().strip(), "N", "disabled")
    equal((DMA_API / "error_count").read_text().strip(), "0", "errors")


@suite.case("the module can be removed")
def remove():
    subprocess.run(["rmmod", "efa"], check=True)
    left = [name for function in selftest.FUNCTIONS for name in function.leftovers()]
    equal(left, [], "leftovers of the driver")


@suite.case("no DMA mapping is left")
def no_mapping():
    equal((DMA_API / "dump").read_text(), "", "mappings")


@suite.case("kmemleak finds no leak")
def no_leak():
    """Runs only now, as scans take long: memory that leaked while the module was loaded is still reported."""
    found = leaks()
    for report in found:
        print("# " + "\n# ".join(report))
    if found:
        print(f"# efa was at {text_address}: backtraces no longer have the names of its functions")
    equal(len(found), 0, "leaks")


@suite.case("the module can be loaded again")
def load():
    subprocess.run(["insmod", os.environ["EFA_KO"]], check=True)
    equal(selftest.FUNCTIONS[0].is_bound, True, "bound")


suite.run()
