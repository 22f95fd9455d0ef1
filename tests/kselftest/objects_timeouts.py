#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A device that does not respond to the command of a verb. The verbs here leave neither queue pairs nor memory regions, which the C
driver could not destroy then. host/driver/tests/driver/verbs.rs tests all verbs.
"""

import contextlib

import objects
import selftest
from recovery import Recovery
from selftest import DRIVER, Suite, equal, function_with, result_of
from uverbs import EVENT_DEVICE_FATAL, Context, opened

# Commands are the only cause of interrupts. A command may take 1.5 s, the maximum that a device can announce.
ATTRIBUTES = {"keep_alive_ms": 0, "admin_timeout": 15}

FAULTS = {
    "is not answered": {"silence": True},
    "is answered with a wrong id": {"wrong_id": True},
    "is answered without an interrupt": {"no_interrupt": True},
}

main = function_with("profile=efa4")


def prepare():
    """Rebinds the device without faults."""
    main.clear()
    main.set(**ATTRIBUTES)
    main.rebind()


def is_usable():
    return result_of(lambda: opened(main).close()) == "ok"


class Set:
    """A context and its objects, created in the order of their dependencies."""

    STEPS = ("open", "alloc_pd", "create_cq", "create_cq_with_events", "create_qp")

    def __init__(self, until):
        self.stack = contextlib.ExitStack()
        for step in self.STEPS:
            if step == until:
                break
            getattr(self, step)()

    def open(self):
        self.context = Context(main.uverbs())
        self.stack.callback(self.context.close)
        self.context.get_context()

    def alloc_pd(self):
        self.pd, _ = self.context.alloc_pd()

    def create_cq(self):
        self.cq = objects.CompletionQueue(self.context)

    def create_cq_with_events(self):
        self.events = objects.CompletionQueue(self.context, flags=objects.CQ_WITH_COMPLETION_CHANNEL)

    def create_qp(self):
        self.qp = objects.QueuePair(self.context, self.pd, self.cq.handle, self.cq.handle)

    def dealloc_pd(self):
        self.context.dealloc_pd(self.pd)

    def close(self):
        self.stack.close()


# Verbs, the command of each, and the step before which the creation of objects stops.
VERBS = {
    "open": ("ALLOC_UAR", "open"),
    "alloc_pd": ("ALLOC_PD", "alloc_pd"),
    "create_cq": ("CREATE_CQ", "create_cq"),
    "create_cq_with_events": ("CREATE_CQ", "create_cq_with_events"),
    "create_qp": ("CREATE_QP", "create_qp"),
    "dealloc_pd": ("DEALLOC_PD", "create_qp"),
    "close": ("DEALLOC_UAR", "alloc_pd"),
}


def faulty(verb, fault):
    """Returns the results of a verb and of its repetition, whether the device keeps objects after the close, and whether it is usable."""
    opcode, until = VERBS[verb]
    if not main.is_bound or main.held() or not is_usable():
        prepare()
    unanswered = main.counter("no_completion_cmds")
    recovery = DRIVER == "rust" and fault != "is answered without an interrupt" and Recovery(main, "command_timeout")
    objects_of_case = Set(until)
    hit = main.state()["faults_hit"]
    main.inject({"opcode": opcode}, FAULTS[fault], times=1)
    results = [result_of(getattr(objects_of_case, verb))]
    equal(main.state()["faults_hit"] - hit, 1, "faults of the device")
    if recovery:
        recovery.wait()
    if verb not in ("open", "close"):
        results.append("then " + result_of(getattr(objects_of_case, verb)))
        if recovery:
            equal(objects_of_case.context.event(), EVENT_DEVICE_FATAL, "the event of the process")
            equal(result_of(objects_of_case.context.alloc_pd), "EIO", "another verb of the process")
    before_close = main.held()
    result_of(objects_of_case.close)
    equal(main.counter("no_completion_cmds") - unanswered, 1, "commands without a completion")
    kept = main.held()
    if kept:
        equal(kept, before_close, "objects of the device")
        results.append("objects remain")
    usable = is_usable()
    results.append("needs a reset" if not usable else "recovers" if recovery else "continues")
    if kept or not usable:
        prepare()
    equal(main.held(), {}, "objects of the device after a reset")
    return "; ".join(results)


if not selftest.emulator:
    selftest.skip_all("needs the emulator")
suite = Suite()
for verb, (opcode, _) in VERBS.items():
    for fault in FAULTS:
        # differences.md has the result of each driver.
        suite.add(f"{verb}: {opcode} {fault}", lambda verb=verb, fault=fault: faulty(verb, fault))
prepare()
try:
    suite.run()
finally:
    main.clear()
    main.rebind()
