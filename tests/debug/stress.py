#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Creates and destroys objects of every kind in random order in several processes at once, some of which are killed."""

import os
import select
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kselftest"))

import selftest
from crowd import Crowd
from selftest import SEED, Failed, Suite, chance, equal, wait_until
from uverbs import opened

PROCESSES = 4
# Number of objects that each process creates.
OBJECTS = 400
# Upper bound on the objects that a process creates before it is killed during the next one, and number of rounds of kills.
LIFE, KILLS = 60, 8

suite = Suite()
main = selftest.any_function()
if not main.is_bound:
    main.rebind()


def child(function, *arguments, closing=None):
    """Starts a process that closes a file, calls a function and exits; its status is 1 if the function fails."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if closing is not None:
            os.close(closing)
        function(*arguments)
        status = 0
    except BaseException as error:
        print(f"# {type(error).__name__}: {error}", flush=True)
    os._exit(status)


def crowd(seed, objects=OBJECTS):
    crowd = Crowd(main, f"{SEED} {seed}")
    crowd.run(objects)
    for destroy in reversed(crowd.alive[: len(crowd.alive) // 2]):
        destroy()
    crowd.close()


def endless_crowd(seed, progress):
    """Creates and destroys objects without end, and writes a byte to a pipe for each."""
    crowd = Crowd(main, f"{SEED} {seed}")
    while True:
        crowd.step()
        os.write(progress, b".")


def start_crowd(seed):
    """Starts a process with an endless crowd; returns its pid, and the pipe that gets a byte for each object."""
    ready, progress = os.pipe()
    pid = child(endless_crowd, seed, progress, closing=ready)
    os.close(progress)
    return pid, ready


def read_all(end):
    """Queries the device through sysfs and verbs until the other end of a pipe is closed."""
    (name,) = main.names("infiniband")
    port = main.sysfs / "infiniband" / name / "ports/1/hw_counters"
    with opened(main) as context:
        while not select.select([end], [], [], 0)[0]:
            (port / "tx_bytes").read_text()
            context.query_device()
            context.query_port(1)


def nothing_is_left():
    def left():
        return {name: count for name, count in main.state()["resources"].items() if count and name != "eq"}

    wait_until(lambda: not left(), "the device has no objects left")
    equal(main.protocol_errors(), 0, "protocol errors")


def wait_for(pids):
    """Waits for processes; fails unless all of them succeed."""
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(statuses):
        raise Failed(f"exit statuses {statuses}")


@suite.case(f"{PROCESSES} processes create and destroy {OBJECTS} objects each")
def at_once():
    wait_for([child(crowd, seed) for seed in range(PROCESSES)])
    nothing_is_left()


@suite.case("the same while another process queries the device")
def with_readers():
    end, others = os.pipe()
    reader = child(read_all, end, closing=others)
    pids = [child(crowd, seed, OBJECTS // 2, closing=others) for seed in (11, 12)]
    try:
        wait_for(pids)
    finally:
        os.close(others)
        os.close(end)
    wait_for([reader])
    nothing_is_left()


@suite.case(f"{KILLS} processes are killed during their work")
def killed():
    lives = chance("lives")
    for number in range(KILLS):
        started = [start_crowd(seed) for seed in (number, ~number & 0xFF)]
        for _, ready in started:
            for _ in range(lives.randrange(1, LIFE)):
                equal(os.read(ready, 1), b".", "progress byte of the process")
        for pid, _ in started:
            os.kill(pid, signal.SIGKILL)
        for pid, ready in started:
            equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), -signal.SIGKILL, "exit status")
            os.close(ready)
        nothing_is_left()


@suite.case("the device works afterwards")
def afterwards():
    crowd(99, 50)
    nothing_is_left()


suite.run()
