#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A device that refuses, goes silent or errs in the middle of each verb: the verb ends in time and nothing is lost."""

import contextlib
import errno
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import objects
import selftest
from recovery import Recovery
from selftest import Skipped, Suite, equal, function_with, result_of
from uverbs import EVENT_DEVICE_FATAL, Context, opened

if not selftest.emulator:
    selftest.skip_all("needs the emulator")

suite = Suite()
# The one that has all kinds of objects.
main = function_with("profile=efa4")

# The device announces it, in units of 100 ms. A device that fails no sooner is not taken for one that fails all the time.
ADMIN_TIMEOUT = 5
# Seconds that one verb may take in which a command is not answered: the time limit, and what a busy host adds.
BOUND = ADMIN_TIMEOUT / 10 + 2

# So many that one message for each would fill the log; and how many messages of a kind there may be in 5 s.
MANY, MESSAGES = 100, 10

# Commands that the driver has in flight at most.
SLOTS = 32
# How long a command may take while a hundred threads begin to wait for theirs.
LONG_TIMEOUT_MS = 5000 * selftest.SLOW

FAULTS = {
    "is refused": {"status": "UNKNOWN_ERROR"},
    "is not answered": {"silence": True},
    "is answered with a wrong id": {"wrong_id": True},
    "is answered without an interrupt": {"no_interrupt": True},
}
UNANSWERED = ("is not answered", "is answered with a wrong id")


def prepare():
    """A device that is newly bound and misbehaves in no way."""
    behave()
    main.rebind()


def behave():
    """A device that misbehaves in no way, has a short time limit, and no interrupts but for commands."""
    main.clear()
    main.set(admin_timeout=ADMIN_TIMEOUT, keep_alive_ms=0)


def is_usable():
    return result_of(lambda: opened(main).close()) == "ok"


def pinned():
    """Memory of this process that is pinned, in KiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmPin"))


class Set:
    """A context with one object of each kind, made in the order in which they need each other."""

    MEMORY = objects.Memory(64 * mmap.PAGESIZE)
    VALUES = objects.Memory(mmap.PAGESIZE)
    STEPS = (
        "open alloc_pd create_cq create_cq_with_events create_qp modify_qp query_qp"
        " create_comp_cntr modify_comp_cntr attach_comp_cntr create_ah reg_mr"
    ).split()

    def __init__(self, until=None):
        self.stack = contextlib.ExitStack()
        self.attached = 0
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

    def modify_qp(self):
        self.qp.modify(objects.QP_STATE | objects.QP_PKEY_INDEX | objects.QP_PORT | objects.QP_QKEY, objects.QPS_INIT)

    def query_qp(self):
        self.qp.query()

    def create_comp_cntr(self):
        self.counter = objects.CompletionCounter(self.context, self.VALUES.address, self.VALUES.address + 8)

    def modify_comp_cntr(self):
        self.counter.modify(1)

    def attach_comp_cntr(self):
        # Each time to count something else.
        self.attached += 1
        self.counter.attach(self.qp, 1 << self.attached - 1)

    def create_ah(self):
        self.ah = objects.AddressHandle(self.context, self.pd)

    def reg_mr(self):
        # More pages than fit the command, so that the device reads a list.
        self.mr = objects.MemoryRegion(self.context, self.pd, self.MEMORY.address, self.MEMORY.length)

    def dereg_mr(self):
        self.mr.dereg()

    def destroy_ah(self):
        self.ah.destroy()

    def destroy_qp(self):
        self.qp.destroy()

    def destroy_comp_cntr(self):
        self.counter.destroy()

    def destroy_cq(self):
        self.cq.destroy()

    def destroy_cq_with_events(self):
        self.events.destroy()

    def dealloc_pd(self):
        self.context.dealloc_pd(self.pd)

    def counters(self):
        value = main.counter("tx_bytes", port=True)
        if value != 0:
            raise OSError(getattr(errno, value), "hw_counters")

    def close(self):
        self.stack.close()


# What is destroyed last, in this order.
LAST = ("destroy_comp_cntr", "destroy_cq", "destroy_cq_with_events", "dealloc_pd")

# Verbs, the command that each causes, and what has to be gone before it.
VERBS = {
    "open": ("ALLOC_UAR", ()),
    "alloc_pd": ("ALLOC_PD", ()),
    "create_cq": ("CREATE_CQ", ()),
    "create_cq_with_events": ("CREATE_CQ", ()),
    "create_qp": ("CREATE_QP", ()),
    "modify_qp": ("MODIFY_QP", ()),
    "query_qp": ("QUERY_QP", ()),
    "create_comp_cntr": ("CREATE_EVENT_COUNTER", ()),
    "modify_comp_cntr": ("MODIFY_EVENT_COUNTER", ()),
    "attach_comp_cntr": ("ATTACH_EVENT_COUNTER", ()),
    "create_ah": ("CREATE_AH", ()),
    "reg_mr": ("REG_MR", ()),
    "counters": ("GET_STATS", ()),
    "dereg_mr": ("DEREG_MR", ()),
    "destroy_ah": ("DESTROY_AH", ()),
    "destroy_qp": ("DESTROY_QP", ()),
    "destroy_comp_cntr": ("DESTROY_EVENT_COUNTER", ("destroy_qp",)),
    "destroy_cq": ("DESTROY_CQ", ("destroy_qp",)),
    "destroy_cq_with_events": ("DESTROY_CQ", ()),
    "dealloc_pd": ("DEALLOC_PD", ("destroy_qp", "destroy_ah", "dereg_mr")),
    "close": ("DEALLOC_UAR", ("dereg_mr", "destroy_ah", "destroy_qp", *LAST)),
}

# When these end, there are neither queue pairs nor memory regions.
WITHOUT_LASTING = ("open", "alloc_pd", "create_cq", "create_cq_with_events", "create_qp", "dealloc_pd", "close")


def timed(action):
    """The result of a verb, which has to come in time."""
    start = time.monotonic()
    result = result_of(action)
    took = time.monotonic() - start
    if took > BOUND:
        raise selftest.Failed(f"it took {took:.1f} s, which is more than {BOUND} s")
    return result


def clean_attempt():
    """All verbs work, and leave nothing."""
    everything = Set()
    for verb in ("counters", "dereg_mr", "destroy_ah", "destroy_qp", *LAST):
        getattr(everything, verb)()
    everything.close()
    equal(main.held(), {}, "what the device has after a clean attempt")


def faulty(verb, fault):
    """What becomes of a verb and of the next one, what the device has when all is closed, and whether it can go on."""
    opcode, before = VERBS[verb]
    if selftest.DRIVER == "c" and fault != "is refused" and verb not in WITHOUT_LASTING:
        raise Skipped("the C driver can't destroy queue pairs and regions then, and the kernel warns of it")
    if selftest.DRIVER == "c" and (fault, verb) == ("is refused", "destroy_ah"):
        raise Skipped("the C driver keeps the handle among those that others may share, and warns of it when it is unbound")
    if not main.is_bound or main.held() or not is_usable():
        prepare()
    memory = pinned()
    recovery = selftest.DRIVER == "rust" and fault in UNANSWERED and Recovery(main, "command_timeout")
    objects_of_case = Set(until=verb)
    for other in before:
        getattr(objects_of_case, other)()
    hit = main.state()["faults_hit"]
    main.inject({"opcode": opcode}, FAULTS[fault], times=1)
    results = [timed(getattr(objects_of_case, verb))]
    equal(main.state()["faults_hit"] - hit, 1, "how often the device was at fault")
    if recovery:
        recovery.wait()
        equal(pinned(), memory, "KiB of memory that is pinned after a reset")
    if verb not in ("open", "close"):
        results.append("then " + timed(getattr(objects_of_case, "query_qp" if verb == "destroy_qp" else verb)))
        if recovery:
            equal(objects_of_case.context.event(), EVENT_DEVICE_FATAL, "the event that the process gets")
            equal(timed(objects_of_case.context.alloc_pd), "EIO", "another verb of the process")
    before_close = main.held()
    timed(objects_of_case.close)
    kept = main.held()
    usable = is_usable()
    if kept and kept == before_close:
        results.append("all stays")
    elif kept:
        results.append(", ".join(f"{count} {name}" for name, count in sorted(kept.items())) + " stays")
    results.append("needs a reset" if not usable else "comes back" if recovery else "goes on")
    if kept or not usable:
        prepare()
    equal(main.held(), {}, "what the device has after a reset")
    clean_attempt()
    if pinned() != memory:
        results.append(f"{pinned() - memory} KiB stay pinned")
    return "; ".join(results)


def attempt(verb, fault):
    try:
        return faulty(verb, fault)
    except BaseException:
        # The next one is not to suffer from it. The C driver waits for those who have the device open.
        (behave if selftest.DRIVER == "c" else prepare)()
        raise


# What a device keeps that refuses to free it, and what that needs. The process is told of others, and can try again.
REFUSED = {
    "destroy_ah": "1 ah, 1 pd",
    "destroy_comp_cntr": "1 event_counter, 1 uar",
    "destroy_cq": "1 cq, 1 uar",
    "destroy_cq_with_events": "1 cq, 1 uar",
    "dealloc_pd": "1 pd",
    "close": "all",
}


def wanted(verb, fault):
    """What is destroyed without an answer is gone when the device is reset. Then a process has nothing of the device any more,
    but another can read its counters."""
    makes = verb in Set.STEPS or verb == "counters"
    match fault:
        case "is refused" if verb in REFUSED:
            parts = ["ok", "then ENOENT", f"{REFUSED[verb]} stays", "goes on"]
        case "is refused":
            parts = ["EINVAL", "then ok", "goes on"]
        case "is answered without an interrupt":
            parts = ["ok", "then ok" if makes else "then ENOENT", "goes on"]
        case _:
            parts = ["ETIME", "then EIO"] if makes else ["ok", "then ENOENT"]
            if verb == "counters":
                parts[1] = "then ok"
            parts.append("comes back")
    if verb in ("open", "close"):
        # There is no next one; and what it was about is gone.
        parts.pop(1)
    return "; ".join(parts)


def add_faults():
    for verb, (opcode, _) in VERBS.items():
        for fault in FAULTS:
            suite.add(f"{verb}: {opcode} {fault}", lambda verb=verb, fault=fault: attempt(verb, fault), wanted(verb, fault))


def run_to_its_end():
    """Makes and destroys everything, but for what fails; returns how many verbs did."""
    failed, everything = 0, Set(until="open")
    for verb in (*Set.STEPS, "dereg_mr", "destroy_ah", "destroy_qp", *LAST):
        try:
            getattr(everything, verb)()
        except (OSError, AttributeError):
            # One that failed, or one that needs what another did not make.
            failed += 1
    everything.close()
    return failed


def in_turn(status):
    """One command after the other that makes something fails: neither side keeps anything."""
    prepare()
    memory = pinned()
    for number in range(len(Set.STEPS)):
        hit = main.state()["faults_hit"]
        main.inject({"opcode": "ANY"}, {"status": status}, skip=number, times=1)
        failed = run_to_its_end()
        equal(main.state()["faults_hit"], hit + 1, f"faults when command {number} was to fail")
        equal(failed > 0, True, f"a verb failed with command {number}")
        equal(main.held(), {}, f"what the device has after command {number} failed")
        equal(pinned(), memory, f"KiB of pinned memory after command {number} failed")
        behave()
    clean_attempt()


for name in ("UNKNOWN_ERROR", "RESOURCE_ALLOCATION_FAILURE"):
    suite.add(f"each command of a process that makes one of each fails with {name}", lambda name=name: in_turn(name))


@suite.case("many objects of a device that has died do not fill the log", "ok")
def noise_of_the_dead():
    prepare()
    log = selftest.KernelLog()
    list(log.records())
    recovery = selftest.DRIVER == "rust" and Recovery(main, "command_timeout")
    with opened(main) as context:
        for _ in range(MANY):
            objects.CompletionQueue(context)
        main.inject({"opcode": "ANY"}, {"silence": True})
    # That destroys them all. Messages are of no more than four kinds, such as: no answer, or memory that is kept.
    lines = [text for _, text in log.records() if main.address in text]
    if not 0 < len(lines) <= 4 * MESSAGES:
        raise selftest.Failed(f"the log has {len(lines)} lines")
    behave()
    if recovery:
        recovery.wait(may_have_tried=True)
    # What it has advised since may not be what it is to be from here on.
    prepare()
    return "ok"


def waiters():
    """How many threads of this process wait for a slot."""
    stacks = [task.read_text() for task in Path("/proc/self/task").glob("*/stack")]
    return sum("AdminQueue" in stack and "submit" in stack for stack in stacks)


@suite.case("a queue pair and a region live on whose destruction finds no slot", "ETIME ETIME, then ok ok")
def no_slot():
    if selftest.DRIVER == "c":
        raise Skipped("the C driver waits for a slot for as long as it takes")
    behave()
    main.set(admin_completion_timeout_ms=LONG_TIMEOUT_MS)
    main.rebind()
    everything, ready = Set(), Event()
    # All slots are taken for longer than anybody waits for one, and no command takes longer than it may.
    main.inject({"opcode": "ANY"}, {"delay_ms": LONG_TIMEOUT_MS * 4 // 5})
    try:
        with ThreadPoolExecutor(3 * SLOTS + 2) as pool:
            others = [pool.submit(lambda: ready.wait() and result_of(everything.alloc_pd)) for _ in range(3 * SLOTS)]
            ready.set()
            selftest.wait_until(lambda: waiters() == 2 * SLOTS, "all slots are taken, and two threads wait for each", LONG_TIMEOUT_MS / 2000)
            late = [pool.submit(result_of, verb) for verb in (everything.destroy_qp, everything.dereg_mr)]
            results = " ".join(verb.result() for verb in late)
            behave()
        equal({other.result() for other in others}, {"ok"}, "the others")
        equal([main.held().get(kind) for kind in ("qp", "mr")], [1, 1], f"queue pairs and regions of the device after {results}")
        results += ", then " + " ".join(result_of(verb) for verb in (everything.destroy_qp, everything.dereg_mr))
    finally:
        behave()
        everything.close()
        held = main.held()
        prepare()
    equal(held, {}, "what the device has")
    return results


@suite.case("a device without event queues has no completion channels", "EOPNOTSUPP; nothing")
def no_event_queues():
    if selftest.DRIVER == "c":
        raise Skipped("the C driver follows a pointer into an array of none, and the kernel oopses")
    function = function_with("profile=efa2,msix=1")
    if not function:
        raise Skipped("there is no such device")
    if not function.is_bound:
        function.rebind()
    with opened(function) as context:
        result = result_of(lambda: objects.CompletionQueue(context, flags=objects.CQ_WITH_COMPLETION_CHANNEL))
        return result + "; " + ("a queue" if function.state()["resources"]["cq"] else "nothing")


add_faults()
try:
    suite.run()
finally:
    main.clear()
    main.rebind()
