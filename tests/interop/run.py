#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs third-party software between guests. All guests run this program, and guest 0 runs the tests. Prints KTAP.

usage: run.py [short] [good] [PART...]: with `good`, no test has a bad network. The parts are contents, efa4, perftest, libfabric and mpi,
or with more than two guests soak and mpi; the default is all of them. A further part, inline, needs rdma-core 65
"""

import contextlib
import os
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "kselftest"))

import conditions
import guests
import libfabric
import mpi
import perftest
from selftest import Failed, Suite, emulator, equal, wait_until

FOLDER = Path(__file__).resolve().parent
# How often each program runs on a network.
ROUNDS = int(os.environ.get("EFA_ROUNDS") or 1)
CONTENTS_PORT, EFA4_PORT = 7100, 7101
# Parts for two guests, and for more than two.
PARTS, MORE_PARTS = ("contents", "efa4", "perftest", "libfabric", "mpi"), ("soak", "mpi")
# Parts for two guests with a userland that supports them.
NEXT_PARTS = ("inline",)


def contents(lossy):
    """Runs contents.py; its results become subtests."""
    program = FOLDER / "contents.py"
    environment = {"EFA_LOSS": "1"} if lossy else {}
    return guests.pair([program, "serve"], [program, "test", guests.name(1)], CONTENTS_PORT, environment)


def efa4(short):
    """Runs efa4.py, which needs the newest devices; its results become subtests."""
    program = FOLDER / "efa4.py"
    environment = {"EFA_OPERATIONS": "2000"} if short else {}
    return guests.pair([program, "serve"], [program, "test", guests.name(1)], EFA4_PORT, environment)


def wrong_bits_of_ours():
    """Fails unless every case of contents.py fails when one bit of each packet is wrong."""
    with conditions.applied(conditions.WRONG_BITS):
        try:
            output = contents(False)
        except guests.ProgramFailed as failure:
            output = failure.output
    good = re.findall(r"^ok \d+ (.*)", output, re.MULTILINE)
    equal((good, "not ok 1 " in output), ([], True), "cases that passed, and whether the first one failed")


def wrong_bits_of_libfabric():
    """Fails unless fi_pingpong reports wrong bits, with kinds of endpoints for which libfabric adds no data of its own to packets."""
    with conditions.applied(conditions.WRONG_BITS):
        for options in (libfabric.DIRECT, libfabric.DGRAM):
            try:
                libfabric.pingpong(options, "4096", {})
            except guests.ProgramFailed as failure:
                equal("Error at iteration" in str(failure), True, f"whether it reports wrong data: {failure}")
            else:
                raise Failed(f"fi_pingpong {' '.join(options)} reported no error")


def soak():
    """Sends many messages between all guests, on a network with loss and reordering."""
    program, others = FOLDER / "contents.py", range(1, guests.GUESTS)
    with contextlib.ExitStack() as stack:
        stack.enter_context(conditions.applied(conditions.LOSS_AND_REORDERING))
        servers = [stack.enter_context(guests.Process(guest, [program, "serve"], CONTENTS_PORT)) for guest in others]
        for server in servers:
            server.await_ready()
        client = stack.enter_context(guests.Process(0, [program, "soak", *map(guests.name, others)]))
        guests.check(client, *servers)
        return client.output


def with_subtests(test):
    """Wraps a test with a program that may print KTAP. The wrapper prints its lines as those of subtests, also if the test fails."""

    def show(output):
        print("".join(f"  {line}\n" for line in output.splitlines()), end="", flush=True)

    def run():
        try:
            show(test() or "")
        except guests.ProgramFailed as failure:
            show(failure.output)
            raise

    return run


def device():
    """Returns the name of the first RDMA device, which is the same on all guests."""
    return sorted(os.listdir("/sys/class/infiniband"))[0]


def tests(parts, short, condition):
    """Yields the tests for a condition of the network as names and functions."""
    lossy = condition.lossy
    if guests.GUESTS == 2:
        if "contents" in parts:
            yield "contents", with_subtests(lambda: contents(lossy))
        if "efa4" in parts:
            yield "the newest devices", with_subtests(lambda: efa4(short))
        if "perftest" in parts:
            yield from perftest.tests(device(), short, condition)
        if "inline" in parts:
            yield from perftest.inline_tests(device(), condition)
        if "libfabric" in parts:
            yield from libfabric.tests(short, lossy)
    elif "soak" in parts and condition is conditions.GOOD:
        yield "many messages, 1 % loss and reordering", with_subtests(soak)
    if "mpi" in parts:
        yield from ((name, with_subtests(test)) for name, test in mpi.tests(short))


def left_on(number):
    """Returns a device's resources, without event queues, and its number of protocol errors."""
    state = emulator.send({"command": "state", "device": number})
    return {kind: count for kind, count in state["resources"].items() if count and kind != "eq"}, state["protocol_errors"]


def left_behind():
    """Fails if a device has resources left, or has detected a protocol error."""
    for number in range(len(emulator.send({"command": "devices"}))):
        # A program that was killed because its test had failed, as with wrong bits, may not have ended yet.
        wait_until(lambda number=number: not left_on(number)[0], f"device {number} has no objects left")
        equal(left_on(number)[1], 0, f"protocol errors of device {number}")


def main(parts, short, good):
    suite = Suite()
    for condition in (conditions.GOOD, *([] if good else conditions.BAD)):
        # In the short form, only contents.py runs on bad networks.
        chosen = parts if condition is conditions.GOOD or not short else ["contents"]
        for name, test in tests(chosen, short, condition):

            def run(condition=condition, test=test):
                with conditions.applied(condition):
                    for _ in range(ROUNDS):
                        test()

            suite.add(name + condition.suffix, run, needs_emulator=condition is not conditions.GOOD or "soak" in parts)
    if "contents" in parts and not good:
        suite.add("wrong bits are detected", wrong_bits_of_ours)
    if "libfabric" in parts and not good:
        suite.add("wrong bits are detected by fi_pingpong", wrong_bits_of_libfabric)
    suite.add("nothing is left behind", left_behind)
    suite.run()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    short, good = "short" in arguments, "good" in arguments
    possible = PARTS if guests.GUESTS == 2 else MORE_PARTS
    parts = [argument for argument in arguments if argument not in ("short", "good")] or possible
    if not set(parts) <= {*possible, *NEXT_PARTS}:
        sys.exit(__doc__)
    guests.lead(main, parts, short, good)
