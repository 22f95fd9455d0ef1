#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Commands in flight, completions in any order or more than once, and events, while the device is in use."""

import mmap

import objects
import selftest
from admin_cases import ANY, Bench, use
from recovery import Recovery
from selftest import DRIVER, Failed, Skipped, Suite, equal, result_of, wait_until
from uverbs import opened

if not selftest.emulator:
    selftest.skip_all("needs the emulator")

# So many processes have to keep so many commands in flight.
PROCESSES = 64
IN_FLIGHT = 16

# Entries of the driver's ring of events.
AENQ_DEPTH = 16

# More commands than there are after a probe by themselves.
COMMANDS = 100

suite = Suite()
# The driver resets a device whose keep-alives stop: the later the better for those that are given by hand.
bench = Bench(driver_watchdog_timeout_ms=0xFFFF)


@suite.case(f"{PROCESSES} processes keep {IN_FLIGHT} commands in flight")
def many_in_flight():
    device = bench.device

    def meanwhile():
        wait_until(lambda: device.withheld().get("all", 0) >= IN_FLIGHT, f"{IN_FLIGHT} commands are in flight")
        device.clear()

    bench.run_at_once(use, PROCESSES, lambda: device.inject(ANY, {"hold": "all"}), meanwhile)
    bench.nothing_lost()
    # ALLOC_UAR, DEALLOC_UAR, and four rounds of ALLOC_PD and DEALLOC_PD.
    if bench.new("submitted") < PROCESSES * 10:
        raise Failed(f"only {bench.new('submitted')} commands")


@suite.case("completions come in another order than commands")
def out_of_order():
    device = bench.device

    def disturb():
        # The first command of each process gets a name of its own.
        for number in range(IN_FLIGHT):
            device.inject({"opcode": "ALLOC_PD"}, {"hold": str(number)}, skip=number, times=1)

    def meanwhile():
        wait_until(lambda: len(device.withheld()) == IN_FLIGHT, "all processes wait")
        equal(type(device.counter("tx_bytes", port=True)), int, "what commands after them give")
        for number in reversed(range(IN_FLIGHT)):
            device.release(str(number))

    bench.run_at_once(use, IN_FLIGHT, disturb, meanwhile)
    bench.nothing_lost()


@suite.case("the queue goes round many times")
def rounds():
    # 32 entries in a ring, and 12 bits in a command id.
    with opened(bench.device) as context:
        for _ in range(200):
            context.dealloc_pd(context.alloc_pd()[0])
    bench.nothing_lost()


@suite.case("commands use all of their entries")
def long_commands():
    # REG_MR is the longest, and ends with an address that is not zero.
    with opened(bench.device) as context:
        pd, _ = context.alloc_pd()
        for pages in (1, 4, 64):
            memory = objects.Memory(pages * mmap.PAGESIZE)
            for _ in range(40):
                objects.MemoryRegion(context, pd, memory.address, memory.length).dereg()
    bench.nothing_lost()


suite.add("efa4: commands use all of their entries", bench.on_newest(long_commands))
suite.add("efa4: the queue goes round many times", bench.on_newest(rounds))
suite.add("efa4: completions come in another order than commands", bench.on_newest(out_of_order))


@suite.case("a duplicate completion is ignored")
def duplicates():
    bench.device.inject({"opcode": "ALLOC_PD"}, {"duplicate": True}, skip=3, times=5)
    with opened(bench.device) as context:
        for _ in range(40):
            context.dealloc_pd(context.alloc_pd()[0])
    bench.nothing_lost()
    bench.must_log()


@suite.case("a device has another version of the interface after each reset")
def other_versions():
    if DRIVER == "c":
        raise Skipped("the C driver resets no device that is in use")
    device = bench.device
    # With checksums of nothing, of commands and completions, of completions.
    for number, version in enumerate((1, 3, 2, 3), 1):
        recovery = Recovery(device, "fatal_error")
        # From its next reset on it wants commands in that form.
        device.set(version=version)
        device.event("FATAL_ERROR", 1)
        recovery.wait()
        bench.works()
        equal(device.resets()["all"], number, "resets")
    equal(device.protocol_errors(), 0, "protocol errors")


# Events.


def keep_alives():
    return bench.device.counter("keep_alive_rcvd")


def all_events():
    """Waits until the driver has counted all events that there were, all of which are keep-alives."""
    wait_until(lambda: keep_alives() == bench.device.state()["events"], "all events are counted")


@suite.case("keep-alive events are counted")
def count_keep_alives():
    equal(keep_alives(), 0, "at first")
    bench.device.set(keep_alive_ms=1000)
    # More than the ring has entries.
    for number in range(1, 3 * AENQ_DEPTH):
        bench.device.event("KEEP_ALIVE")
        wait_until(lambda: keep_alives() >= number, f"keep_alive_rcvd {number}")
    all_events()


@suite.case("keep-alive events come by themselves")
def periodic_keep_alives():
    bench.device.set(keep_alive_ms=20)
    wait_until(lambda: keep_alives() >= 10, "10 keep-alive events")


@suite.case("a burst of events overflows the ring")
def burst():
    bench.device.set(keep_alive_ms=1000)
    for _ in range(20 * AENQ_DEPTH):
        bench.device.event("KEEP_ALIVE")
    all_events()
    bench.device.event("KEEP_ALIVE")
    all_events()
    bench.nothing_lost()


def add_events():
    for group in ("FATAL_ERROR", "WARNING", "NOTIFICATION", 77):

        def run(group=group):
            device = bench.device
            fatal = group == "FATAL_ERROR"
            if fatal:
                late_event(group)
            recovery = DRIVER == "rust" and fatal and Recovery(device, "fatal_error")
            with opened(device) as context:
                if not fatal:
                    device.event(group, 0x12)
                while device.state()["late"]:
                    result_of(context.query_device)
                    result_of(lambda: context.dealloc_pd(context.alloc_pd()[0]))
                if recovery:
                    recovery.wait()
                    bench.told(context)
            device.event("KEEP_ALIVE")
            wait_until(lambda: keep_alives() == 1, "the next event")
            lines = bench.log.driver_errors(device)
            if len(lines) != (2 if recovery else 1):
                raise Failed(f"the log has {lines}")
            if DRIVER == "rust":
                name = group if isinstance(group, str) else hex(group)
                if not any(name in line and "0x12" in line for line in lines):
                    raise Failed(f"the log does not say what: {lines}")
                equal(device.resets()["all"], 1 if recovery else 0, "resets")
            bench.works()

        suite.add(f"an event of group {group} is logged", run)


def late_event(group):
    """Binds the device anew, which is to have an event when it is in use, of which its status register tells nothing: the driver looks at
    that as well, and may do so before it gets the event."""
    device = bench.device
    equal(device.unbind(), "ok", "unbind")
    before = device.state()["admin"]["completed"]
    equal(device.bind(), "ok", "bind")
    commands = device.state()["admin"]["completed"] - before
    equal(device.unbind(), "ok", "unbind")
    device.event(group, 0x12, after_reset=True, after_commands=commands + COMMANDS)
    equal(device.bind(), "ok", "bind")
    equal(device.state()["late"], 1, "events that are still to come")


add_events()


@suite.case("events and commands at the same time")
def events_and_commands():
    bench.run_at_once(use, 8, lambda: bench.device.set(keep_alive_ms=1))
    bench.device.set(keep_alive_ms=1000)
    all_events()
    bench.nothing_lost()


bench.run(suite)
