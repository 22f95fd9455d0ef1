#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Fails each allocation, and each copy from or to user space, of each verb, of a probe and of loading, one after the other.

A kernel with fault injection counts them down in /proc/self/fail-nth. A test case repeats its action: in the first run the first
of them fails, in the second run the second, until each has failed once. Whether the action succeeds or fails, the device and the
driver must afterwards hold the same resources as before.
"""

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kselftest"))

import objects
import selftest
import uverbs
from selftest import Failed, Suite, equal, errno_name, result_of
from uverbs import opened

FAULTS = ("failslab", "fail_page_alloc", "fail_usercopy")
DEBUGFS = Path("/sys/kernel/debug")

# Errors of a failed allocation and of a failed user copy.
ERRORS = ("ENOMEM", "EFAULT")
# The result of a second destruction of an object, if the first result did not reach the process.
ALREADY_GONE = "ENOENT"
# x86's system call numbers for insmod and rmmod. Python has no functions for these calls.
FINIT_MODULE, DELETE_MODULE = 313, 176
# Errors for lack of memory: from the core for a mapping; from the kernel for a BAR, and from both drivers for interrupt vectors.
MMAP_ERRORS, PROBE_ERRORS = ("EAGAIN",), ("EBUSY", "ENOSPC")
# Error of the driver core for lack of memory for a module's `drivers` folder in sysfs.
LOAD_ERRORS = ("EINVAL",)


def code(prefix):
    """Returns the address range of the kernel's functions with names that start with `prefix`."""
    lines = map(str.split, Path("/proc/kallsyms").read_text().splitlines())
    symbols = sorted((int(address, 16), name) for address, kind, name, *_ in lines if kind in "tT")
    found = [index for index, (_, name) in enumerate(symbols) if name.startswith(prefix)]
    return symbols[found[0]][0], symbols[found[-1] + 1][0]


class FaultInjection:
    """Counts down to a fault while this process is in a function that `call` runs."""

    def __init__(self):
        self.spare_caches()
        self.spare("failslab", "debug_dma_")
        self.spare("fail_page_alloc", "stack_depot_save")
        self.fd = os.open("/proc/thread-self/fail-nth", os.O_RDWR | os.O_CLOEXEC)
        self.left = 0
        self.hit = False
        for fault in FAULTS:
            # Injected faults are not logged, and every allocation that the kernel makes for itself may fail.
            for name, value in (("verbose", "0"), ("ignore-gfp-wait", "N"), ("min-order", "0")):
                if (file := DEBUGFS / fault / name).exists():
                    file.write_text(value)

    @staticmethod
    def spare_caches():
        """Exempts the allocations that debugging facilities make for their own objects.

        kmemleak has a reserve, and its allocations would be every other one that can fail. Debug objects are allocated whenever few
        are left, and turn themselves off without memory.
        """
        for cache in Path("/sys/kernel/slab").iterdir():
            if cache.name not in ("kmemleak_object", "debug_objects_cache"):
                (cache / "failslab").write_text("1")
        (DEBUGFS / "failslab" / "cache-filter").write_text("Y")

    @staticmethod
    def spare(fault, prefix):
        """Exempts functions with names that start with `prefix`: DMA-API debugging would turn itself off, and KASAN's stack depot grows
        whenever it is full.
        """
        start, end = code(prefix)
        (DEBUGFS / fault / "reject-start").write_text(hex(start))
        (DEBUGFS / fault / "reject-end").write_text(hex(end))
        # Deep enough for the call chain from there to an allocation, and no deeper, as each allocation walks the stack.
        (DEBUGFS / fault / "stacktrace-depth").write_text("10")

    @staticmethod
    @contextlib.contextmanager
    def settings(faults, **wanted):
        """Changes settings of some kinds of faults within the context manager."""
        files = [(DEBUGFS / fault / name.replace("_", "-"), value) for fault in faults for name, value in wanted.items()]
        before = [(file, file.read_text()) for file, _ in files]
        try:
            for file, value in files:
                file.write_text(value)
            yield
        finally:
            for file, value in before:
                file.write_text(value)

    def only_in(self, function):
        """Restricts faults to a function of the kernel and its callees, even at the bottom of a deep stack."""
        start, end = code(function)
        return self.settings(FAULTS, require_start=hex(start), require_end=hex(end), stacktrace_depth="32")

    @contextlib.contextmanager
    def nth(self, number):
        """Injects a fault at the NUMBER-th opportunity; `hit` is whether there were that many."""
        self.left, self.hit = number, False
        try:
            yield
        finally:
            self.left = 0

    def call(self, function, *arguments, **options):
        """Calls a function; the opportunities for faults within it count."""
        if not self.left:
            return function(*arguments, **options)
        os.pwrite(self.fd, b"%d" % self.left, 0)
        try:
            return function(*arguments, **options)
        finally:
            self.left = self.disarm()
            self.hit = not self.left

    @contextlib.contextmanager
    def fragmented(self):
        """Fails this process's allocations of more than one page."""
        victim = Path("/proc/self/make-it-fail")
        with self.settings(["fail_page_alloc"], min_order="1", probability="100", times="-1", task_filter="Y"):
            try:
                victim.write_text("1")
                yield
            finally:
                victim.write_text("0")

    def disarm(self):
        """Ends the countdown and returns its value. Reading the value is a user copy, which counts, too."""
        try:
            left = int(os.pread(self.fd, 16, 0))
        except OSError:
            return 1
        if left:
            with contextlib.suppress(OSError):
                os.pwrite(self.fd, b"0", 0)
        return left


faults = FaultInjection()


class InReach:
    """A proxy of a module, in which the named functions are subject to faults."""

    def __init__(self, module, *names):
        self.module = module
        for name in names:
            function = getattr(module, name)
            setattr(self, name, lambda *arguments, function=function, **options: faults.call(function, *arguments, **options))

    def __getattr__(self, name):
        return getattr(self.module, name)


def sweep(action, undo=None, prepare=None, errors=(), faultless=False):
    """Runs an action once for each of its possible faults.

    `undo` reverts the action. For an action that destroys an object, `prepare` creates the object, and the action is repeated if it
    has failed. `errors` are permitted errors besides ERRORS. With `faultless`, nothing in the action can fail.
    """
    results, unexpected, number = {}, [], 0
    while True:
        number += 1
        before = holdings()
        subject = [prepare()] if prepare else []
        value = None
        with faults.nth(number):
            try:
                value, result = action(*subject), "ok"
            except OSError as error:
                result = errno_name(error.errno)
        if result == "ok" and undo:
            undo(value)
        if result != "ok" and prepare and result_of(action, *subject) not in ("ok", ALREADY_GONE):
            raise Failed(f"fault {number} ({result}) leaves an object that can't be destroyed")
        if (left := holdings()) != before:
            raise Failed(f"fault {number} ({result}) leaves {left} of {before}")
        if not faults.hit:
            break
        results[result] = results.get(result, 0) + 1
        if result not in {"ok", *ERRORS, *errors}:
            unexpected.append(f"fault {number} is {result}")
    print(f"# {number - 1} faults: " + ", ".join(f"{name} {count}" for name, count in sorted(results.items())))
    equal(result, "ok", "without a fault")
    equal(unexpected, [], "unexpected errors")
    equal(not results, faultless, "whether nothing in it can fail")


def holdings():
    """Returns the current resources of the device and DMA mappings of the driver."""
    return {**main.state()["resources"], "DMA mappings": dma_mappings()}


def dma_mappings():
    """Returns the number of mappings that DMA-API debugging has recorded. Only EFA devices have any in a guest."""
    total, free = (int((DEBUGFS / "dma-api" / name).read_text()) for name in ("nr_total_entries", "num_free_entries"))
    return total - free


MODULE = Path("/sys/module/efa")
libc = ctypes.CDLL(None, use_errno=True)
suite = Suite()
# The device that supports all kinds of objects.
main = selftest.function_with("profile=efa4")
if not main.is_bound:
    main.rebind()
for user, module, names in (
    (uverbs, os, ("open", "write", "close")),
    (objects, os, ("open", "write", "close")),
    (selftest, os, ("write",)),
    (uverbs, fcntl, ("ioctl",)),
    (objects, mmap, ("mmap",)),
):
    setattr(user, module.__name__, InReach(module, *names))


class Bench:
    """A context with the objects that others depend on."""

    def __init__(self):
        self.context = opened(main)
        self.pd, _ = self.context.alloc_pd()
        self.channel = objects.CompletionChannel(self.context)
        self.cq = objects.CompletionQueue(self.context)
        self.memory = objects.Memory(CHAIN_SIZE)

    def completion_queue(self, **options):
        return objects.CompletionQueue(self.context, **options)

    def channel_queue(self):
        return self.completion_queue(flags=objects.CQ_WITH_COMPLETION_CHANNEL, channel=self.channel.fd)

    def queue_pair(self, **options):
        return objects.QueuePair(self.context, self.pd, self.cq.handle, self.cq.handle, **options)

    def region(self, length, **options):
        return objects.MemoryRegion(self.context, self.pd, self.memory.address, length, **options)

    def address_handle(self):
        return objects.AddressHandle(self.context, self.pd)

    def counter(self):
        return objects.CompletionCounter(self.context, self.memory.address, self.memory.address + 8)

    def fill(self):
        """Adds an object of each other kind."""
        pair = self.queue_pair()
        # A counter can be attached only to a queue pair that is not in use yet.
        self.counter().attach(pair, 1)
        pair.to_rts()
        objects.Mapping(self.context, pair.response.sq_db_mmap_key, mmap.PAGESIZE).close()
        self.region(PIECE_SIZE)
        self.address_handle()
        self.channel_queue()
        return self

    def close(self):
        self.memory.close()
        uverbs.os.close(self.channel.fd)
        self.context.close()


PAGE = mmap.PAGESIZE
# Sizes of memory of 4 KiB pages with a page list in the command itself, in one piece, and in two pieces that a third refers to.
INLINE_SIZE, PIECE_SIZE, CHAIN_SIZE = 8 << 12, 64 << 12, 8200 << 12


def case(name):
    """Returns a decorator that adds a function of a Bench as a test case."""

    def decorator(function):
        def run():
            bench = Bench()
            try:
                function(bench)
            finally:
                bench.close()

        suite.add(name, run)

    return decorator


def made(name, make, *unmakes):
    """Adds test cases that create an object on a Bench, and that destroy it in each way."""

    @case(f"{name}: create")
    def create(bench):
        sweep(lambda: make(bench), unmakes[0])

    for number, unmake in enumerate(unmakes, 1):

        @case(f"{name}: destroy" + (f", way {number}" if len(unmakes) > 1 else ""))
        def destroy(bench, unmake=unmake):
            sweep(unmake, prepare=lambda: make(bench))


suite.add("context: open", lambda: sweep(lambda: opened(main), uverbs.Context.close))
suite.add("context: close", lambda: sweep(uverbs.Context.close, prepare=lambda: opened(main), faultless=True))
suite.add("context with an object of each kind: close", lambda: sweep(Bench.close, prepare=lambda: Bench().fill(), faultless=True))
made("PD", lambda bench: (bench.context, bench.context.alloc_pd()[0]), lambda pd: pd[0].dealloc_pd(pd[1]))


@case("completion channel: create")
def create_channel(bench):
    sweep(lambda: objects.CompletionChannel(bench.context), objects.CompletionChannel.close)


CQ_DESTROY = (objects.CompletionQueue.destroy, objects.CompletionQueue.destroy_by_write)
made("CQ", Bench.completion_queue, *CQ_DESTROY)
made("CQ with a completion channel", Bench.channel_queue, *CQ_DESTROY)
made(
    "CQ on user memory",
    lambda bench: bench.completion_queue(buffer=(objects.BUFFER_VA, 0, bench.memory.address, PAGE), cqe=128),
    *CQ_DESTROY,
)
made("SRD QP", Bench.queue_pair, objects.QueuePair.destroy, objects.QueuePair.destroy_by_ioctl)
made("UD QP", lambda bench: bench.queue_pair(qp_type=objects.QPT_UD), objects.QueuePair.destroy)
made("completion counter", Bench.counter, objects.CompletionCounter.destroy)
MR_DESTROY = (objects.MemoryRegion.dereg, objects.MemoryRegion.dereg_by_ioctl)
made("MR with its pages in the command", lambda bench: bench.region(INLINE_SIZE), *MR_DESTROY)
made("MR with a page list in one piece", lambda bench: bench.region(PIECE_SIZE), *MR_DESTROY)
made("MR with a page list in a chain", lambda bench: bench.region(CHAIN_SIZE), *MR_DESTROY)


@case("MR with a page list where memory is fragmented")
def fragmented(bench):
    # Page lists that would be in one piece and in two pieces.
    for length in (PIECE_SIZE * 16 + PAGE, CHAIN_SIZE):
        before = main.state()["resources"]["mr_pages"]
        with faults.fragmented():
            region = bench.region(length)
        equal(main.state()["resources"]["mr_pages"] - before, length // PAGE, "pages that the device has registered")
        region.dereg()


made("MR by ioctl", lambda bench: objects.IoctlMemoryRegion(bench.context, bench.pd, bench.memory.address, PIECE_SIZE), *MR_DESTROY)


@case("AH: of a peer that has one")
def shared_ah(bench):
    bench.address_handle()
    sweep(bench.address_handle, objects.AddressHandle.destroy)


made("AH", Bench.address_handle, objects.AddressHandle.destroy, objects.AddressHandle.destroy_by_ioctl)


@case("QP: modify")
def modify_qp(bench):
    pair = bench.queue_pair()
    steps = (
        lambda: pair.modify(
            objects.QP_STATE | objects.QP_PKEY_INDEX | objects.QP_PORT | objects.QP_QKEY, objects.QPS_INIT, qkey=0x11111111
        ),
        lambda: pair.modify(objects.QP_STATE, objects.QPS_RTR),
        lambda: pair.modify(objects.QP_STATE | objects.QP_SQ_PSN, objects.QPS_RTS),
    )
    for number, step in enumerate(steps):

        def back(_, number=number):
            pair.modify(objects.QP_STATE, objects.QPS_RESET)
            for step in steps[:number]:
                step()

        sweep(step, back)
        step()


@case("completion counter: attach")
def attach_counter(bench):
    counter, pairs = bench.counter(), [bench.queue_pair()]

    def renew(_):
        # An attachment lasts until the queue pair is destroyed.
        pairs.pop().destroy()
        pairs.append(bench.queue_pair())

    sweep(lambda: counter.attach(pairs[0], 1), renew)


@case("QP: mmap of all its areas")
def mmap_qp(bench):
    response = bench.queue_pair().response
    for key, size in (
        (response.rq_mmap_key, response.rq_mmap_size),
        (response.rq_db_mmap_key, mmap.PAGESIZE),
        (response.sq_db_mmap_key, mmap.PAGESIZE),
        (response.llq_desc_mmap_key, mmap.PAGESIZE),
    ):
        sweep(lambda key=key, size=size: objects.Mapping(bench.context, key, size), objects.Mapping.close, errors=MMAP_ERRORS)


@case("CQ: mmap")
def mmap_cq(bench):
    response = bench.cq.response
    key, size = response.q_mmap_key, response.q_mmap_size
    sweep(lambda: objects.Mapping(bench.context, key, size, mmap.PROT_READ), objects.Mapping.close, errors=MMAP_ERRORS)


# What changes nothing: a function of a Bench returns the action.
for name, prepare in {
    "completion counter: modify": lambda bench: functools.partial(bench.counter().modify, 1),
    "QP: query": lambda bench: bench.queue_pair().query,
    "MR: query": lambda bench: bench.region(PIECE_SIZE).query,
    "MR: EFA's query": lambda bench: bench.region(PIECE_SIZE).efa_query,
    "device: query": lambda bench: bench.context.query_device,
    "port: query": lambda bench: functools.partial(bench.context.query_port, 1),
    "port: query of its speed": lambda bench: functools.partial(bench.context.query_port_speed, 1),
}.items():
    case(name)(lambda bench, prepare=prepare: sweep(prepare(bench)))


@suite.case("counters: read")
def counters():
    (name,) = main.names("infiniband")
    folders = (main.sysfs / "infiniband" / name / "hw_counters", main.sysfs / "infiniband" / name / "ports/1/hw_counters")
    for folder, counter in zip(folders, ("submitted_cmds", "tx_bytes"), strict=True):
        (folder / "lifespan").write_text("0")
        fd = os.open(folder / counter, os.O_RDONLY)
        try:
            sweep(lambda fd=fd: faults.call(os.pread, fd, 64, 0))
        finally:
            os.close(fd)


@suite.case("probe")
def probe():
    main.unbind()
    sweep(lambda: main.write("bind"), lambda _: main.write("unbind"), errors=PROBE_ERRORS)


@suite.case("remove")
def remove():
    sweep(lambda _: main.write("unbind"), prepare=lambda: main.write("bind"))


def system_call(*arguments):
    """Makes a system call for which Python has no function."""
    if libc.syscall(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def load():
    """Loads the module, as insmod does."""
    fd = os.open(os.environ["EFA_KO"], os.O_RDONLY | os.O_CLOEXEC)
    try:
        faults.call(system_call, FINIT_MODULE, fd, b"", 0)
    finally:
        os.close(fd)
    equal(selftest.SYSFS_DRIVER.exists(), True, "loaded with a driver")


def unload():
    """Unloads the module, as rmmod does."""
    system_call(DELETE_MODULE, b"efa", os.O_NONBLOCK)
    equal([path for path in (MODULE, selftest.SYSFS_DRIVER) if path.exists()], [], "after rmmod")


@contextlib.contextmanager
def unloaded():
    """Unloads the module and withholds all devices from the driver, so that loading includes no probe. Reverts both at the end."""
    overrides = [function.sysfs / "driver_override" for function in selftest.FUNCTIONS]
    unload()
    try:
        for file in overrides:
            file.write_text("none")
        yield
    finally:
        for file in overrides:
            file.write_text("\n")
        if MODULE.exists():
            unload()
        load()


@suite.case("module: load")
def load_module():
    def loaded_or_not():
        """Loads the module. A failed load must leave nothing behind, and the next load without a fault must succeed."""
        try:
            load()
        except OSError:
            equal([path for path in (MODULE, selftest.SYSFS_DRIVER) if path.exists()], [], "after a failed insmod")
            equal(result_of(load), "ok", "insmod afterwards")
            unload()
            raise

    # The steps before are the kernel's own: it reads the file, allocates memory for the module and links it.
    with unloaded(), faults.only_in("do_init_module"):
        sweep(loaded_or_not, lambda _: unload(), errors=LOAD_ERRORS)
    equal(main.is_bound, True, "bound by insmod without faults")


if not selftest.emulator:
    selftest.skip_all("needs the emulator")
try:
    suite.run()
finally:
    main.rebind()
