#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Data between clients in the kernels of two guests, on good and bad networks: all guests run this program with the same modules.

usage: between.py MODULE.ko..., each of which does what exchange.c describes. Prints KTAP.
"""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("kselftest", "interop")]

import conditions
import guests
from selftest import SLOW, Failed, KernelLog, Suite, emulator, equal

CALLS, MESSAGES = 400 // SLOW, 2000 // SLOW
# Of the largest call the peer reads 16 pages that are anywhere.
CALL_SIZES, MESSAGE_SIZES = (8, 4096, 5000, 65536), (32, 1000, 8192)
QUEUE_PAIRS = 4
WRONG_BITS = re.compile(r"byte \d+ of \d+ of number \d+ is|a message of kind 0x[0-9a-f]+ has come")
RESULT = re.compile(r"calls (\d+) bytes (\d+) ns (\d+) latency_ns (\d+)")


class Side:
    """A client in the kernel of a guest."""

    def __init__(self, guest, module):
        self.guest = guest
        self.file = f"/sys/kernel/debug/{module}/run"

    def process(self, command):
        """What does a command there, in the background, and prints the answer."""
        return guests.Process(self.guest, ["sh", "-c", f"echo {command} >{self.file} && cat {self.file}"])

    def run(self, command):
        with self.process(command) as process:
            guests.check(process)
            return process.output


@contextlib.contextmanager
def pair(modules, queue_pairs):
    """Two clients that know each other."""
    sides = [Side(guest, module) for guest, module in enumerate(modules)]
    try:
        addresses = [side.run(f"open {queue_pairs}") for side in sides]
        for side, address in zip(sides, reversed(addresses), strict=True):
            side.run(f"meet {address}")
        yield sides
    finally:
        for side in sides:
            side.run("close")


def both(sides, command):
    """Both do the same at once; returns what the first one says of it."""
    with sides[0].process(command) as one, sides[1].process(command) as other:
        guests.check(one, other)
        return one.output


def figures(name, output):
    """Tells how fast it was."""
    if not (match := RESULT.fullmatch(output)):
        raise Failed(f"{name}: unexpected output: {output!r}")
    count, size, ns, latency = map(int, match.groups())
    each = f", {latency / 1000:,.0f} us each" * (latency > 0)
    print(f"# {name}: {count * 1e9 / ns:,.0f}/s{each}, {size * 1e3 / ns:,.1f} MB/s", flush=True)


log = KernelLog()


def moves(modules, what, count, sizes):
    """Of each size so many, in both directions."""
    with pair(modules, QUEUE_PAIRS) as sides:
        for size in sizes:
            figures(f"{what} of {size} bytes", both(sides, f"{what} {count} {size}"))


def one_at_a_time(modules):
    """A queue pair and a call at a time, for the latency."""
    with pair(modules, 1) as sides:
        *_, result = (both(sides, "exchange 1 8") for _ in range(CALLS // 10))
        figures("exchange of 8 bytes, one at a time", result)


def wrong_bits(modules):
    """A wrong bit of each packet is found."""
    list(log.records())
    with pair(modules, 1) as sides, conditions.applied(conditions.WRONG_BITS):
        try:
            both(sides, "send 10 8192")
        except guests.ProgramFailed:
            pass
        else:
            raise Failed("nothing was noticed")
    texts = [text for _, text in log.records()]
    equal(any(WRONG_BITS.search(text) for text in texts), True, f"that the kernel's log says so: {texts}")


def left_behind():
    """No device has anything left but the doorbells that the kernel keeps, or saw what a correct driver never does."""
    for number in range(len(emulator.send({"command": "devices"}))):
        state = emulator.send({"command": "state", "device": number})
        left = {kind: count for kind, count in state["resources"].items() if count and kind not in ("eq", "uar")}
        equal((left, state["protocol_errors"]), ({}, 0), f"what device {number} has, and protocol errors")


def main(modules):
    suite = Suite()
    alike, mixed = [(module, module) for module in modules], (modules[0], modules[-1])
    for condition in (conditions.GOOD, *conditions.BAD, conditions.LOSS_AND_REORDERING):
        for couple in dict.fromkeys([mixed, *alike] if condition is conditions.GOOD else [mixed]):
            where = f"{' and '.join(couple)}{condition.suffix}"

            def run(test, *arguments, couple=couple, condition=condition):
                with conditions.applied(condition):
                    test(couple, *arguments)

            suite.add(f"messages, {where}", lambda run=run: run(moves, "send", MESSAGES, MESSAGE_SIZES))
            suite.add(f"calls, {where}", lambda run=run: run(moves, "exchange", CALLS, CALL_SIZES))
    for module in modules:
        suite.add(f"one call at a time, {module}", lambda module=module: one_at_a_time((module, module)))
        suite.add(f"wrong bits are noticed, {module}", lambda module=module: wrong_bits((module, module)))
    suite.add("nothing is left behind", left_behind)
    suite.run()


if __name__ == "__main__":
    for file in sys.argv[1:]:
        subprocess.run(["insmod", file], check=True)
    guests.lead(main, [Path(file).stem for file in sys.argv[1:]])
