# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs tests/life in guests: all tests in two guests or as many as their rounds need, then those with limits of time again."""

import math
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace

from . import cache, steps, suite, toolroot
from .failure import Failure

FOLDER = cache.CLONE / "tests" / "life"
DEVICES = ["profile=efa3", "profile=efa3"]
# The program whose tests have unlimited rounds. Those of the others do something different in each round, and few are enough.
ENDLESS = "life.py"
# The programs in which limits of time count.
MEASURED = (ENDLESS, "deaths.py")
# The others run in a guest of their own, in this order: QEMU (11.1) aborts at a reset of a link whose device was removed by surprise.
OTHERS = {"rust": ("outcomes.py", "deaths.py"), "c": ("outcomes.py",)}
# Time limit of a guest in seconds: a fixed part, and a part for each round. Both are several times the need.
BASE, ROUND = 3600, 20
# The factor by which the debug kernel is slower.
SLOW = 4


@dataclass
class Share:
    """The work of one guest: all or some tests of each program, and the number of their rounds unless the tests choose it."""

    name: str
    programs: dict[str, list[str]]
    rounds: int | None = None
    # Whether limits of time count.
    measured: bool = False

    def command(self, runner, last):
        """Returns the command for a guest, by which RUNNER runs the programs and then those in LAST."""
        environment: dict[str, object] = {"EFA_TESTS": ";".join(test for tests in self.programs.values() for test in tests)}
        if self.rounds:
            environment["EFA_ROUNDS"] = self.rounds
        if self.measured:
            environment["EFA_LIMITS"] = 1
        settings = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in environment.items() if value)
        programs = " ".join([*(f"../life/{program}" for program in self.programs), *last])
        return f"{settings} kselftest_override_timeout={self.timeout()} {runner} {programs}"

    def timeout(self):
        """Returns the time limit of each program, in seconds."""
        return BASE + ROUND * (self.rounds or 0) * sum(len(tests) for tests in self.programs.values())


def tests(program):
    """Returns the names of a program's tests, each with the maximum number of its rounds in a guest."""
    done = subprocess.run([sys.executable, FOLDER / program, "--list"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"{done.stderr}\ntests/life/{program} --list failed: see above.")
    found = {}
    for line in done.stdout.splitlines():
        limit, name = line.split(" ", 1)
        found[name] = math.inf if limit == "-" else int(limit)
    return found


def shares(available, rounds, chosen):
    """Divides the tests among guests. AVAILABLE are programs and their tests, CHOSEN parts of the names of tests."""
    wanted = {
        program: {name: limit for name, limit in found.items() if not chosen or any(text in name for text in chosen)}
        for program, found in available.items()
    }
    wanted = {program: found for program, found in wanted.items() if found}
    if not wanted:
        raise Failure(f"No test of tests/life has {' or '.join(chosen)} in its name: tests/life/life.py --list shows some of them.")
    result = []
    endless = wanted.pop(ENDLESS, {})
    if endless and not rounds:
        result.append(Share(ENDLESS, {ENDLESS: list(endless) if chosen else []}))
        endless = {}
    for trigger, found in by_trigger(endless).items():
        limit = min(found.values())
        if limit >= rounds * len(found):
            result.append(Share(trigger, {ENDLESS: list(found)}, rounds))
            continue
        for name in found:
            for begin in range(0, rounds, limit):
                result.append(Share(f"{name}, from round {begin}", {ENDLESS: [name]}, min(limit, rounds - begin)))
    if wanted:
        result.append(Share(" ".join(wanted), {program: list(found) if chosen else [] for program, found in wanted.items()}, rounds))
    return result


def by_trigger(found):
    """Groups tests by trigger, with which a name begins."""
    groups = {}
    for name, limit in found.items():
        groups.setdefault(name.rpartition(", ")[0], {})[name] = limit
    return groups


def jobs(driver, flavour, rounds=None, chosen=(), measured=False):
    """Returns a job for each guest: its name, its function, and whether limits of time count.

    All tests run once, or for a number of ROUNDS. With MEASURED, tests with limits of time run once more, and the limits count. They
    do not on the debug kernel, whose checks take most of its time.
    """
    title = f"life {driver} {flavour}"
    programs = [ENDLESS] * (driver == "rust") + [*OTHERS[driver]]
    available = {program: tests(program) for program in programs}
    parts = shares(available, rounds, chosen)
    measured = measured and driver == "rust" and flavour != toolroot.DEBUG
    limited = {program: available[program] for program in MEASURED} if measured else {}
    if any(text in name for found in limited.values() for name in found for text in chosen or [""]):
        parts += [replace(share, measured=True) for share in shares(limited, None, chosen)]
    if rounds:
        steps.note(f"{title}: {rounds} rounds of each test, in {len(parts)} guests")

    return [job(share, driver, flavour, f"{title} {share.name}{' limits' * share.measured}") for share in parts]


def job(share, driver, flavour, name):
    return name, lambda: run(name, share, driver, flavour), share.measured


def run(name, share, driver, flavour):
    """Runs a share in a guest; returns its tally."""
    options = {"devices": DEVICES, "hotplug": True, "progress": bool(share.rounds), "stalls": share.measured}
    if flavour == toolroot.DEBUG:
        command = share.command("/efa-rs/tests/debug/run.sh", ["../debug/kernel.py"])
        tally, _ = suite.in_debug_guest(name, command, driver, timeout=SLOW * share.timeout() * len(share.programs), **options)
        return tally
    if driver == "c":
        options["known_reports"] = suite.known_reports(FOLDER)
    # The C driver's reports are known. Other reports that the host finds are failures, too.
    command = share.command("/efa-rs/tests/kselftest/run.sh", ["dmesg.py"] * (driver == "rust"))
    tally, _ = suite.in_guest(name, command, driver, flavour, timeout=share.timeout() * len(share.programs), **options)
    return tally
