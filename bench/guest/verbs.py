#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Calls each verb of the control path in a guest, where count.rs counts the kernel's instructions.

Arguments: a folder, and which parts to run: verbs, growth. The folder's results.json has the results of this program: the
names of the samples, commands and round trips per call, bytes per object, round trips of a probe. The folder also has a copy
of the kernel's symbols.
"""

import ctypes
import gc
import mmap
import os
import resource
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/kselftest"))

import marks
import objects
import selftest
from objects import QP_PKEY_INDEX, QP_PORT, QP_QKEY, QP_SQ_PSN, QP_STATE
from uverbs import Context

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE, HUGE_PAGE = 4 * KIB, 2 * MIB

# Number of counted calls of a verb, and of calls before them, which fill caches and whose commands are counted.
SAMPLES, FIRST = 21, 2
# Numbers of existing objects at which the creation of another one is measured.
LEVELS = (1, 100, 10000)
# Duration of each command in ms: so long that its caller always sleeps, even on a busy host.
DELAY = 8
# Duration in ms while commands are counted: so long that commands that are submitted together are executed together.
LONG_DELAY = 50
# Pause before each sample in seconds. Other tasks finish their work, so that the kernel can switch to the idle task only.
PAUSE = 0.003
# Sizes of each queue: perftest's defaults.
CQ_ENTRIES, SEND_DEPTH, RECV_DEPTH = 1024, 128, 512
SEND_WQE, RECV_WQE = 64, 16

commands = {}
memory = {}


class Pages:
    """Memory without physically adjacent pages, so that each page needs a separate entry in any list."""

    STRIDE = 5

    def __init__(self, length, huge=False):
        page = HUGE_PAGE if huge else PAGE
        self.memory = mmap.mmap(-1, length + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.address = start + -start % page
        self.length = length
        self.memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        count = length // page
        for number in range(count):
            self.memory[self.address - start + number * self.STRIDE % count * page] = 1
        if huge and self.huge_bytes() < length:
            raise selftest.Failed(f"the kernel has no huge pages for {length} bytes: the guest needs more memory")

    def huge_bytes(self):
        """Returns the number of bytes of this memory in huge pages."""
        found, inside = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            word = line.split()[0]
            if "-" in word:
                first, last = (int(part, 16) for part in word.split("-"))
                inside = first <= self.address < last
            elif inside and word == "AnonHugePages:":
                found = int(line.split()[1]) * KIB
        return found


def slow(function, delay=DELAY):
    """Makes the device delay each response."""
    function.clear()
    function.inject({"opcode": "ANY"}, {"delay_ms": delay})


def observe(function, name, action):
    """Records the number of commands, round trips and register reads of a call."""
    slow(function, LONG_DELAY)
    before = function.state()
    result = action()
    after = function.state()
    slow(function)
    now, then = after["admin"], before["admin"]
    commands[name] = {
        "commands": now["submitted"] - then["submitted"],
        "round_trips": now["round_trips"] - then["round_trips"],
        "register_reads": after["register_reads"] - before["register_reads"],
    }
    return result


def count(name, action):
    """Counts the instructions of a call."""
    time.sleep(PAUSE)
    with marks.counted():
        result = action()
    marks.end_sample(name)
    return result


class Bench:
    """The verbs on one device."""

    def __init__(self, function):
        self.function = function
        self.path = function.uverbs()

    def open(self):
        context = Context(self.path)
        context.get_context()
        return context

    def pair(self, make_name, make, destroy_name, destroy, samples=SAMPLES):
        """Creates and destroys an object repeatedly."""
        for number in range(FIRST + samples):
            if number < FIRST:
                made = observe(self.function, make_name, make)
                observe(self.function, destroy_name, lambda made=made: destroy(made))
            else:
                made = count(make_name, make)
                count(destroy_name, lambda made=made: destroy(made))

    def call(self, name, action, between=None):
        """Makes a call repeatedly."""
        for number in range(FIRST + SAMPLES):
            if between:
                between()
            if number < FIRST:
                observe(self.function, name, action)
            else:
                count(name, action)

    def verbs(self):
        self.pair("open context", self.open, "close context", Context.close)
        context = self.open()
        self.pair("alloc PD", context.alloc_pd, "dealloc PD", lambda pd: context.dealloc_pd(pd[0]))
        pd, _ = context.alloc_pd()
        self.queues(context, pd)

        def make():
            return objects.AddressHandle(context, pd)

        self.pair("create AH", make, "destroy AH", objects.AddressHandle.destroy)
        known = make()
        self.pair("create AH of a known peer", make, "destroy AH of a known peer", objects.AddressHandle.destroy)
        known.destroy()
        self.regions(context, pd)
        self.call("query device", context.query_device)
        self.call("query port", lambda: context.query_port(1))
        context.close()
        self.counters()
        self.function.clear()

    def queues(self, context, pd):
        def make_cq(**options):
            return objects.CompletionQueue(context, cqe=CQ_ENTRIES, **options)

        def make_qp(**options):
            sizes = {"sq_ring_size": SEND_DEPTH * SEND_WQE, "rq_ring_size": RECV_DEPTH * RECV_WQE}
            return objects.QueuePair(context, pd, cq.handle, cq.handle, SEND_DEPTH, RECV_DEPTH, **sizes, **options)

        queue, pair = objects.CompletionQueue, objects.QueuePair
        self.pair("create CQ", make_cq, "destroy CQ", queue.destroy)
        channel = objects.CompletionChannel(context)

        def make():
            return make_cq(channel=channel.fd, flags=objects.CQ_WITH_COMPLETION_CHANNEL)

        self.pair("create CQ with channel", make, "destroy CQ with channel", queue.destroy)
        cq = make_cq()
        self.mappings("CQ ring", context, cq.response.q_mmap_key, cq.response.q_mmap_size)

        self.pair("create QP (SRD)", make_qp, "destroy QP (SRD)", pair.destroy)
        self.pair("create QP (UD)", lambda: make_qp(qp_type=objects.QPT_UD), "destroy QP (UD)", pair.destroy)
        qp = make_qp()
        self.mappings("RQ ring", context, qp.response.rq_mmap_key, qp.response.rq_mmap_size)
        self.mappings("SQ doorbell", context, qp.response.sq_db_mmap_key, PAGE)
        self.modify(make_qp)
        qp.to_rts()
        self.call("query QP", lambda: qp.query(QP_STATE))
        self.completion_counters(context, make_qp)

    def completion_counters(self, context, make_qp):
        values = Pages(PAGE)

        def make():
            return objects.CompletionCounter(context, values.address, values.address + 8)

        self.pair("create completion counter", make, "destroy completion counter", objects.CompletionCounter.destroy)
        counter = make()
        self.call("modify completion counter", lambda: counter.modify(1))
        for number in range(FIRST + SAMPLES):
            qp = make_qp()
            name, attach = "attach completion counter", lambda qp=qp: counter.attach(qp, objects.ATTACH_SEND)
            if number < FIRST:
                observe(self.function, name, attach)
            else:
                count(name, attach)
            qp.destroy()
        counter.destroy()

    def modify(self, make_qp):
        for number in range(FIRST + SAMPLES):
            qp = make_qp()
            for name, action in (
                ("modify QP to INIT", lambda qp=qp: qp.modify(QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_QKEY, objects.QPS_INIT, qkey=1)),
                ("modify QP to RTR", lambda qp=qp: qp.modify(QP_STATE, objects.QPS_RTR)),
                ("modify QP to RTS", lambda qp=qp: qp.modify(QP_STATE | QP_SQ_PSN, objects.QPS_RTS)),
            ):
                if number < FIRST:
                    observe(self.function, name, action)
                else:
                    count(name, action)
            qp.destroy()

    def mappings(self, what, context, key, length):
        prot = mmap.PROT_WRITE if "doorbell" in what else mmap.PROT_READ | mmap.PROT_WRITE

        def make():
            return marks.call(marks.MMAP, 0, length, prot, mmap.MAP_SHARED, context.fd, key)

        self.pair(f"map {what}", make, f"unmap {what}", lambda address: marks.call(marks.MUNMAP, address, length))

    def regions(self, context, pd):
        self.region(context, pd, "4 KiB", PAGE, False)
        self.region(context, pd, "2 MiB of 4K pages", 2 * MIB, False)
        self.region(context, pd, "2 MiB of 2M pages", 2 * MIB, True)
        self.region(context, pd, "1 GiB of 4K pages", GIB, False, 3)
        self.region(context, pd, "1 GiB of 2M pages", GIB, True, 7)

    def region(self, context, pd, name, length, huge, samples=SAMPLES):
        """Measures a memory region, of memory that is allocated for it only."""
        pages = Pages(length, huge)

        def make():
            return objects.MemoryRegion(context, pd, pages.address, pages.length)

        self.pair(f"register MR {name}", make, f"deregister MR {name}", objects.MemoryRegion.dereg, samples)
        if length == PAGE:
            region = make()
            self.call("query MR", region.efa_query)
            region.dereg()

    def counters(self):
        (name,) = self.function.names("infiniband")
        folder = self.function.sysfs / "infiniband" / name
        for what, files, counter in (
            ("device", folder / "hw_counters", "submitted_cmds"),
            ("port", folder / "ports/1/hw_counters", "tx_bytes"),
        ):
            # Disables the cache of counters.
            (files / "lifespan").write_text("0")
            fd = os.open(files / counter, os.O_RDONLY)
            text = ctypes.create_string_buffer(PAGE)

            def read(fd=fd, text=text):
                return marks.call(marks.PREAD, fd, ctypes.addressof(text), PAGE, 0)

            # Counters stay cached until the jiffy ends.
            self.call(f"read {what} counters", read, between=lambda: time.sleep(0.02))
            os.close(fd)

    def grow(self, kind, make, destroy, verb=("create", "destroy")):
        """Measures the cost of one object at several numbers of existing objects, and the memory per object."""
        held, used = [], {}
        for level in LEVELS:
            while len(held) < level:
                made = make()
                # Memory of the test's own objects must not count.
                getattr(made, "__dict__", {}).pop("cqe", None)
                held.append(made)
            # The kernel must finish its deferred work.
            time.sleep(0.5)
            used[level] = kernel_memory()
            self.pair(f"{verb[0]} {kind} @{level}", make, f"{verb[1]} {kind} @{level}", destroy)
            self.function.clear()
        first, last = LEVELS[-2:]
        memory[kind] = (used[last] - used[first]) / (last - first)
        for made in held:
            destroy(made)


def kernel_memory():
    """Returns the bytes of memory that are neither free nor used by processes or files."""
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value, *_ = line.split()
        values[name[:-1]] = int(value) * KIB
    # MemFree does not include free pages in the lists of each CPU.
    lines = Path("/proc/zoneinfo").read_text().splitlines()
    kept = sum(int(line.split()[1]) for line in lines if line.strip().startswith("count:"))
    return values["MemTotal"] - values["MemFree"] - values["Active"] - values["Inactive"] - values["Unevictable"] - kept * PAGE


def growth(function, function_for_contexts):
    bench = Bench(function)
    context = bench.open()
    pd, _ = context.alloc_pd()
    cq = objects.CompletionQueue(context)
    pages = Pages(PAGE)
    bench.grow("PD", context.alloc_pd, lambda pd: context.dealloc_pd(pd[0]), ("alloc", "dealloc"))
    bench.grow("CQ", lambda: objects.CompletionQueue(context), objects.CompletionQueue.destroy)
    bench.grow("QP", lambda: objects.QueuePair(context, pd, cq.handle, cq.handle), objects.QueuePair.destroy)
    bench.grow("AH", lambda: objects.AddressHandle(context, pd), objects.AddressHandle.destroy)

    def make():
        return objects.MemoryRegion(context, pd, pages.address, PAGE)

    bench.grow("MR", make, objects.MemoryRegion.dereg, ("register", "deregister"))
    context.close()
    bench = Bench(function_for_contexts)
    bench.grow("context", bench.open, Context.close, ("open", "close"))


def probe(function):
    """Measures the commands and round trips of a probe."""
    function.unbind()
    observe(function, "probe", function.bind)
    function.clear()
    # udev, which names the device, must not run during the measurements.
    selftest.udev_settles()


def main():
    folder = Path(sys.argv[1])
    gc.disable()
    # No other task preempts this one, and the cost of a wake-up does not depend on how long this one slept.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    marks.begin()
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
    parts = sys.argv[2:]
    function, function_for_contexts = selftest.FUNCTIONS
    if "verbs" in parts:
        probe(function)
        Bench(function).verbs()
    if "growth" in parts:
        growth(function, function_for_contexts)
    marks.finish(folder, commands=commands, memory=memory)


main()
