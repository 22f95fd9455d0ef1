#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests of kernel verbs: runs those of a module. usage: kverbs.py kverbs_client.ko"""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "kselftest"))

import selftest
from selftest import FUNCTIONS, Suite, equal, wait_until

TESTS = {
    "send": "a message",
    "imm": "a message with immediate data",
    "inline": "a message of 32 bytes, inline",
    "events": "events",
    "drain": "queues that the core polls, and drains",
    "rdma": "regions that are registered by work requests, written, read and invalidated",
}
ROUNDS = int(os.environ.get("EFA_ROUNDS") or 3)
# Number of bytes sent by a device after which messages are certainly moving.
MOVING = 1 << 16
HELD = Path("/sys/module/kverbs_client/parameters/held")
PARAMETER = Path("/sys/module/kverbs_client/parameters/test")

suite = Suite()


def ask(test):
    """Runs a test of the module once. A buffered file would repeat a failed write when it is closed."""
    with PARAMETER.open("wb", buffering=0) as file:
        file.write(test.encode())


def run(name):
    before = [function.state()["resources"] for function in FUNCTIONS]
    try:
        ask(name)
    except OSError as error:
        return selftest.errno_name(error.errno)
    finally:
        equal([function.state()["protocol_errors"] for function in FUNCTIONS], [0] * len(FUNCTIONS), "protocol errors")
    after = [function.state()["resources"] for function in FUNCTIONS]
    # The kernel keeps the user access region of its doorbells.
    for one in (*before, *after):
        one.pop("uar")
    equal(after, before, "objects of the devices")
    return "ok"


def held():
    """Returns the result for the queue pairs that were left open."""
    error = -int(HELD.read_text())
    return selftest.errno_name(error) if error else "ok"


def sent(function):
    """Returns the number of bytes that a device has sent."""
    return selftest.emulator.send({"command": "counters"})["devices"][function.number]["tx_bytes"]


def removal_result(how, test="hold"):
    """Returns the results for open queue pairs before and after a removal of their device, and that of a message afterwards."""
    function = FUNCTIONS[0]
    at_first = sent(function)
    ask(test)
    before = held()
    if test == "busy":
        wait_until(lambda: sent(function) > at_first + MOVING, "messages move")
    how(function)
    wait_until(lambda: held() != before, "the client is notified")
    result = held()
    if not function.is_bound:
        function.rebind()
    function.settle()
    for function in FUNCTIONS:
        equal({kind: count for kind, count in function.held().items() if kind != "uar"}, {}, "objects of a device")
    return f"{before}, {result}, {run('send')}"


def dies(function):
    function.die_and_recover()


for name, what in TESTS.items():
    suite.add(what, lambda name=name: run(name), "ok")


# An entry of a completion queue: id, status, flags and queue pair; the rest is for receives.
ENTRY = struct.Struct("<HBBHHHHI16x")
PHASE, SEND, RECEIVE = 1, 1 << 1, 2 << 1


def bogus_completions():
    """Makes the device complete work requests that were never posted, that have completed before, or that are of another type."""
    function = FUNCTIONS[0]
    trace = {"command": "trace", "device": function.number}
    selftest.emulator.send(trace)
    ask("hold")
    lines = "\n".join(selftest.emulator.send(trace)["lines"])
    (cq,) = re.findall(r"CREATE_CQ\(.*\bcq=(\d+)", lines)
    (qpn,) = re.findall(r"CREATE_QP\(.*\bqpn=(\d+)", lines)
    qpn, other = int(qpn), (int(qpn) + 1) % 0x10000
    entries = [
        (3, 0, PHASE | RECEIVE, other, 10, 0, 0, 0),
        (0xFFFF, 0, PHASE | RECEIVE, qpn, 10, 0, 0, 0),
        (7, 0, PHASE | SEND, qpn, 0, 0, 0, 0),
        (3, 0, PHASE, qpn, 10, 0, 0, 0),
        (3, 0, PHASE | SEND | RECEIVE, qpn, 10, 0, 0, 0),
        (1, 0, PHASE | SEND, qpn, 0, 0, 0, 0),
        (1, 0, PHASE | SEND, qpn, 0, 0, 0, 0),
        (3, 0, PHASE | RECEIVE, qpn, 10, 0, 0, 0),
        (3, 0, PHASE | RECEIVE, qpn, 10, 0, 0, 0),
        (16, 0, PHASE | RECEIVE, qpn, 10, 0, 0, 0),
    ]
    data = b"".join(ENTRY.pack(*entry) for entry in entries)
    selftest.emulator.send({"command": "poke", "device": function.number, "queue": {"cq": int(cq)}, "data": list(data)})
    ask("bogus")
    return held()


def rounds(how):
    """Returns the different results of repeated removals while messages are in flight."""
    results = {removal_result(how, "busy") for _ in range(ROUNDS)}
    return " / ".join(sorted(results))


def unbound(function):
    function.unbind()


suite.add("a device that sends bogus completions", bogus_completions, "ok")
GONE = "EINPROGRESS, ok, ok"
suite.add("a device that is unbound", lambda: removal_result(unbound), GONE)
suite.add("a device that dies", lambda: removal_result(dies), GONE)
suite.add(f"a device that is unbound under load, {ROUNDS} times", lambda: rounds(unbound), GONE)
suite.add(f"a device that dies under load, {ROUNDS} times", lambda: rounds(dies), GONE)

subprocess.run(["insmod", sys.argv[1]], check=True)
try:
    suite.run()
finally:
    # A program of another client may run next.
    subprocess.run(["rmmod", "kverbs_client"], check=True)
