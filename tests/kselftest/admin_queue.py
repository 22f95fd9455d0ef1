#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Commands in flight, completions that are late, lost or wrong, and events, while the device is in use."""

import mmap
import os
import time

import objects
import selftest
from recovery import Recovery
from selftest import DRIVER, Failed, KernelLog, Skipped, Suite, equal, function_with, result_of, wait_until
from uverbs import EVENT_DEVICE_FATAL, opened

# So many processes have to keep so many commands in flight.
PROCESSES = 64
IN_FLIGHT = 16
# So slow that the others send theirs meanwhile, and much less than a command may take. A kernel that checks all that it does
# sends them slowly.
DELAY_MS = 50 * selftest.SLOW

# Entries of the driver's ring of events.
AENQ_DEPTH = 16

ANY = {"opcode": "ANY"}

# How long a command may take, in units of 100 ms.
ADMIN_TIMEOUT = 4
# The longest that a device can announce, as some time passes besides.
LONG_ADMIN_TIMEOUT = 15

suite = Suite()
main = selftest.any_function()
# One whose commands have the other form, with checksums of their own.
newest = function_with("profile=efa4")
log = KernelLog()


def before():
    main.clear()
    # Each test case starts with a new queue.
    main.set(admin_timeout=ADMIN_TIMEOUT, keep_alive_ms=0)
    main.rebind()
    main.start = main.state()
    list(log.records())


def after():
    main.clear()


def allow_long_commands():
    main.set(admin_timeout=LONG_ADMIN_TIMEOUT)
    main.rebind()


def new(kind):
    """How many commands were `submitted` or `completed` since the test case began."""
    return main.state()["admin"][kind] - main.start["admin"][kind]


def on_newest(run):
    """Makes a test case that does on the newest generation what `run` does on `main`."""

    def case():
        global main
        if not newest:
            raise Skipped("there is no such device")
        first, main = main, newest
        try:
            before()
            return run()
        finally:
            main.clear()
            main = first

    return case


def nothing_lost():
    """Fails if a command is still in flight or was not completed, or if the driver made a mistake."""
    state = main.state()
    equal(state["admin"]["in_flight"], 0, "commands in flight")
    equal(new("completed"), new("submitted"), "completed commands")
    equal(state["protocol_errors"], 0, "protocol errors")
    equal(main.counter("no_completion_cmds"), 0, "no_completion_cmds")
    equal(main.held(), {}, "what the device still has")


def run_at_once(work, count, disturb=None):
    """Lets processes open the device and then work with it, all at the same time; `disturb` is called in between.

    Returns the most commands that were in flight meanwhile; fails if a process fails.
    """
    ready, prepared = os.pipe()
    gate, opener = os.pipe()
    processes = []
    for _ in range(count):
        process = os.fork()
        if process == 0:
            os.close(opener)
            try:
                context = opened(main)
                os.write(prepared, b".")
                os.read(gate, 1)
                work(context)
            except BaseException as error:
                print(f"# {type(error).__name__}: {error}", flush=True)
                os._exit(1)
            os._exit(0)
        processes.append(process)
    os.close(gate)
    os.close(prepared)
    # A process that fails closes its end.
    while count and os.read(ready, 1):
        count -= 1
    os.close(ready)
    if disturb:
        disturb()
    before = main.state()["admin"]["max_in_flight"]
    os.close(opener)
    most = failed = 0
    while processes:
        most = max(most, main.state()["admin"]["in_flight"])
        time.sleep(0.02)
        while processes and (reaped := os.waitpid(-1, os.WNOHANG))[0]:
            processes.remove(reaped[0])
            failed += reaped[1] != 0
    equal(failed, 0, "processes that failed")
    # That is the most ever: what was looked at above may have missed it.
    after = main.state()["admin"]["max_in_flight"]
    return after if after > before else most


def use(context):
    """What a process does: it queries and allocates."""
    context.query_device()
    for _ in range(4):
        handle, _ = context.alloc_pd()
        context.dealloc_pd(handle)
    context.close()


@suite.case(f"{PROCESSES} processes keep {IN_FLIGHT} commands in flight")
def many_in_flight():
    # So many processes have to be woken in that time, which may be on two emulated CPUs that others use, too.
    allow_long_commands()
    most = run_at_once(use, PROCESSES, lambda: main.inject(ANY, {"delay_ms": DELAY_MS}))
    main.clear()
    nothing_lost()
    # ALLOC_UAR, DEALLOC_UAR, and four rounds of ALLOC_PD and DEALLOC_PD.
    if new("submitted") < PROCESSES * 10:
        raise Failed(f"only {new('submitted')} commands")
    if most < IN_FLIGHT:
        raise Failed(f"only {most} commands were in flight")


@suite.case("completions come in another order than commands")
def out_of_order():
    def disturb():
        for opcode, delay in (("ALLOC_PD", 70), ("DEALLOC_PD", 20), ("DEALLOC_UAR", 1), ("GET_STATS", 40)):
            main.inject({"opcode": opcode}, {"delay_ms": delay})

    def work(context):
        use(context)
        main.counter("tx_bytes", port=True)

    run_at_once(work, 16, disturb)
    main.clear()
    nothing_lost()


@suite.case("the queue goes round many times")
def rounds():
    # 32 entries in a ring, and 12 bits in a command id.
    with opened(main) as context:
        for _ in range(200):
            context.dealloc_pd(context.alloc_pd()[0])
    nothing_lost()


@suite.case("commands use all of their entries")
def long_commands():
    # REG_MR is the longest, and ends with an address that is not zero.
    with opened(main) as context:
        pd, _ = context.alloc_pd()
        for pages in (1, 4, 64):
            memory = objects.Memory(pages * mmap.PAGESIZE)
            for _ in range(40):
                objects.MemoryRegion(context, pd, memory.address, memory.length).dereg()
    nothing_lost()


suite.add("efa4: commands use all of their entries", on_newest(long_commands))
suite.add("efa4: the queue goes round many times", on_newest(rounds))
suite.add("efa4: completions come in another order than commands", on_newest(out_of_order))


@suite.case("a duplicate completion is ignored")
def duplicates():
    main.inject({"opcode": "ALLOC_PD"}, {"duplicate": True}, skip=3, times=5)
    with opened(main) as context:
        for _ in range(40):
            context.dealloc_pd(context.alloc_pd()[0])
    nothing_lost()
    if not log.driver_errors(main):
        raise Failed("the log does not say so")


def next_results(context, count=3):
    return " ".join(result_of(context.alloc_pd) for _ in range(count))


def told(context):
    """Fails if a program that had the device open before it was reset was not told, or can still use it."""
    equal(context.event(), EVENT_DEVICE_FATAL, "the event that a program gets")
    equal(result_of(context.alloc_pd), "EIO", "a command of a program that had the device open")


def works():
    with opened(main) as context:
        equal(result_of(context.alloc_pd), "ok", "alloc_pd of the next program")


def add_closings():
    """Faults after which the driver uses the queue no more."""
    for name, then, recovers in (
        ("a command that is not completed", {"silence": True}, True),
        ("a completion that is late", {"delay_ms": ADMIN_TIMEOUT * 100 + 300}, True),
        ("a completion with the wrong checksum", {"wrong_checksum": True}, True),
        ("a completion for an unknown command", {"wrong_id": True}, True),
        ("a completion without its interrupt", {"no_interrupt": True}, False),
    ):

        def run(then=then, recovers=recovers and DRIVER == "rust"):
            recovery = recovers and Recovery(main, "command_timeout")
            main.inject({"opcode": "ALLOC_PD"}, then, times=1)
            with opened(main) as context:
                results = next_results(context)
                if recovery:
                    recovery.wait()
                    told(context)
            if DRIVER == "rust" and not log.driver_errors(main):
                raise Failed(f"{results}, and the log does not say why")
            # A late completion comes meanwhile.
            if "delay_ms" in then:
                wait_until(lambda: main.state()["admin"]["in_flight"] == 0, "the late completion")
            if main.counter("no_completion_cmds") != 1:
                raise Failed(f"{results}, and no_completion_cmds is {main.counter('no_completion_cmds')}")
            if not recovery:
                if DRIVER == "rust":
                    equal(main.resets()["all"], 0, "resets")
                main.clear()
                main.rebind()
            works()
            return results

        suite.add(f"{name} closes the queue", run, "ETIME EIO EIO")
        suite.add(f"efa4: {name} closes the queue", on_newest(run), "ETIME EIO EIO")


add_closings()


@suite.case("a completion that comes after a reset is ignored")
def late_completion():
    if DRIVER == "c":
        raise Skipped("the C driver resets no device that is in use")
    recovery = Recovery(main, "command_timeout")
    main.inject({"opcode": "ALLOC_PD"}, {"after_reset": True}, times=1)
    with opened(main) as context:
        equal(result_of(context.alloc_pd), "ETIME", "the command")
        recovery.wait()
        told(context)
    equal(main.state()["late"], 0, "what is still to come of the device")
    if not any("which no command has" in line for line in log.driver_errors(main)):
        raise Failed("the log does not say that it has come")
    works()
    equal(main.resets()["all"], 1, "resets")


@suite.case("a device has another version of the interface after each reset")
def other_versions():
    if DRIVER == "c":
        raise Skipped("the C driver resets no device that is in use")
    # With checksums of nothing, of commands and completions, of completions.
    for number, version in enumerate((1, 3, 2, 3), 1):
        recovery = Recovery(main, "fatal_error")
        # From its next reset on it wants commands in that form.
        main.set(version=version)
        main.event("FATAL_ERROR", 1)
        recovery.wait()
        works()
        equal(main.resets()["all"], number, "resets")
    equal(main.state()["protocol_errors"], 0, "protocol errors")


@suite.case("a device falls silent while many wait for it")
def silent_device():
    wanted = {selftest.errno.ETIME, selftest.errno.EIO if DRIVER == "rust" else selftest.errno.ENODEV}

    def work(context):
        # Some of it works, some times out, and the rest is refused.
        try:
            for _ in range(20):
                context.dealloc_pd(context.alloc_pd()[0])
        except OSError as error:
            if error.errno not in wanted:
                raise
            return
        raise Failed("the device did not fall silent")

    recovery = DRIVER == "rust" and Recovery(main, "command_timeout")
    begin = time.monotonic()
    run_at_once(work, 16, lambda: main.inject(ANY, {"silence": True}, skip=40))
    # One timeout for all, and time for everything else.
    if time.monotonic() - begin > ADMIN_TIMEOUT / 10 + 15:
        raise Failed("that took too long")
    if not recovery:
        equal(main.counter("tx_bytes", port=True), "ENODEV", "a port counter")
        if not isinstance(main.counter("cmds_err"), int):
            raise Failed("the device's counters can't be read")
    # The others are not concerned.
    other = function_with("profile=efa3")
    if other:
        with opened(other) as context:
            context.alloc_pd()
    if recovery:
        equal([main.status()["state"], main.names("infiniband")], ["resetting", []], "a device that stays silent")
    main.clear()
    if recovery:
        recovery.wait(may_have_tried=True)
    else:
        main.rebind()
    works()


@suite.case("counters of the port take no more than one timeout of a silent device", "ETIME")
def silent_counters():
    allow_long_commands()
    recovery = DRIVER == "rust" and Recovery(main, "command_timeout")
    main.inject({"opcode": "GET_STATS"}, {"silence": True})
    start = time.monotonic()
    result = main.counter("tx_bytes", port=True)
    took = time.monotonic() - start
    if took > 2 * LONG_ADMIN_TIMEOUT / 10:
        raise Failed(f"it took {took:.1f} s")
    main.clear()
    if recovery:
        recovery.wait(may_have_tried=True)
        equal(main.counter("tx_bytes", port=True), 0, "the counter of the device that is back")
    return result


# Events.


def keep_alives():
    return main.counter("keep_alive_rcvd")


@suite.case("keep-alive events are counted")
def count_keep_alives():
    equal(keep_alives(), 0, "at first")
    # More than the ring has entries.
    for number in range(1, 3 * AENQ_DEPTH):
        main.event("KEEP_ALIVE")
        wait_until(lambda: keep_alives() == number, f"keep_alive_rcvd {number}")


@suite.case("keep-alive events come by themselves")
def periodic_keep_alives():
    main.set(keep_alive_ms=20)
    wait_until(lambda: keep_alives() >= 10, "10 keep-alive events")
    main.set(keep_alive_ms=0)


@suite.case("a burst of events overflows the ring")
def burst():
    for _ in range(20 * AENQ_DEPTH):
        main.event("KEEP_ALIVE")
    posted = main.state()["events"]
    wait_until(lambda: keep_alives() == posted, f"keep_alive_rcvd {posted}")
    main.event("KEEP_ALIVE")
    wait_until(lambda: keep_alives() == posted + 1, "one more")
    nothing_lost()


def add_events():
    for group in ("FATAL_ERROR", "WARNING", "NOTIFICATION", 77):

        def run(group=group):
            recovery = DRIVER == "rust" and group == "FATAL_ERROR" and Recovery(main, "fatal_error")
            with opened(main) as context:
                main.event(group, 0x12)
                if recovery:
                    recovery.wait()
                    told(context)
            main.event("KEEP_ALIVE")
            wait_until(lambda: keep_alives() == 1, "the next event")
            lines = log.driver_errors(main)
            if len(lines) != (2 if recovery else 1):
                raise Failed(f"the log has {lines}")
            if DRIVER == "rust":
                name = group if isinstance(group, str) else hex(group)
                # On a busy host the driver may see in the device's status that it has failed before the event's interrupt.
                if not any(name in line and "0x12" in line for line in lines):
                    raise Failed(f"the log does not say what: {lines}")
                equal(main.resets()["all"], 1 if recovery else 0, "resets")
            works()

        suite.add(f"an event of group {group} is logged", run)


add_events()


@suite.case("events and commands at the same time")
def events_and_commands():
    run_at_once(use, 8, lambda: main.set(keep_alive_ms=1))
    main.set(keep_alive_ms=0)
    wait_until(lambda: keep_alives() == main.state()["events"], "all events")
    nothing_lost()


if not selftest.emulator:
    selftest.skip_all("needs the emulator")
suite.run(before, after)
