#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs rdma-core's own tests, as packaged by Debian, on the first RDMA device.

Each result has to match the list `expected`. Prints KTAP. Also writes the results to a file, for comparison with those of another driver.
"""

import collections
import contextlib
import fnmatch
import gzip
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "kselftest"))

from patience import PATIENCE

PACKAGED = Path("/usr/share/doc/rdma-core/tests")
# Tests of another vendor's interface. On any other device all of them skip themselves.
LEFT_OUT = "test_mlx5*"

PASS, SKIP, DRAW, FAIL, TIMEOUT = "pass", "skip", "draw", "fail", "timeout"
LISTED = (PASS, SKIP, DRAW)
USERLANDS = ("stable", "next")

# Number of runs of a test that draws random values. The values are the same each time that this program runs.
DRAWS = 8
# Module and name of the tests' timeout for a completion in seconds. Its value of 10 may be too low on a busy host.
COMPLETION_LIMIT = "tests.utils", "POLL_CQ_TIMEOUT"

# `reason` is a skipped test's own text. `more` has details: a failure's text, or the outcome of each draw.
Result = collections.namedtuple("Result", "outcome reason more", defaults=("", ""))


class BadList(Exception):
    """The list is invalid; has the line and the reason."""


def read_list(text, userland):
    """Returns the expected results by name, of the tests that a userland has."""
    tests, result = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        head, _, names = line.partition("\t" if line.startswith("\t") else " | ")
        if head:
            outcome, _, reason = head.partition(" ")
            if outcome not in LISTED or bool(reason) == (outcome == PASS):
                raise BadList(f"line {number}: an outcome is {', '.join(LISTED)}, with a reason unless it is {PASS}")
            result = Result(outcome, reason)
        if head and not names:
            continue
        mark, words = "", names.split()
        if words[0] in USERLANDS:
            mark, *words = words
        if not result or len(words) == 1 or (result.outcome == PASS and set(names) & set("*?[")):
            raise BadList(f"line {number}: not [{' | '.join(USERLANDS)}] CLASS TEST... below an outcome, or a pattern of tests that pass")
        found = [f"{words[0]}.test_{word}" for word in words[1:]] if mark in ("", userland) else []
        if twice := {*found} & {*tests}:
            raise BadList(f"line {number}: {twice} is listed twice")
        tests |= dict.fromkeys(found, result)
    return tests


def listed_for(name, listed):
    """Returns the entry of the list for a test: its name, or the longest pattern that matches; None if there is none."""
    matching = (entry for entry in listed if fnmatch.fnmatchcase(name, entry))
    return name if name in listed else max(matching, key=len, default=None)


def of_draws(results):
    """Returns the result of a test that was run several times, until a run neither passed nor skipped itself."""
    *_, last = results
    if last.outcome not in (PASS, SKIP):
        return last
    ends = " ".join(result.outcome for result in results)
    reasons = {result.reason for result in results if result.outcome == SKIP}
    if not reasons:
        return Result(PASS, more=ends)
    outcome = DRAW if any(result.outcome == PASS for result in results) else SKIP
    return Result(outcome, " / ".join(sorted(reasons)), ends)


class OutOfTime(BaseException):
    """A test did not end in time. No `Exception`, because the tests handle these themselves."""


def run_once(case, device):
    """Runs a test; returns its result. From the limit on, the test is interrupted each second, as it may go on."""
    result, stacks = unittest.TestResult(), []

    def interrupt(_, frame):
        stacks.append(" > ".join(entry.name for entry in traceback.extract_stack(frame)))
        raise OutOfTime

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, min(PATIENCE, 1))
    with contextlib.suppress(OutOfTime):
        case.run(result)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if stacks:
        return Result(TIMEOUT, f"no end within {PATIENCE} s", stacks[0])
    for _, text in result.errors + result.failures:
        return Result(FAIL, text.strip().splitlines()[-1], text)
    for _, reason in result.skipped:
        return Result(SKIP, " ".join(reason.split()).replace(device, "DEVICE"))
    return Result(PASS)


def run(case, name, device):
    """Runs a test, several times if it draws values; returns its result."""
    results = []
    for draw in range(DRAWS):
        random.seed(f"{name} {draw}")
        before = random.getstate()
        results.append(run_once(type(case)(case._testMethodName), device))
        if results[-1].outcome not in (PASS, SKIP) or random.getstate() == before:
            break
    return of_draws(results)


def unpack(folder):
    """Copies the tests, decompressed for Python. Debian treats them as documentation, and compresses its larger files."""
    for source in PACKAGED.iterdir():
        if not source.is_file() or source.match(LEFT_OUT):
            continue
        read = gzip.open if source.suffix == ".gz" else open
        with read(source, "rb") as packaged, open(folder / source.name.removesuffix(".gz"), "wb") as file:
            shutil.copyfileobj(packaged, file)


def load(folder, device):
    """Loads the test cases for a device, as the tests' own program does; returns them by name."""
    sys.path.insert(0, str(folder))
    from args_parser import parser

    sys.argv[1:] = ["--dev", device]
    parser.parse_args()
    spec = importlib.util.spec_from_file_location("tests", folder / "__init__.py")
    module = sys.modules["tests"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wait_longer()
    suites, cases = [unittest.defaultTestLoader.loadTestsFromModule(module)], {}
    while suites:
        for item in suites.pop():
            if isinstance(item, unittest.TestSuite):
                suites.append(item)
            else:
                cases[item.id().removeprefix("tests.")] = item
    return dict(sorted(cases.items()))


def wait_longer():
    """Makes the tests wait for completions for PATIENCE, as all other waits do."""
    module, name = COMPLETION_LIMIT
    if not hasattr(sys.modules.get(module), name):
        raise ImportError(f"{module} has no {name}: the tests have another limit for a completion")
    setattr(sys.modules[module], name, PATIENCE)


def report(number, name, wanted, got):
    """Prints the line of a test; returns whether it ended as listed."""
    if wanted and wanted.outcome == got.outcome and fnmatch.fnmatchcase(got.reason, wanted.reason):
        # A test that did not run to its end does not count as passed.
        print(f"ok {number} {name}" + (f" # SKIP {got.reason}" if wanted.outcome == SKIP else ""), flush=True)
        return True
    print(f"# {name}: " + (f"listed as: {wanted.outcome} {wanted.reason}" if wanted else "is not in the list"))
    print(f"#   this run: {got.outcome} {got.reason}")
    print("".join(f"#   {line}\n" for line in got.more.splitlines()), end="")
    print(f"not ok {number} {name}", flush=True)
    return False


def run_all(listed, device):
    """Runs all tests, and reports tests that only the list has; returns the results by name, and whether all are as listed."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        cases = load(Path(folder), device)
        entries = {name: listed_for(name, listed) for name in cases}
        names = [*cases, *(entry for entry in listed if entry not in entries.values())]
        # One more, for resources that the tests have left behind.
        print(f"KTAP version 1\n1..{len(names) + 1}", flush=True)
        results, good = {}, True
        for number, name in enumerate(names, 1):
            if name in cases:
                results[name] = run(cases[name], name, device)
            else:
                results[name] = Result(FAIL, "there is no such test")
            good &= report(number, name, listed.get(entries.get(name, name)), results[name])
    return results, good


def child(file, userland):
    """Runs the tests; returns the exit status."""
    try:
        listed = read_list((FOLDER / "expected").read_text(), userland)
        (device, *_) = sorted(os.listdir("/sys/class/infiniband"))
        results, good = run_all(listed, device)
    except (BadList, OSError, ValueError, ImportError) as error:
        print(f"Bail out! The tests could not run: {type(error).__name__}: {error}")
        return 1
    file.write_text(json.dumps({name: result._asdict() for name, result in results.items()}, indent=1))
    return 0 if good else 1


def left_behind():
    """Returns the device's remaining resources, and whether it has detected protocol errors. Empty for a real device."""
    import selftest

    if not selftest.emulator:
        return []
    function = selftest.any_function()
    left = [f"{count} {kind}" for kind, count in function.held().items()]
    return left + ["protocol errors"] * bool(function.state()["protocol_errors"])


def main(file, userland):
    """Runs the tests and checks for resources that they have left behind; returns the exit status."""
    # In a child process: its end closes all that its tests leave open. The hash seed is fixed, as the order in sets is random, too.
    command = [sys.executable, __file__, "--child", file, userland]
    with open(f"{file}.stderr", "w") as errors:
        status = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, stderr=errors, check=False).returncode
    if not file.exists():
        print(f"Bail out! The tests did not run to their end: see {file}.stderr")
        return 1
    left = left_behind()
    if left:
        print(f"# left behind: {', '.join(left)}")
    print("not " * bool(left) + f"ok {len(json.loads(file.read_text())) + 1} nothing is left behind")
    return 1 if status or left else 0


if __name__ == "__main__":
    run_them, arguments = (child, sys.argv[2:]) if sys.argv[1:2] == ["--child"] else (main, sys.argv[1:])
    if len(arguments) not in (1, 2):
        sys.exit("usage: run.py FILE [stable|next]: runs rdma-core's tests; the results also go to FILE (default list: that of stable)")
    sys.exit(run_them(Path(arguments[0]), *arguments[1:] or USERLANDS[:1]))
