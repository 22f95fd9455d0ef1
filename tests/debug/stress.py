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
from processes import ends, fork
from selftest import SEED, Suite, chance, equal, wait_until
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


def crowd(seed, objects=OBJECTS):
    crowd = Crowd(main, f"{SEED} {seed}")
    crowd.run(objects)
    for destroy in reversed(crowd.alive[: len(crowd.alive) // 2]):
        destroy()
    crowd.close()


def start_crowd(seed):
    """Starts a process that creates and destroys objects without end; returns its id, and a pipe that gets a byte for each object."""
    ready, progress = os.pipe()

    def work():
        crowd = Crowd(main, f"{SEED} {seed}")
        while True:
            crowd.step()
            os.write(progress, b".")

    process = fork(work)
    os.close(progress)
    return process, ready


def read_all(end, other):
    """Queries the device through sysfs and verbs until the other end of a pipe is closed elsewhere, too."""
    os.close(other)
    with opened(main) as context:
        while not select.select([end], [], [], 0)[0]:
            (main.port / "hw_counters/tx_bytes").read_text()
            context.query_device()
            context.query_port(1)


def nothing_is_left():
    wait_until(lambda: not main.held(), "the device has no objects left")
    equal(main.protocol_errors(), 0, "protocol errors")


@suite.case(f"{PROCESSES} processes create and destroy {OBJECTS} objects each")
def at_once():
    equal(ends([fork(lambda seed=seed: crowd(seed)) for seed in range(PROCESSES)]), f"{PROCESSES} exit-0", "ends")
    nothing_is_left()


@suite.case("the same while another process queries the device")
def with_readers():
    end, others = os.pipe()
    reader = fork(lambda: read_all(end, others))
    ended = ends([fork(lambda seed=seed: crowd(seed, OBJECTS // 2)) for seed in (11, 12)])
    os.close(others)
    os.close(end)
    equal((ended, ends([reader])), ("2 exit-0", "1 exit-0"), "ends of the processes, and of that which queries")
    nothing_is_left()


@suite.case(f"{KILLS} processes are killed during their work")
def killed():
    lives = chance("lives")
    for number in range(KILLS):
        started = [start_crowd(seed) for seed in (number, ~number & 0xFF)]
        for _, ready in started:
            for _ in range(lives.randrange(1, LIFE)):
                equal(os.read(ready, 1), b".", "progress byte of the process")
        for process, ready in started:
            os.kill(process, signal.SIGKILL)
            os.close(ready)
        equal(ends([process for process, _ in started]), "2 SIGKILL", "ends")
        nothing_is_left()


@suite.case("the device works afterwards")
def afterwards():
    crowd(99, 50)
    nothing_is_left()


suite.run()
