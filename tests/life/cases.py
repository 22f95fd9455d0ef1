# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What the programs of this folder have in common: which of their tests are run, how often, and what the kernel says of each.

usage of each: PROGRAM [--list | TEST...]: the tests whose names contain one of these texts; without any, those that EFA_TESTS
names, separated by semicolons, or all. EFA_ROUNDS is how many rounds each of them has; without it, one. With EFA_LIMITS=1, limits of
time count, see timing.py; without EFA_ROUNDS, some of the tests are enough for that.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER.parents[1] / name) for name in ("tests/kselftest", "tests/interop", "tools/guest", "tools/lib")]

import selftest
import timing
from efa_tools import console
from selftest import DRIVER, Failed, KernelLog, Suite


def rounds(few=1):
    """The rounds of a test: FEW unless EFA_ROUNDS has more."""
    return int(os.environ.get("EFA_ROUNDS") or few)


class Tests(Suite):
    """The test cases of a program."""

    def __init__(self):
        super().__init__()
        self.limits, self.unusual = {}, set()

    def add(self, name, function, wanted="", is_usual=True, most_rounds=None):
        """Of an unusual one, limits count only if it is named, or if rounds are wanted. MOST_ROUNDS is how many there may be of it in
        the life of a guest.
        """
        self.limits[name] = most_rounds
        if not is_usual:
            self.unusual.add(name)
        super().add(name, function, wanted)

    def main(self):
        """Does what the command line says."""
        if sys.argv[1:] == ["--list"]:
            for name, limit in self.limits.items():
                print(limit or "-", name)
            return
        if not selftest.emulator:
            selftest.skip_all("needs the emulator")
        chosen = sys.argv[1:] or [text.strip() for text in os.environ.get("EFA_TESTS", "").split(";") if text.strip()]
        if chosen:
            self.cases = [case for case in self.cases if any(text in case[0] for text in chosen)]
        elif timing.COUNTS and not os.environ.get("EFA_ROUNDS"):
            self.cases = [case for case in self.cases if case[0] not in self.unusual]
        log = Reports()
        self.cases = [(name, log.watched(function), *rest) for name, function, *rest in self.cases]
        self.run()


class Reports:
    """What the kernel complains of."""

    def __init__(self):
        self.log = KernelLog()
        # Of the C driver's devices.
        self.known = console.known_reports((FOLDER / "known-reports").read_text()) if DRIVER == "c" else []

    def new(self):
        """The lines since the last time from the first one that tells of trouble on."""
        # As on a console, but for the time.
        text, _ = console.without("\n".join(f"[] {text}" for _, text in self.log.records()), self.known)
        return console.trouble(text)

    def watched(self, function):
        """The same function, which also fails if the kernel complains meanwhile."""

        def run():
            self.new()
            failure = result = None
            try:
                result = function()
            except Exception as error:
                failure = error
            if report := self.new():
                failure = Failed("\n".join(["the kernel reports trouble", *report, str(failure or "")]))
            if failure:
                raise failure
            return result

        return run
