# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Common code of the programs of this folder: selection of tests, number of rounds, and checks of the kernel's log.

usage of each: PROGRAM [--list | TEST...]: runs the tests whose names contain one of these texts. Without arguments, EFA_TESTS has
such texts, separated by semicolons; without both, all tests are run. EFA_ROUNDS is the number of rounds of each test, by default
one.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER.parents[1] / name) for name in ("tests/kselftest", "tests/data", "tools/guest", "tools")]

import console
import selftest
from selftest import DRIVER, Failed, KernelLog, Suite


def rounds(few=1):
    """Returns the number of rounds of a test: EFA_ROUNDS, or FEW if that is not set."""
    return int(os.environ.get("EFA_ROUNDS") or few)


class Tests(Suite):
    """The test cases of a program."""

    def __init__(self):
        super().__init__()
        self.limits = {}

    def add(self, name, function, wanted="", most_rounds=None):
        """Adds a test case. MOST_ROUNDS is the maximum number of its rounds in the lifetime of a guest."""
        self.limits[name] = most_rounds
        super().add(name, function, wanted)

    def main(self):
        """Runs the tests that the command line selects, or lists all tests."""
        if sys.argv[1:] == ["--list"]:
            for name, limit in self.limits.items():
                print(limit or "-", name)
            return
        if not selftest.emulator:
            selftest.skip_all("needs the emulator")
        chosen = sys.argv[1:] or [text.strip() for text in os.environ.get("EFA_TESTS", "").split(";") if text.strip()]
        if chosen:
            self.cases = [case for case in self.cases if any(text in case[0] for text in chosen)]
        log = Reports()
        self.cases = [(name, log.watched(function), *rest) for name, function, *rest in self.cases]
        self.run()


class Reports:
    """Reports of trouble in the kernel's log."""

    def __init__(self):
        self.log = KernelLog()
        # Reports that are expected for devices of the C driver.
        self.known = console.known_reports((FOLDER / "known-reports").read_text()) if DRIVER == "c" else []

    def new(self):
        """Returns the lines since the last call, from the first one that reports trouble on."""
        # The format of a console, with an empty time.
        text, _ = console.without("\n".join(f"[] {text}" for _, text in self.log.records()), self.known)
        return console.trouble(text)

    def watched(self, function):
        """Wraps a function, so that it also fails if the kernel reports trouble during the call."""

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
