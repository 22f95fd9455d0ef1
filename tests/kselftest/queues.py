#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Queues in memory that userspace and the device share, and completion events."""

import contextlib
import select
import threading
from pathlib import Path

from objects import CompletionQueue, QueuePair
from queue_cases import PAGE, add_cases, events, with_channel
from selftest import Failed, KernelLog, Skipped, Suite, any_function, equal, function_with, result_of
from uverbs import opened

ROUNDS = 200
# Larger than the number of any object.
NO_CQ = 0xFFF0
# More events than an interrupt handler may process in a row. The device raises half an event queue of them at once, so that a thread has
# slept before the last ones.
STORM = 5000
SMALL_BAR = "profile=efa2,max_qp=1,max_llq_size=2048"

main = any_function()
suite = Suite()
add_cases(suite, main)


def event_queue():
    """Finds and returns the number of an event queue of the device. Only the driver knows these numbers."""
    for eq in range(1, 10_000):
        try:
            main.notify(NO_CQ, eq=eq)
        except Failed:
            continue
        return eq
    raise Failed("the device has no event queues")


def check_events():
    """Fails unless an event arrives."""
    with opened(main) as context, with_channel(context) as (cq, channel):
        main.notify(cq.response.cq_idx)
        equal(events(channel), 1, "events afterwards")


@suite.case("each event reaches its own queue")
def own_queue():
    with opened(main) as context, contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(with_channel(context, number % context.num_comp_vectors)) for number in range(8)]
        for wanted in range(len(pairs)):
            main.notify(pairs[wanted][0].response.cq_idx)
            equal(events(pairs[wanted][1]), 1, f"events of queue {wanted}")
            others = [channel.fd for _, channel in pairs]
            equal(select.select(others, [], [], 0)[0], [], "queues with more events")


@suite.case("an event of a queue that is destroyed is logged", "logged")
def destroyed_queue():
    eq = event_queue()
    with opened(main) as context:
        with with_channel(context) as (cq, _):
            pass
        log = KernelLog()
        main.notify(cq.response.cq_idx, eq=eq)
        check_events()
        errors = log.driver_errors(main)
    return "logged" if len(errors) == 1 else errors


@suite.case("queues are created and destroyed while their events arrive")
def created_and_destroyed():
    eq, numbers, stop = event_queue(), [NO_CQ], threading.Event()

    def flood():
        while not stop.is_set():
            main.notify(numbers[-1], eq=eq)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        with opened(main) as context:
            for _ in range(ROUNDS):
                with with_channel(context) as (cq, _):
                    numbers.append(cq.response.cq_idx)
    finally:
        stop.set()
        thread.join()
    check_events()


def thread_sleeps():
    """Returns how often the threads of completion interrupts have gone to sleep."""
    sleeps = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "-efa-comp" in (folder / "comm").read_text():
                status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                sleeps += int(status["voluntary_ctxt_switches"])
    return sleeps


@suite.case("a storm of events does not monopolize a CPU", "all events, in a thread")
def storm():
    with opened(main) as context, with_channel(context) as (cq, channel):
        before = thread_sleeps()
        main.notify(cq.response.cq_idx, count=STORM)
        count = events(channel, STORM)
        if count != STORM:
            return f"{count} of {STORM} events"
        return "all events, in a thread" if thread_sleeps() > before else "all events, in interrupts"


@suite.case("a send queue in a BAR that is smaller than a page is refused", "EINVAL")
def small_bar():
    function = function_with(SMALL_BAR)
    if not function:
        raise Skipped(f"there is no device {SMALL_BAR}")
    start, end, _ = (int(word, 16) for word in (function.sysfs / "resource").read_text().splitlines()[2].split())
    if end - start + 1 >= PAGE:
        raise Skipped("pages are not larger than the BAR")
    with opened(function) as context:
        pd, _ = context.alloc_pd()
        cq = CompletionQueue(context)
        return result_of(QueuePair, context, pd, cq.handle, cq.handle)


suite.run()
