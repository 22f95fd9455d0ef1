# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""tests/life in guests: all of it once in two, and again where limits of time count, in many rounds in as many guests as that takes."""

import math
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace

from . import cache, steps, suite, toolroot
from .failure import Failure

FOLDER = cache.CLONE / "tests" / "life"
DEVICES = ["profile=efa3", "profile=efa3"]
# The one whose tests have rounds without end; the others do something different in each, and few are enough.
ENDLESS = "life.py"
# Any of those, for as long as one likes.
MIXTURE = "mixture.py"
# Those in which limits of time count.
MEASURED = (ENDLESS, "deaths.py")
# The others are in a guest of their own, in this order: QEMU (11.1) aborts when a link is reset by which a device was pulled out.
OTHERS = {"rust": ("outcomes.py", "deaths.py"), "c": ("outcomes.py",)}
# Seconds that a guest may take whatever it does, and for each round, which are several times as many as it needs.
BASE, ROUND = 3600, 20
# The factor by which the debug kernel is slower.
SLOW = 4


@dataclass
class Share:
    """What one guest does: of each program all tests or some, and how many rounds of them unless that is left to the tests."""

    name: str
    programs: dict[str, list[str]]
    rounds: int | None = None
    # Whether limits of time count.
    measured: bool = False
    # Of a mixture: what it is chosen by, and how long it takes.
    seed: int | None = None
    minutes: int = 0

    def command(self, runner, last):
        """Runs it in a guest. What programs are named for is there as often as they are run."""
        environment: dict[str, object] = {"EFA_TESTS": ";".join(test for tests in self.programs.values() for test in tests)}
        if self.rounds:
            environment["EFA_ROUNDS"] = self.rounds
        if self.measured:
            environment["EFA_LIMITS"] = 1
        if self.minutes:
            environment |= {"EFA_SEED": self.seed, "EFA_MINUTES": self.minutes}
        settings = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in environment.items() if value)
        programs = " ".join([*(f"../life/{program}" for program in self.programs), *last])
        return f"{settings} kselftest_override_timeout={self.timeout()} {runner} {programs}"

    def timeout(self):
        """Of each program."""
        return BASE + 60 * self.minutes + ROUND * (self.rounds or 0) * sum(len(tests) for tests in self.programs.values())


def tests(program):
    """The names of a program's tests, and for each how many rounds there may be of it in a guest."""
    done = subprocess.run([sys.executable, FOLDER / program, "--list"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"{done.stderr}\ntests/life/{program} --list failed: see above.")
    found = {}
    for line in done.stdout.splitlines():
        limit, name = line.split(" ", 1)
        found[name] = math.inf if limit == "-" else int(limit)
    return found


def shares(available, rounds, chosen):
    """What each guest does. AVAILABLE are programs and their tests, CHOSEN parts of the names of tests."""
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
    """The tests of each trigger: a name begins with that."""
    groups = {}
    for name, limit in found.items():
        groups.setdefault(name.rpartition(", ")[0], {})[name] = limit
    return groups


def jobs(driver, flavour, rounds=None, chosen=(), measured=False):
    """A job for each guest that it takes: its name, what runs it, how many cores it needs for its limits of time, and whether it has any.

    All tests are run once, and with MEASURED then again, in which limits of time count.
    """
    title = f"life {driver} {flavour}"
    programs = [ENDLESS] * (driver == "rust") + [*OTHERS[driver]]
    available = {program: tests(program) for program in programs}
    parts = shares(available, None, chosen)
    limited = {program: available[program] for program in MEASURED} if measured and driver == "rust" else {}
    if any(text in name for found in limited.values() for name in found for text in chosen or [""]):
        parts += [replace(share, measured=True) for share in shares(limited, rounds, chosen)]
    if rounds:
        steps.note(f"{title}: {rounds} rounds of each test, in {len(parts)} guests")

    return [job(share, driver, flavour, f"{title} {share.name}{' limits' * share.measured}") for share in parts]


def mixture(driver, flavour, seed, minutes):
    """The job of random triggers under random loads, chosen by SEED, for MINUTES."""
    share = Share(f"mixture of seed {seed}", {MIXTURE: []}, seed=seed, minutes=minutes)
    return [job(share, driver, flavour, f"life {driver} {flavour} {share.name}")]


def job(share, driver, flavour, name):
    # Where nothing but the tests' own programs uses the devices, these mostly wait.
    cores = 2 if {ENDLESS, MIXTURE} & set(share.programs) else 1
    return name, lambda: run(name, share, driver, flavour), cores, share.measured


def run(name, share, driver, flavour):
    """Runs a share in a guest; returns its tally."""
    options = {"devices": DEVICES, "hotplug": True, "progress": bool(share.rounds or share.minutes), "stalls": share.measured}
    if flavour == toolroot.DEBUG:
        command = share.command("/efa-rs/tests/debug/run.sh", ["../debug/kernel.py"])
        tally, _ = suite.in_debug_guest(name, command, driver, timeout=SLOW * share.timeout() * len(share.programs), **options)
        return tally
    if driver == "c":
        options["known_reports"] = suite.known_reports(FOLDER)
    # The C driver's reports are known; what the host finds besides them fails, too.
    command = share.command("/efa-rs/tests/kselftest/run.sh", ["dmesg.py"] * (driver == "rust"))
    tally, _ = suite.in_guest(name, command, driver, flavour, timeout=share.timeout() * len(share.programs), **options)
    return tally
