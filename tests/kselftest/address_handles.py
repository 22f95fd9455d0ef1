#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Address handles that programs share: the device has a single one for each peer in each protection domain.

tests/abi has what a single program sees, and host/driver/tests/driver/verbs.rs and models/handles.rs have refusals and interleavings.
"""

import struct
import threading

import selftest
from objects import AddressHandle
from selftest import Failed, KernelLog, Skipped, Suite, blocked, chance, equal, errno_name, wait_until
from uverbs import opened

if not selftest.emulator:
    selftest.skip_all("needs the emulator")

suite = Suite()
main = selftest.any_function()
log = KernelLog()

# Number of concurrent threads, of peers, and of handles that each thread creates and destroys.
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


def handle(context, pd, peer=0):
    return AddressHandle(context, pd, dgid=struct.pack(">QQ", 0xFE80 << 48, 0x1000 + peer))


def commands():
    return main.state()["admin"]["submitted"]


def has(count):
    equal(main.state()["resources"]["ah"], count, "address handles of the device")


def not_with_c(why):
    """Skips a case in which the device refuses to destroy a handle, if the driver is the C driver."""
    if selftest.DRIVER == "c":
        raise Skipped(f"with the C driver {why}")


@suite.case("a protection domain has no handles of a previous domain with its number")
def stale():
    not_with_c("the next domain with the number gets the previous domain's handle, which the device no longer has")
    # Numbers are reused soon.
    main.set(max_pd=1)
    with opened(main) as context:
        pd, number = context.alloc_pd()
        handle(context, pd)
        # The device destroys the handle, but reports that it is in use.
        main.inject({"opcode": "DESTROY_AH"}, {"corrupt": [{"offset": STATUS_OFFSET, "value": BUSY}]})
    has(0)
    with opened(main) as context:
        for _ in range(MOST_NUMBERS):
            pd, other = context.alloc_pd()
            if other == number:
                break
            context.dealloc_pd(pd)
        else:
            raise Failed("its number was not reused")
        start = commands()
        handle(context, pd)
        equal(commands() - start, 1, "commands")


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


@suite.case("a waiter for a handle creates it if the first creation fails")
def after_failure():
    results = [None, None]

    def create(number):
        try:
            results[number] = handle(context, pd).number
        except OSError as error:
            results[number] = errno_name(error.errno)

    with opened(main) as context:
        pd, _ = context.alloc_pd()
        start = commands()
        main.inject({"opcode": "CREATE_AH"}, {"hold": "first", "status": "UNKNOWN_ERROR"}, times=1)
        threads = [threading.Thread(target=create, args=(number,)) for number in range(2)]
        try:
            threads[0].start()
            wait_until(lambda: main.withheld() == {"first": 1}, "the command is withheld")
            threads[1].start()
            wait_until(lambda: results[1] or blocked(threads[1]), "the second one waits")
            equal(results, [None, None], "results before the command is complete")
        finally:
            # After a failure above, too, no thread must wait for a withheld completion.
            main.clear()
            for thread in threads:
                if thread.ident:
                    thread.join()
        equal((results[0], type(results[1])), ("EINVAL", int), f"results, of which the second is {results[1]}")
        equal(commands() - start, 2, "commands")
        has(1)


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


suite.run(before, after)
