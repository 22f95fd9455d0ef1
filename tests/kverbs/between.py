#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Data between kernel clients of two guests, on good and bad networks. All guests run this program with the same modules.

usage: between.py MODULE.ko... Each module has the interface that exchange.c describes. Prints KTAP.
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
# For the largest call, the peer reads 16 scattered pages.
CALL_SIZES, MESSAGE_SIZES = (8, 4096, 5000, 65536), (32, 1000, 8192)
QUEUE_PAIRS = 4
WRONG_BITS = re.compile(r"byte \d+ of \d+ of number \d+ is|message of unknown kind 0x[0-9a-f]+")
RESULT = re.compile(r"calls (\d+) bytes (\d+) ns (\d+) latency_ns (\d+)")


class Side:
    """The kernel client of a guest."""

    def __init__(self, guest, module):
        self.guest = guest
        self.file = f"/sys/kernel/debug/{module}/run"

    def process(self, command):
        """Starts a background process that passes a command to the client and prints the answer."""
        return guests.Process(self.guest, ["sh", "-c", f"echo {command} >{self.file} && cat {self.file}"])

    def run(self, command):
        with self.process(command) as process:
            guests.check(process)
            return process.output


@contextlib.contextmanager
def pair(modules, queue_pairs):
    """Yields two clients that have each other's addresses."""
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
    """Runs a command on both sides at once; returns the answer of the first one."""
    with sides[0].process(command) as one, sides[1].process(command) as other:
        guests.check(one, other)
        return one.output


def figures(name, output):
    """Prints rate, latency and throughput."""
    if not (match := RESULT.fullmatch(output)):
        raise Failed(f"{name}: unexpected output: {output!r}")
    count, size, ns, latency = map(int, match.groups())
    each = f", {latency / 1000:,.0f} us each" * (latency > 0)
    print(f"# {name}: {count * 1e9 / ns:,.0f}/s{each}, {size * 1e3 / ns:,.1f} MB/s", flush=True)


log = KernelLog()


def moves(modules, what, count, sizes):
    """Runs COUNT messages or calls of each size, in both directions."""
    with pair(modules, QUEUE_PAIRS) as sides:
        for size in sizes:
            figures(f"{what} of {size} bytes", both(sides, f"{what} {count} {size}"))


def one_at_a_time(modules):
    """Measures the latency, with one queue pair and one call at a time."""
    with pair(modules, 1) as sides:
        *_, result = (both(sides, "exchange 1 8") for _ in range(CALLS // 10))
        figures("exchange of 8 bytes, one at a time", result)


def wrong_bits(modules):
    """Checks that a wrong bit in each packet is detected."""
    list(log.records())
    with pair(modules, 1) as sides, conditions.applied(conditions.WRONG_BITS):
        try:
            both(sides, "send 10 8192")
        except guests.ProgramFailed:
            pass
        else:
            raise Failed("no wrong bit was detected")
    texts = [text for _, text in log.records()]
    equal(any(WRONG_BITS.search(text) for text in texts), True, f"whether the kernel's log reports them: {texts}")


def left_behind():
    """Fails if a device has objects left other than the kernel's doorbells, or if it saw a protocol error."""
    for number in range(len(emulator.send({"command": "devices"}))):
        state = emulator.send({"command": "state", "device": number})
        left = {kind: count for kind, count in state["resources"].items() if count and kind not in ("eq", "uar")}
        equal((left, state["protocol_errors"]), ({}, 0), f"objects of device {number}, and protocol errors")


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
        suite.add(f"wrong bits are detected, {module}", lambda module=module: wrong_bits((module, module)))
    suite.add("nothing is left behind", left_behind)
    suite.run()


if __name__ == "__main__":
    for file in sys.argv[1:]:
        subprocess.run(["insmod", file], check=True)
    guests.lead(main, [Path(file).stem for file in sys.argv[1:]])
