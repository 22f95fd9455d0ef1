# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Processes and threads: concurrent, killed during an operation, forked."""

import collections
import contextlib
import itertools
import os
import signal
import struct
import threading
import time

import objects
from harness import Cases, Worker, attempt, ensure, pinned
from memory import PAGE
from processes import ends, fork

cases = Cases("process")
PROCESSES, ROUNDS = 6, 30

# Addresses of peers, as the device has only one handle per peer. Not a generator, which several threads can't use at the same time.
PEERS = map(lambda number: struct.pack(">QQ", 0xFE80 << 48, number), itertools.count(1))


def no_commands(s):
    """Omits the commands: the order of concurrent ones varies, and so does their number in a killed process."""
    s.shows_commands = None


KINDS = {
    "pd": (lambda s: s.context.alloc_pd()[0], lambda s, pd: s.context.dealloc_pd(pd)),
    "cq": (lambda s: s.cq(), lambda s, cq: cq.destroy()),
    "cq with events": (lambda s: s.cq(flags=1), lambda s, cq: cq.destroy()),
    "qp": (lambda s: s.qp(), lambda s, qp: qp.destroy()),
    "mr": (lambda s: s.mr(), lambda s, mr: mr.dereg()),
    "ah": (lambda s: s.ah(dgid=next(PEERS)), lambda s, ah: ah.destroy()),
    "context": (lambda s: s.open(), lambda s, context: None),
}


def together(work, count):
    """Runs a function in several threads, and waits for them."""
    workers = [threading.Thread(target=work) for _ in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def processes(s, kind, make, destroy):
    s.shows_commands = False

    def work():
        mine = Worker(s.function)
        for _ in range(8 if kind == "context" else ROUNDS):
            destroy(mine, make(mine))

    return ends([fork(work) for _ in range(PROCESSES)])


def threads(s, _, make, destroy):
    s.shows_commands = False
    ensure(s.pd, s.a_cq, s.page)
    results = collections.Counter()

    def work():
        for _ in range(ROUNDS):
            results[attempt(lambda: destroy(s, make(s)))] += 1

    together(work, 4)
    return ", ".join(f"{count} {result}" for result, count in sorted(results.items()))


def race(s, _, make, destroy):
    """Destroys the same object in several threads, of which only one succeeds."""
    no_commands(s)
    ensure(s.pd, s.a_cq, s.page)
    rounds = []
    for _ in range(ROUNDS):
        thing, results, start = make(s), [], threading.Barrier(3)

        def work(thing=thing, results=results, start=start):
            start.wait()
            results.append(attempt(destroy, s, thing))

        together(work, 3)
        rounds.append(results.count("ok") == 1 and {"ok", *results} <= {"ok", "ENOENT", "EBUSY"})
    return "one of three each time" if all(rounds) else f"{rounds.count(False)} rounds in which not just one could"


def killed(s, _, make, destroy):
    no_commands(s)
    reader, writer = os.pipe()

    def work():
        mine = Worker(s.function)
        while True:
            make(mine)
            os.write(writer, b".")
            destroy(mine, make(mine))

    started = [fork(work) for _ in range(3)]
    for _ in range(12):
        os.read(reader, 1)
    for process in started:
        os.kill(process, signal.SIGKILL)
    result = ends(started)
    os.close(reader)
    os.close(writer)
    return result


BY_KIND = [(kind, *how) for kind, how in KINDS.items()]
OF_A_CONTEXT = [row for row in BY_KIND if row[0] != "context"]
cases.each("{}: processes at the same time", BY_KIND, processes)
cases.each("{}: threads at the same time", OF_A_CONTEXT, threads)
cases.each("{}: destroyed by threads at the same time", OF_A_CONTEXT, race)
cases.each("{}: killed in the middle", BY_KIND, killed)


def dealloc_pd(s, pd):
    """Deallocates by ioctl, because the core refuses writes of a process that has not opened the file itself."""
    s.context.ioctl(objects.OBJECT_PD, objects.METHOD_PD_DESTROY, objects.object_handle(0, pd))


@cases.case("a child uses and destroys objects of its parent")
def child(s):
    cq, pd = s.a_cq, s.pd
    result = ends([fork(lambda: (s.cq(), cq.destroy(), dealloc_pd(s, pd)))])
    return result, attempt(cq.destroy), attempt(s.context.dealloc_pd, pd)


@cases.case("a child outlives its parent's context")
def orphan(s):
    pd = s.pd
    reader, writer = os.pipe()

    def work():
        # The read below sees the end of the pipe only if no writer is left.
        os.close(writer)
        os.read(reader, 1)
        dealloc_pd(s, pd)
        s.cq()

    process = fork(work)
    os.close(reader)
    s.context.close()
    os.close(writer)
    return ends([process])


@cases.case("a child registers memory in its parent's context")
def child_memory(s):
    """Registers memory of the child; the region outlives the child."""
    ensure(s.pd, s.page)
    return ends([fork(lambda: s.mr(kind=objects.IoctlMemoryRegion))]), s.mr()


@cases.case("the thread that created an object has ended")
def thread_gone(s):
    made = []
    ensure(s.context)
    together(lambda: made.append(s.cq()), 1)
    return attempt(made[0].destroy)


@cases.case("the file is closed while another thread uses it")
def closed_meanwhile(s):
    no_commands(s)
    for _ in range(10):
        context = s.open()
        duplicate = os.dup(context.fd)

        def work(fd=duplicate, context=context):
            other = objects.uverbs.Context.__new__(objects.uverbs.Context)
            other.fd, other.async_fd = fd, None
            with contextlib.suppress(OSError):
                while True:
                    other.alloc_pd()

        worker = threading.Thread(target=work)
        worker.start()
        os.close(context.fd)
        context.fd = None
        time.sleep(0.01)
        os.close(duplicate)
        # No other file may get the descriptor's number while the thread may use it.
        worker.join()


@cases.case("pinned memory is the process's")
def pinned_memory(s):
    """Reads the size while memory is registered, and afterwards."""
    no_commands(s)
    memory = s.pages(64)
    ensure(s.pd)
    before = pinned()
    region = s.mr(memory.address, 64 * PAGE)
    registered = pinned() - before
    cq = s.cq(buffer=(objects.BUFFER_VA, 0, s.page.address, PAGE))
    with_cq = pinned() - before
    region.dereg()
    without_region = pinned() - before
    cq.destroy()
    refused = attempt(s.mr, memory.address, 64 * PAGE, access=8)
    return registered, with_cq, without_region, refused, pinned() - before


@cases.case("a signal in the middle")
def signals(s):
    """Checks that signals do not interrupt commands."""
    no_commands(s)
    mine = Worker(s.function)
    process = fork(lambda: [mine.mr().dereg() for _ in range(200)])
    for _ in range(50):
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGWINCH):
            os.kill(process, number)
        time.sleep(0.002)
    return ends([process])
