# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The tests of the emulator and of the tools, which are programs of the host: each is a function that returns its tally."""

import re
import subprocess
import sys
from pathlib import Path

from . import build, cache, guest, steps
from .failure import Failure
from .tally import FAILED, PASSED, SKIPPED, Case, Tally
from .verdict import attempt

CARGO_TEST = re.compile(r"^test (\S+) (?:- .*)?\.\.\. (ok|FAILED|ignored)\b", re.MULTILINE)
CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
# Time limit in seconds for the emulator's tests on an emulated CPU, and the random inputs of each test, in place of 256.
HOST_TESTS_LIMIT, FEWER_CASES = 2400, 16


def cargo_tally(name, run):
    """Runs `cargo test` by run(log) and adds up the tests of all its programs."""
    tally, trouble = Tally(), None
    with steps.step(name) as log:
        try:
            run(log)
        except Failure as failure:
            trouble = failure
    text = Path(log.name).read_text(errors="replace")
    for counts in CARGO_RESULT.findall(text):
        passed, failed, skipped = map(int, counts)
        tally += Tally(passed, failed, skipped)
    outcomes = {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}
    tally.cases += [Case(test, outcomes[ended]) for test, ended in CARGO_TEST.findall(text)]
    tally.failures += re.findall(r"^test (\S+) .*\.\.\. FAILED$", text, re.MULTILINE)
    if trouble:
        steps.note(f"{name}: {trouble}")
    if not tally.total() or (trouble and not tally.failed):
        tally.fail(f"{name}: cargo test did not run to its end")
    return tally


CARGO_TEST_ALL = ("test", "--workspace", "--no-fail-fast")


def test_host():
    """Runs the tests of the workspace emulator/, which include those of efa_rs/hw."""

    def run(log, seed):
        with build.cargo_lock("debug"):
            build.cargo(log, "Building the tests", *CARGO_TEST_ALL, "--no-run")
        build.cargo(log, "cargo test", *CARGO_TEST_ALL, environment=seed)

    return seeded_tally("host tests", run)


def seeded_tally(name, run):
    """As cargo_tally(), for run(log, seed), which runs tests with random inputs. Their seed is a variable of the environment."""
    seed = guest.seed_of(name)
    tally = cargo_tally(name, lambda log: run(log, {"PROPTEST_RNG_SEED": str(seed)}))
    if tally.failed:
        steps.note(f"{name}: the random inputs were those of EFA_SEED={seed}")
    return tally


def test_driver():
    """Runs the tests of the workspace host/: the driver as a program."""

    def run(log):
        with build.cargo_lock("host"):
            build.host(log, "Building the driver as a program", *CARGO_TEST_ALL, "--no-run")
        build.host(log, "cargo test", *CARGO_TEST_ALL)

    return cargo_tally("host tests of the driver", run)


def test_host_in_guest(flavour):
    """Runs the tests of test_host() in an arm64 guest: with its kernel's page size, Landlock and seccomp, which qemu-user lacks."""

    def run(log, seed):
        folder, commands = build.foreign_tests()
        # All commands run, even after failures.
        runs = [f"({command}) || status=1" for command in commands]
        settings = {"PROPTEST_CASES": FEWER_CASES, **seed}
        exports = [f"export {name}={value}" for name, value in settings.items()]
        prepare = [*exports, f"ln -s /share {build.BUILD}", "echo 127.0.0.1 localhost >>/etc/hosts", "status=0"]
        script = "\n".join([*prepare, *runs, "exit $status"])
        options = {"share": folder, "timeout": HOST_TESTS_LIMIT, "memory": "3G", "quiet": True, "watch": log.write}
        run = guest.prepare(guest.Options(script, "none", flavour, **options))
        if status := guest.execute(run):
            raise Failure(f"exit status {status}")

    return seeded_tally(f"host tests {flavour}", run)


def attack(seconds, rounds=None):
    """Runs hostile machines, peers and control clients against an emulator that others use, each for SECONDS; no guests.

    One of two emulators is killed ROUNDS times, or as often as the test chooses.
    """

    def action(log):
        environment = {"EFA_SECONDS": str(seconds), **({"EFA_ROUNDS": str(rounds)} if rounds else {})}
        # The features are those of the host tests, so that it is built already.
        arguments = ("test", "--workspace", "--test", "attack", "--test", "killed", "--no-fail-fast")
        with build.cargo_lock("debug"):
            build.cargo(log, "Building the emulator", "build", "--workspace", "--bin", "efa-emu")
            build.cargo(log, "Building the attacks", *arguments, "--no-run", environment=environment)
        build.cargo(
            log, "cargo test", *arguments, after=("--", "--include-ignored", "--test-threads=1", "--nocapture"), environment=environment
        )

    return cargo_tally("attacks", action)


def cargo_install():
    """Installs the emulator from the clone by cargo, and tests it."""
    return attempt("cargo install of the emulator", build.cargo_install)


def wireshark():
    """Checks how Wireshark dissects a capture with the package's dissector."""
    return cargo_tally("wireshark", build.dissection)


FUZZ_TARGETS = ("control", "control_path", "data_path", "descriptors", "peers", "transport", "vfio_user")


def fuzz(seconds):
    """Runs coverage-guided fuzzing of each part of the emulated device, for SECONDS each."""
    total = Tally()
    for target in FUZZ_TARGETS:
        name = f"fuzzing {target} for {seconds} s"

        def action(target=target, name=name):
            with steps.step(name) as log:
                build.fuzz(log, target, seconds)

        total += attempt(f"{name} finds nothing", action)
    return total


UNITTEST = re.compile(r"^\w+ \(([\w.]+)\)(?:\n.*)?? \.\.\. (ok|FAIL|ERROR|skipped)\b", re.MULTILINE)


def test_tools(program="", case="", guests=False):
    """Runs the tests of the tools, or those that boot GUESTS, or those of the file PROGRAM, or those that match the pattern CASE."""
    folder = cache.CLONE / "tests" / "tools"
    if program and not (folder / f"{program.removesuffix('.py')}.py").exists():
        known = ", ".join(sorted(file.stem for file in folder.glob("[bt]*_*.py")))
        raise Failure(f"There is no file {program} in tests/tools: choose one of {known}.")
    command = [sys.executable, "-m", "unittest", "discover", "--start-directory", str(folder), "--verbose"]
    pattern = f"{program.removesuffix('.py')}.py" if program else "boot_*.py" if guests else "test_*.py"
    command += ["--pattern", pattern, *["-k", case] * bool(case)]
    with steps.step("tests of the tools") as log:
        status = steps.call(command, stdout=log, stderr=subprocess.STDOUT)
    text = Path(log.name).read_text(errors="replace")
    counts = {name: int(count) for name, count in re.findall(r"(failures|errors|skipped)=(\d+)", text)}
    ran = re.search(r"^Ran (\d+) tests?", text, re.MULTILINE)
    failed, skipped = counts.get("failures", 0) + counts.get("errors", 0), counts.get("skipped", 0)
    tally = Tally(int(ran[1]) - failed - skipped, failed, skipped) if ran else Tally()
    outcomes = {"ok": PASSED, "FAIL": FAILED, "ERROR": FAILED, "skipped": SKIPPED}
    tally.cases += [Case(test, outcomes[ended]) for test, ended in UNITTEST.findall(text)]
    tally.failures += re.findall(r"^(?:FAIL|ERROR): (.*)$", text, re.MULTILINE)
    if not tally.total() or (status and not failed):
        tally.fail("the tests of the tools did not run to their end")
    if tally.failed:
        steps.note(f"tests of the tools: {tally}\n{steps.tail(log.name)}")
    return tally
