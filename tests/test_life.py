# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Failure, recovery and removal of devices in use. LENGTH is a number of rounds."""

from conftest import CLONE
from guests import LIMIT, Guests, lines_of

LIFE = CLONE / "tests/life"
MINUTES = 12
# Most rounds in a guest: QEMU keeps some resources of each device that was pulled out.
ROUNDS = 50
COMBINATIONS = {"all": ["rust cloud-amd64", "c cloud-amd64"], "named": ["rust debug"]}
GUESTS = {"devices": ["profile=efa3"] * 2, "hotplug": True}
# The others run in a guest of their own: QEMU (11.1) aborts at a reset of a link whose device was removed by surprise.
OTHERS = {"rust": ("outcomes", "deaths"), "c": ("outcomes",)}


def run(options, programs, ktap, case, rounds=0):
    """Runs programs of tests/life in a guest of their own, and looks for kernel messages of our driver that are unexpected."""
    if options["driver"] == "c":
        options = {**options, "known_reports": [tuple(line.split()[:2]) for line in lines_of(LIFE / "known-reports")]}
    environment = {"EFA_CASES": case} | ({"EFA_ROUNDS": str(rounds)} if rounds else {})
    with Guests(**options, environment=environment) as guests:
        for program in programs:
            ktap(guests.tried(f"cd {LIFE} && ./{program}.py", timeout=LIMIT * max(1, rounds)), f"{program}: ")
        if options["driver"] == "rust" and options["flavour"] != "debug":
            ktap(guests.tried(f"cd {CLONE}/tests/kselftest && EFA_CASES= ./dmesg.py"), "dmesg: ")


def test_triggers(request, options, case, ktap):
    """Each trigger under each load: with our driver only, which recovers."""
    length = request.config.option.length
    if options["driver"] == "rust":
        for begin in range(0, length or 1, ROUNDS):
            run(options, ["life"], ktap, case, min(length - begin, ROUNDS) if length else 0)


def test_others(options, case, ktap):
    """What programs see of a failure, and each way for a device to go or to come back."""
    run(options, OTHERS[options["driver"]], ktap, case)
