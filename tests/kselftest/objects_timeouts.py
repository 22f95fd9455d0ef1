#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A device that does not answer in the middle of each verb, or does not find the driver's ear: the verb ends and nothing is lost."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import fault_cases
import objects
from fault_cases import FAULTS, Set, add_faults, behave, main, prepare, run
from recovery import Recovery
from selftest import DRIVER, KernelLog, Skipped, Suite, equal, result_of, wait_until
from uverbs import opened

# In units of 100 ms: the most that a device can announce.
fault_cases.attributes["admin_timeout"] = 15

# So many that one message for each would fill the log, and the kinds of messages, such as: no answer, or memory that is kept.
MANY, KINDS = 100, 4

# Commands that the driver has in flight at most, and how many threads wait for each of their slots.
SLOTS, WAITERS = 32, 3
# How long a command may take, which is the most that the driver allows, and how long it does take, in ms. Who waits for a slot gives up
# after twice the former. The last one of the threads gets a slot before that, and who comes after them would get one later.
COMMAND_MS, DELAY_MS = 30_000, 23_000

suite = Suite()
add_faults(suite, [fault for fault in FAULTS if fault != "is refused"])


@suite.case("many objects of a device that has died do not fill the log", "ok")
def noise_of_the_dead():
    prepare()
    log = KernelLog()
    recovery = DRIVER == "rust" and Recovery(main, "command_timeout")
    with opened(main) as context:
        for _ in range(MANY):
            objects.CompletionQueue(context)
        list(log.records())
        main.die(silent=True)
    # That destroys them all.
    log.few(main, KINDS, level=7)
    if recovery:
        recovery.wait()
    # What it has advised since may not be what it is to be from here on.
    prepare()
    return "ok"


def waiters():
    """How many threads of this process wait for a slot."""
    stacks = [task.read_text() for task in Path("/proc/self/task").glob("*/stack")]
    return sum("AdminQueue" in stack and "submit" in stack for stack in stacks)


@suite.case("a queue pair and a region live on whose destruction finds no slot", "ETIME ETIME, then ok ok")
def no_slot():
    if DRIVER == "c":
        raise Skipped("the C driver waits for a slot for as long as it takes")
    behave()
    main.set(admin_completion_timeout_ms=COMMAND_MS)
    main.rebind()
    everything, ready = Set(), Event()
    main.inject({"opcode": "ANY"}, {"hold": "first"}, times=SLOTS)
    # None of these takes longer than it may.
    main.inject({"opcode": "ANY"}, {"delay_ms": DELAY_MS}, skip=SLOTS)
    count = (1 + WAITERS) * SLOTS
    try:
        with ThreadPoolExecutor(count + 2) as pool:
            others = [pool.submit(lambda: ready.wait() and result_of(everything.alloc_pd)) for _ in range(count)]
            ready.set()
            wait_until(lambda: waiters() == WAITERS * SLOTS, f"all slots are taken, and {WAITERS} threads wait for each")
            late = [pool.submit(result_of, verb) for verb in (everything.destroy_qp, everything.dereg_mr)]
            # They get slots in their order.
            wait_until(lambda: waiters() == WAITERS * SLOTS + 2, "two more threads wait behind them")
            main.release("first")
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


run(suite)
