# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Failure, recovery and removal of devices in use. LENGTH is a number of rounds, each test's in guests of its own."""

import subprocess
import sys

from conftest import CLONE
from guests import LIMIT, Guests, lines_of

LIFE = CLONE / "tests/life"
MINUTES = 12
COMBINATIONS = {"all": ["rust cloud-amd64", "c cloud-amd64"], "named": ["rust debug"]}
GUESTS = {"devices": ["profile=efa3"] * 2, "hotplug": True}
# The others run in a guest of their own: QEMU (11.1) aborts at a reset of a link whose device was removed by surprise.
OTHERS = {"rust": ("outcomes", "deaths"), "c": ("outcomes",)}


def run(options, programs, ktap, length=1, **environment):
    """Runs programs of tests/life in guests of their own, and looks for kernel messages of our driver that are unexpected."""
    if options["driver"] == "c":
        options = {**options, "known_reports": [tuple(line.split()[:2]) for line in lines_of(LIFE / "known-reports")]}
    with Guests(**options, environment={name: str(value) for name, value in environment.items()}) as guests:
        for program in programs:
            ktap(guests.tried(f"cd {LIFE} && ./{program}.py", timeout=LIMIT + 20 * length), f"{program}: ")
        if options["driver"] == "rust" and options["flavour"] != "debug":
            ktap(guests.tried(f"cd {CLONE}/tests/kselftest && ./dmesg.py"), "dmesg: ")


def test_triggers(request, options, case, ktap):
    """Each trigger under each load: with our driver only, which recovers."""
    length = request.config.option.length
    if options["driver"] != "rust":
        return
    if not length:
        run(options, ["life"], ktap, EFA_TESTS=case)
        return
    listed = subprocess.run([sys.executable, LIFE / "life.py", "--list"], capture_output=True, text=True, check=True).stdout
    for limit, name in (line.split(" ", 1) for line in listed.splitlines()):
        if case in name:
            most = length if limit == "-" else min(int(limit), length)
            for begin in range(0, length, most):
                run(options, ["life"], ktap, most, EFA_TESTS=name, EFA_ROUNDS=min(most, length - begin))


def test_others(options, case, ktap):
    """What programs see of a failure, and each way for a device to go or to come back."""
    run(options, OTHERS[options["driver"]], ktap, EFA_TESTS=case)
