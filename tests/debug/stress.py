#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Objects of every kind come and go: in many processes at once, in any order, with some processes killed meanwhile."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kselftest"))

import selftest  # noqa: E402
from crowd import Crowd  # noqa: E402
from selftest import Failed, Suite, equal, wait_until  # noqa: E402
from uverbs import opened  # noqa: E402

PROCESSES = 4
# Objects that each process makes.
OBJECTS = 400
# Seconds that a process lives before it is killed: enough to start and to have a few objects.
LIVES = (0.2, 0.6, 1.0, 1.4)
KILLS = 8

suite = Suite()
main = selftest.any_function()
# Those of the selftests before, where differences.md has some of the C driver.
PROTOCOL_ERRORS = main.state()["protocol_errors"] if selftest.emulator else 0
if not main.is_bound:
    main.rebind()


def child(function, *arguments):
    """Starts a process that does this and ends; its status is 1 if that fails."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function(*arguments)
        status = 0
    except BaseException as error:
        print(f"# {type(error).__name__}: {error}", flush=True)
    os._exit(status)


def crowd(seed, objects=OBJECTS):
    crowd = Crowd(main, seed)
    crowd.run(objects)
    for destroy in reversed(crowd.alive[: len(crowd.alive) // 2]):
        destroy()
    crowd.close()


def read_all(end):
    """Reads what sysfs shows of the device, and asks it by verbs, until a moment."""
    (name,) = main.names("infiniband")
    port = main.sysfs / "infiniband" / name / "ports/1/hw_counters"
    with opened(main) as context:
        while time.monotonic() < end:
            (port / "tx_bytes").read_text()
            context.query_device()
            context.query_port(1)


def nothing_is_left():
    def left():
        return {name: count for name, count in main.state()["resources"].items() if count and name != "eq"}

    wait_until(lambda: not left(), "the device has nothing any more")
    equal(main.state()["protocol_errors"], PROTOCOL_ERRORS, "protocol errors, of which there were some before")


def wait_for(pids):
    """Fails unless all processes end well."""
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(statuses):
        raise Failed(f"exit statuses {statuses}")


@suite.case(f"{PROCESSES} processes make and destroy {OBJECTS} objects each")
def at_once():
    wait_for([child(crowd, seed) for seed in range(PROCESSES)])
    nothing_is_left()


@suite.case("the same while others read all that there is")
def with_readers():
    reader = child(read_all, time.monotonic() + 5)
    wait_for([child(crowd, seed, OBJECTS // 2) for seed in (11, 12)] + [reader])
    nothing_is_left()


@suite.case(f"{KILLS} processes are killed in the middle")
def killed():
    for number in range(KILLS):
        pids = [child(crowd, seed, 1 << 30) for seed in (number, ~number & 0xFF)]
        time.sleep(LIVES[number % len(LIVES)])
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), -signal.SIGKILL, "exit status")
        nothing_is_left()


@suite.case("the device works afterwards")
def afterwards():
    crowd(99, 50)
    nothing_is_left()


suite.run()
