# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What objects_faults.py and objects_timeouts.py share: a device that errs in the middle of a verb, and what becomes of that."""

import contextlib
import errno
import mmap

import objects
import selftest
from recovery import Recovery
from selftest import Skipped, equal, function_with, result_of
from uverbs import EVENT_DEVICE_FATAL, Context, opened

# The one that has all kinds of objects.
main = function_with("profile=efa4")

# Attributes that it has meanwhile. No interrupts come but for commands.
attributes = {"keep_alive_ms": 0}

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
    """A device that misbehaves in no way."""
    main.clear()
    main.set(**attributes)


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
        if isinstance(value, str):
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
    memory, unanswered = pinned(), main.counter("no_completion_cmds")
    recovery = selftest.DRIVER == "rust" and fault in UNANSWERED and Recovery(main, "command_timeout")
    objects_of_case = Set(until=verb)
    for other in before:
        getattr(objects_of_case, other)()
    hit = main.state()["faults_hit"]
    main.inject({"opcode": opcode}, FAULTS[fault], times=1)
    results = [result_of(getattr(objects_of_case, verb))]
    equal(main.state()["faults_hit"] - hit, 1, "how often the device was at fault")
    if recovery:
        recovery.wait()
        equal(pinned(), memory, "KiB of memory that is pinned after a reset")
    if verb not in ("open", "close"):
        results.append("then " + result_of(getattr(objects_of_case, "query_qp" if verb == "destroy_qp" else verb)))
        if recovery:
            equal(objects_of_case.context.event(), EVENT_DEVICE_FATAL, "the event that the process gets")
            equal(result_of(objects_of_case.context.alloc_pd), "EIO", "another verb of the process")
    before_close = main.held()
    result_of(objects_of_case.close)
    # Whatever is done after a time limit has passed, nobody waits for a second one. Counters take several commands, and what has no
    # interrupt is found with that of the next one.
    in_vain = fault != "is refused" and (verb, fault) != ("counters", "is answered without an interrupt")
    equal(main.counter("no_completion_cmds") - unanswered, int(in_vain), "commands that were waited for in vain")
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


def add_faults(suite, faults):
    """Adds a test case of each verb with each of these faults."""
    for verb, (opcode, _) in VERBS.items():
        for fault in faults:
            suite.add(f"{verb}: {opcode} {fault}", lambda verb=verb, fault=fault: attempt(verb, fault), wanted(verb, fault))


def run(suite):
    """Runs a program's test cases and leaves the device as it always is."""
    if not selftest.emulator:
        selftest.skip_all("needs the emulator")
    prepare()
    try:
        suite.run()
    finally:
        main.clear()
        main.rebind()
