#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Replays sequences of verbs and faults that the driver, built as a program, has recorded, and compares each step. Prints KTAP.

usage: play.py FILE: output of the program `sequences`, a line of JSON for each seed; see host/driver/src/sequence.rs.
"""

import errno
import itertools
import json
import mmap
import re
import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kselftest"))

import objects
from selftest import Failed, Suite, emulator, equal, function_with, result_of, wait_until
from uverbs import opened

# The same as in host/driver/src/sequence.rs.
ATTRIBUTES = {"keep_alive_ms": 0, "admin_timeout": 15, "reset_timeout": 10}
# Register accesses. The health check makes some at times of its own.
HIDDEN = re.compile(r"read |write ")
# Values that differ between runs: command ids, addresses, and offsets that are derived from numbers of objects.
PLACE = re.compile(r"\b(ba|rq_ba|pa|iova|buffer|direct|indirect|guid|db|sq_db|rq_db|llq)=0x[0-9a-f]+|\b(address)=[0-9a-f:]+")
PAGES = re.compile(r"pages=\[[0-9a-f, ]+\]")
ID = re.compile(r"^aq \d+ ")
IN_FLIGHT = re.compile(r" \[\d+ in flight\]$")
# Kinds of numbers of objects, by their names in a trace.
KINDS = {name: name for name in ("uar", "pd", "cq", "qp", "qpn", "ah", "eq", "counter", "lkey", "rkey")} | {
    "send_cq": "cq",
    "recv_cq": "cq",
}
NUMBER = re.compile(rf"\b({'|'.join(KINDS)})=(0x[0-9a-f]+|\d+)")


# The same as in host/driver/src/program.rs.
QKEY = 0x1111


class Traces:
    """The traces of a sequence, with objects numbered in the order of their first appearance."""

    def __init__(self):
        self.numbers = {}

    def number(self, match):
        name, text = match.groups()
        known = self.numbers.setdefault(KINDS[name], {})
        return f"{name}={known.setdefault(text, len(known))}"

    def shown(self, lines):
        """Returns the lines that have to be equal on both sides, without values that differ between runs."""
        shown = []
        for line in lines:
            if HIDDEN.match(line):
                continue
            text = PLACE.sub(r"\1\2=", PAGES.sub("pages", line))
            text = IN_FLIGHT.sub("", ID.sub("aq ", text))
            # The device's attributes use these names for limits on kinds of objects.
            shown.append(text if "_FEATURE(" in text else NUMBER.sub(self.number, text))
        return shown


def same(got, wanted, what):
    """Fails at the first line in which two traces differ."""
    for number, pair in enumerate(itertools.zip_longest(got, wanted)):
        # Where a start fails because of a command's timeout, the monitor may stop the device before the start does.
        if pair != ("reset ADMIN_TO", "reset INIT_ERR"):
            equal(*pair, f"{what}: line {number} of the trace")


class Player:
    """A program and its objects, the newest of each kind last."""

    STATES: ClassVar = {
        "init_qp": (objects.QPS_INIT, objects.QP_STATE | objects.QP_PKEY_INDEX | objects.QP_PORT | objects.QP_QKEY),
        "rtr_qp": (objects.QPS_RTR, objects.QP_STATE),
        "rts_qp": (objects.QPS_RTS, objects.QP_STATE | objects.QP_SQ_PSN),
    }

    def __init__(self, device):
        self.device = device
        self.context = None
        self.memory = objects.Memory(mmap.PAGESIZE)
        self.forget()

    def forget(self):
        self.pds, self.cqs, self.qps, self.ahs, self.mrs, self.counters = [], [], [], [], [], []

    def newest(self, kind):
        if not kind:
            raise OSError(errno.ENOENT, "no object")
        return kind[-1]

    def destroy(self, kind, destroy):
        destroy(self.newest(kind))
        kind.pop()

    def call(self, verb):
        match verb:
            case "counters" | "open" if not self.device.names("infiniband"):
                raise OSError(errno.ENODEV, "no device")
            case "counters":
                if isinstance(value := self.device.counter("tx_bytes", port=True), str):
                    raise OSError(getattr(errno, value), "hw_counters")
                return
            case "open":
                self.context = opened(self.device)
                return
            case "close":
                self.close()
                return
        context, memory = self.newest([self.context] if self.context else []), self.memory
        match verb:
            case "alloc_pd":
                self.pds.append(context.alloc_pd()[0])
            case "create_cq":
                self.cqs.append(objects.CompletionQueue(context))
            case "create_cq_with_events":
                self.cqs.append(objects.CompletionQueue(context, flags=objects.CQ_WITH_COMPLETION_CHANNEL))
            case "create_qp":
                pd, cq = self.newest(self.pds), self.newest(self.cqs)
                self.qps.append(objects.QueuePair(context, pd, cq.handle, cq.handle))
            case "init_qp" | "rtr_qp" | "rts_qp":
                state, mask = self.STATES[verb]
                self.newest(self.qps).modify(mask, state, qkey=QKEY)
            case "query_qp":
                self.newest(self.qps).query()
            case "create_ah":
                self.ahs.append(objects.AddressHandle(context, self.newest(self.pds)))
            case "reg_mr":
                self.mrs.append(objects.MemoryRegion(context, self.newest(self.pds), memory.address, memory.length))
            case "create_counter":
                self.counters.append(objects.CompletionCounter(context, memory.address, memory.address + 8))
            case "set_counter":
                self.newest(self.counters).modify(1)
            case "attach_counter":
                pair = self.newest(self.qps)
                self.newest(self.counters).attach(pair, 1)
            case "dealloc_pd":
                self.destroy(self.pds, context.dealloc_pd)
            case "destroy_cq":
                self.destroy(self.cqs, objects.CompletionQueue.destroy)
            case "destroy_qp":
                self.destroy(self.qps, objects.QueuePair.destroy)
            case "destroy_ah":
                self.destroy(self.ahs, objects.AddressHandle.destroy)
            case "dereg_mr":
                self.destroy(self.mrs, objects.MemoryRegion.dereg)
            case "destroy_counter":
                self.destroy(self.counters, objects.CompletionCounter.destroy)

    def close(self):
        if self.context:
            self.context.close()
        self.context = None
        self.forget()


def play(device, player, step):
    """Executes a step; returns its result."""
    match step:
        case ["fatal_error"]:
            device.event("FATAL_ERROR", 1)
        case ["die"]:
            device.die()
        case ["rebind"]:
            if device.is_bound:
                equal(device.unbind(), "ok", "unbind")
            return device.bind()
        case ["reset"]:
            return result_of((device.sysfs / "reset").write_text, "1")
        case ["inject", rule]:
            emulator.send({"command": "inject", "device": device.number, "rule": rule})
        case [verb]:
            return result_of(player.call, verb)
    return "ok"


def settled(device, step, before):
    """Whether the driver has the state expected after a step. BEFORE is the number of sessions before the program's first."""
    if step["state"] is None:
        return not device.is_bound
    status = device.status()
    return [status["state"], int(status["session"]) - before] == [step["state"], int(step["session"])]


def replay(record):
    device = function_with(f"profile={record['profile']}")
    device.clear()
    device.set(**ATTRIBUTES)
    # A reset removes objects that the device has refused to destroy.
    if not device.is_bound or device.status()["state"] != "up" or device.held():
        device.rebind()
    device.settle()
    before = int(device.status()["session"]) - 1
    player, guest, program = Player(device), Traces(), Traces()
    device.trace()
    try:
        for number, step in enumerate(record["steps"]):
            what = f"step {number}, {json.dumps(step['step'])}"
            equal(play(device, player, step["step"]), step["result"], what)
            if step["step"] == ["rebind"]:
                before = 0
            wait_until(
                lambda step=step, before=before: settled(device, step, before),
                f"{what}: the state {step['state']} of session {step['session']}",
            )
            same(guest.shown(device.trace()), program.shown(step["trace"]), what)
            equal(device.state()["resources"], step["resources"], f"{what}: the objects of the device")
            if step["state"]:
                equal(device.status()["quarantine"], step["quarantine"], f"{what}: the quarantine")
    finally:
        player.close()
        device.clear()


if not emulator:
    raise Failed("needs the emulator")
for profile in ("efa3", "efa4"):
    # Attributes take effect at the next probe.
    function_with(f"profile={profile}").set(**ATTRIBUTES)
    function_with(f"profile={profile}").rebind()
suite = Suite()
for line in Path(sys.argv[1]).read_text().splitlines():
    record = json.loads(line)
    suite.add(f"seed {record['seed']}", lambda record=record: replay(record))
suite.run()
