# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The selftests on a kernel with KASAN, lockdep, kmemleak and fault injection, and the tests that need such a kernel."""

import re

import pytest
from conftest import CLONE
from guests import LIMIT, Guests, lines_of
from test_kselftest import KSELFTEST, PROGRAMS, TIMEOUTS

DEBUG = CLONE / "tests/debug"
MINUTES = 60
COMBINATIONS = {"named": ["rust debug"]}
GUESTS = {
    "devices": lines_of(KSELFTEST / "devices"),
    "known_reports": [tuple(line.split()[:2]) for line in lines_of(DEBUG / "known-reports")],
    # The factor for time limits of programs.
    "environment": {"EFA_SLOW_KERNEL": "4"},
}
AT_ONCE = ("admin_queue", "effects", "killed", "lifecycle", "../debug/stress")
ALL = [name for name in dict.fromkeys([*PROGRAMS, *TIMEOUTS, "../debug/stress", "../debug/faults"]) if name != "dmesg"]


@pytest.mark.parametrize("at_once", [False, True], ids=["others", "at once"])
def test_debug(options, at_once, case, ktap):
    """In the guest of programs with concurrent operations, each emulated CPU has a thread."""
    with Guests(**options, threads=at_once) as guests:
        # If the host delays the guest, the scheduler's timers for starving tasks run late, and the kernel warns of that.
        guests.run("for runtime in /sys/kernel/debug/sched/*_server/cpu*/runtime; do echo 0 >$runtime; done")
        chosen = [name for name in ALL if (name in AT_ONCE) == at_once and (not case or case in name)]
        for program in [*chosen, "../debug/kernel"]:
            ktap(guests.tried(f"cd {KSELFTEST} && ./{program}.py", timeout=LIMIT), f"{re.sub('.*/', '', program)}: ")
