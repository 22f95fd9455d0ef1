#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Address handles that programs share: the device has a single one for each peer in each protection domain."""

import functools
import os
import struct
import threading

import selftest
from objects import AddressHandle
from selftest import Failed, KernelLog, Skipped, Suite, blocked, chance, equal, errno_name, result_of, wait_until
from uverbs import opened

if not selftest.emulator:
    selftest.skip_all("needs the emulator")

suite = Suite()
main = selftest.any_function()
log = KernelLog()

# Number of concurrent threads or processes, of peers, and of handles that each thread creates and destroys.
CROWD = 64
PEERS = 8
TIMES = 12
# Maximum number of protection domains until a number is reused.
MOST_NUMBERS = 4096

# Offset of the status in a completion, and the status of a destroy command for an object in use.
STATUS_OFFSET, BUSY = 2, 7


def before():
    main.clear()
    main.set(shared_ah=False)


def after():
    main.clear()
    if not main.is_bound:
        main.rebind()


def address_of(peer):
    return struct.pack(">QQ", 0xFE80 << 48, 0x1000 + peer)


def handle(context, pd, peer=0):
    return AddressHandle(context, pd, dgid=address_of(peer))


def commands():
    return main.state()["admin"]["submitted"]


def has(count):
    equal(main.state()["resources"]["ah"], count, "address handles of the device")


def not_with_c(why):
    """Skips a case in which the device refuses to destroy a handle, if the driver is the C driver."""
    if selftest.DRIVER == "c":
        raise Skipped(f"with the C driver {why}")


def submitted(count, action):
    """Runs an action, and fails unless it takes COUNT commands."""
    start = commands()
    result = action()
    equal(commands() - start, count, "commands")
    return result


@suite.case("all handles of a peer share one object of the device")
def shared():
    with opened(main) as context:
        pd, other = context.alloc_pd()[0], context.alloc_pd()[0]
        first = submitted(1, lambda: handle(context, pd))
        more = submitted(0, lambda: [handle(context, pd) for _ in range(10)])
        equal({ah.number for ah in more}, {first.number}, "their numbers")
        has(1)
        elsewhere = submitted(1, lambda: handle(context, other))
        another = submitted(1, lambda: handle(context, pd, 1))
        equal(len({first.number, elsewhere.number, another.number}), 3, "distinct handles of the device")
        submitted(0, lambda: [ah.destroy() for ah in (first, *more[1:])])
        has(3)
        submitted(1, more[0].destroy)
        has(2)
        equal(submitted(1, lambda: handle(context, pd)).number != first.number, True, "that a new handle has a new number")
    has(0)


@suite.case("a handle that the device refused to create can be created later", "EINVAL, then ok")
def refused():
    with opened(main) as context:
        pd, _ = context.alloc_pd()
        main.inject({"opcode": "CREATE_AH"}, {"status": "UNKNOWN_ERROR"}, times=1)
        result = submitted(1, lambda: result_of(handle, context, pd))
        submitted(1, lambda: handle(context, pd))
        return f"{result}, then ok"


@suite.case("a handle that the device does not destroy is reused")
def kept():
    not_with_c("the object is no longer in any table, and the kernel warns of it")
    with opened(main) as context:
        pd, _ = context.alloc_pd()
        for status in ("RESOURCE_BUSY", "UNKNOWN_ERROR"):
            ah = handle(context, pd)
            main.inject({"opcode": "DESTROY_AH"}, {"status": status}, times=1)
            ah.destroy()
            has(1)
            # The device would refuse a second handle.
            again = submitted(0, lambda: handle(context, pd))
            equal(again.number, ah.number, "its number")
            submitted(1, again.destroy)
            has(0)


@suite.case("a protection domain has no handles of a previous domain with its number")
def stale():
    not_with_c("the next domain with the number gets the previous domain's handle, which the device no longer has")
    # Numbers are reused soon.
    main.set(max_pd=1)
    with opened(main) as context:
        pd, number = context.alloc_pd()
        handle(context, pd)
        # The device destroys the handle, but reports that it is in use.
        corrupt = {"corrupt": [{"offset": STATUS_OFFSET, "value": BUSY}]}
        main.inject({"opcode": "DESTROY_AH"}, corrupt)
    has(0)
    with opened(main) as context:
        for _ in range(MOST_NUMBERS):
            pd, other = context.alloc_pd()
            if other == number:
                break
            context.dealloc_pd(pd)
        else:
            raise Failed("its number was not reused")
        submitted(1, lambda: handle(context, pd))


@suite.case("a handle that the device has not destroyed is freed with the driver, without a warning")
def freed_with_the_driver():
    not_with_c("the kernel warns twice, when the process ends and when the driver is removed")
    with opened(main) as context:
        pd, _ = context.alloc_pd()
        handle(context, pd)
        main.inject({"opcode": "DESTROY_AH"}, {"status": "RESOURCE_BUSY"})
    main.clear()
    list(log.records())
    main.rebind()
    warnings = [text for _, text in log.records() if "WARNING" in text]
    equal(warnings, [], "warnings")


def while_held(opcode, first, second, **fault):
    """Runs the first action in a thread, and withholds its completion until the second action, in another thread, waits for it.
    Returns the results of both."""
    main.inject({"opcode": opcode}, {"hold": "first", **fault}, times=1)
    results = [None, None]

    def run(number, action):
        try:
            results[number] = action()
        except OSError as error:
            results[number] = errno_name(error.errno)

    threads = [threading.Thread(target=run, args=item) for item in enumerate((first, second))]
    try:
        threads[0].start()
        wait_until(lambda: main.withheld() == {"first": 1}, "the command is withheld")
        threads[1].start()
        wait_until(lambda: results[1] or blocked(threads[1]), "the second one waits")
        equal(results, [None, None], "results before the command is complete")
        main.release("first")
    finally:
        # After a failure above, no thread must wait for a withheld completion.
        main.clear()
        for thread in threads:
            if thread.ident:
                thread.join()
    return results


@suite.case("a waiter for a handle creates it if the first creation fails")
def after_failure():
    with opened(main) as context:
        pd, _ = context.alloc_pd()
        start = commands()
        create = functools.partial(handle, context, pd)
        first, second = while_held("CREATE_AH", create, create, status="UNKNOWN_ERROR")
        equal(first, "EINVAL", "the first one")
        if isinstance(second, str):
            raise Failed(f"the second one: {second}")
        equal(commands() - start, 2, "commands")
        has(1)


@suite.case("a user of a handle that is being destroyed gets a new one")
def while_destroyed():
    with opened(main) as context:
        pd, _ = context.alloc_pd()
        ah = handle(context, pd)
        start = commands()
        _, second = while_held("DESTROY_AH", ah.destroy, lambda: handle(context, pd))
        if isinstance(second, str):
            raise Failed(f"the second one: {second}")
        equal(commands() - start, 2, "commands")
        has(1)
        equal(second.number != ah.number, True, "that its number differs")


def churn(context, pd, seed):
    """Creates and destroys handles of the same peers as other threads; fails if a peer has two handles at a time."""
    choices = chance(f"handles {seed}")
    alive = []
    for _ in range(TIMES):
        peer = choices.randrange(PEERS)
        ah = handle(context, pd, peer)
        same = {other.number for number, other in alive if number == peer}
        if same - {ah.number}:
            raise Failed(f"a peer has the handles {same} and {ah.number}")
        alive.append((peer, ah))
        if len(alive) > 3:
            alive.pop(choices.randrange(len(alive)))[1].destroy()
    for _, ah in alive:
        ah.destroy()


@suite.case(f"{CROWD} threads share the handles of {PEERS} peers")
def threads():
    with opened(main) as context:
        pd, _ = context.alloc_pd()
        failed = []

        def run(seed):
            try:
                churn(context, pd, seed)
            except Exception as error:
                failed.append(f"{type(error).__name__}: {error}")

        crowd = [threading.Thread(target=run, args=(seed,)) for seed in range(CROWD)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        equal(failed, [], "threads that failed")
        has(0)
        handle(context, pd).destroy()


@suite.case(f"{CROWD} processes have handles of the same {PEERS} peers")
def processes():
    children = []
    for seed in range(CROWD):
        child = os.fork()
        if child == 0:
            try:
                with opened(main) as context:
                    churn(context, context.alloc_pd()[0], seed)
            except BaseException as error:
                print(f"# {type(error).__name__}: {error}", flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    equal(failed, 0, "processes that failed")
    has(0)


suite.run(before, after)
