#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Replays sequences of verbs and faults that the driver, built as a program, has recorded, and compares each step. Prints KTAP.

usage: play.py FILE: output of the program `sequences`, a line of JSON for each seed; see host/driver/src/sequence.rs.
"""

import collections
import errno
import itertools
import json
import mmap
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kselftest"))

import objects
from selftest import Failed, Suite, emulator, equal, function_with, result_of, wait_until
from uverbs import opened

# The same as in host/driver/src/sequence.rs.
ATTRIBUTES = {"keep_alive_ms": 0, "admin_timeout": 15, "reset_timeout": 10}
# Register accesses. The health check makes some at times of its own.
HIDDEN = re.compile(r"read |write ")
# Values that differ between runs: command ids, addresses, and offsets that are derived from numbers of objects.
PLACE = re.compile(
    r"\b((?:base_)?address|rq_base_addr|paddr|iova|first|second|third|fourth|guid|\w*db_offset|llq_descriptors_offset)=0x[0-9a-f]+"
    r"|\b(addr)=[0-9a-f:]+"
)
ID = re.compile(r"^aq \d+ ")
IN_FLIGHT = re.compile(r" \[\d+ in flight\]$")
# Kinds of numbers of objects, by their names in a trace.
KINDS = {name: name for name in ("uar", "pd", "cq_idx", "qp_handle", "qp_num", "ah", "eqn", "cntr_handle", "l_key", "r_key")}
KINDS |= {"send_cq_idx": "cq_idx", "recv_cq_idx": "cq_idx"}
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
            text = PLACE.sub(r"\1\2=", line)
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

    def __init__(self, device):
        self.device = device
        self.context = None
        self.memory = objects.Memory(mmap.PAGESIZE)
        self.made = collections.defaultdict(list)

    def newest(self, kind):
        if not self.made[kind]:
            raise OSError(errno.ENOENT, "no object")
        return self.made[kind][-1]

    def call(self, verb):
        if verb in ("counters", "open") and not self.device.names("infiniband"):
            raise OSError(errno.ENODEV, "no device")
        if verb == "counters":
            if isinstance(value := self.device.counter("tx_bytes", port=True), str):
                raise OSError(getattr(errno, value), "hw_counters")
        elif verb == "open":
            self.context = opened(self.device)
        elif verb == "close":
            self.close()
        elif not self.context:
            raise OSError(errno.ENOENT, "no object")
        elif verb in CREATE:
            kind, create = CREATE[verb]
            self.made[kind].append(create(self, self.context))
        elif verb in DESTROY:
            kind, destroy = DESTROY[verb]
            destroy(self.newest(kind))
            self.made[kind].pop()
        else:
            USE[verb](self)

    def close(self):
        if self.context:
            self.context.close()
        self.context = None
        self.made.clear()


CREATE = {
    "alloc_pd": ("pd", lambda _, context: (context, context.alloc_pd()[0])),
    "create_cq": ("cq", lambda _, context: objects.CompletionQueue(context)),
    "create_cq_with_events": ("cq", lambda _, context: objects.CompletionQueue(context, flags=objects.CQ_WITH_COMPLETION_CHANNEL)),
    "create_qp": ("qp", lambda p, context: objects.QueuePair(context, p.newest("pd")[1], *[p.newest("cq").handle] * 2)),
    "create_ah": ("ah", lambda p, context: objects.AddressHandle(context, p.newest("pd")[1])),
    "reg_mr": ("mr", lambda p, context: objects.MemoryRegion(context, p.newest("pd")[1], p.memory.address, p.memory.length)),
    "create_counter": ("counter", lambda p, context: objects.CompletionCounter(context, p.memory.address, p.memory.address + 8)),
}
DESTROY = {
    "dealloc_pd": ("pd", lambda pd: pd[0].dealloc_pd(pd[1])),
    "destroy_cq": ("cq", objects.CompletionQueue.destroy),
    "destroy_qp": ("qp", objects.QueuePair.destroy),
    "destroy_ah": ("ah", objects.AddressHandle.destroy),
    "dereg_mr": ("mr", objects.MemoryRegion.dereg),
    "destroy_counter": ("counter", objects.CompletionCounter.destroy),
}
INIT = objects.QP_STATE | objects.QP_PKEY_INDEX | objects.QP_PORT | objects.QP_QKEY
USE = {
    "init_qp": lambda p: p.newest("qp").modify(INIT, objects.QPS_INIT, qkey=QKEY),
    "rtr_qp": lambda p: p.newest("qp").modify(objects.QP_STATE, objects.QPS_RTR, qkey=QKEY),
    "rts_qp": lambda p: p.newest("qp").modify(objects.QP_STATE | objects.QP_SQ_PSN, objects.QPS_RTS, qkey=QKEY),
    "query_qp": lambda p: p.newest("qp").query(),
    "set_counter": lambda p: p.newest("counter").modify(1),
    "attach_counter": lambda p: (pair := p.newest("qp")) and p.newest("counter").attach(pair, 1),
}


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
