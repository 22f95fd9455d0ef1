#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests of real concurrency: commands of many processes in flight, completions in any order, events at the same time."""

import selftest
from admin_cases import ANY, Bench, use
from selftest import Failed, Suite, equal, wait_until

if not selftest.emulator:
    selftest.skip_all("needs the emulator")

# Number of processes, and of commands that they must keep in flight.
PROCESSES = 64
IN_FLIGHT = 16

suite = Suite()
# The driver resets a device whose keep-alives stop. Most test cases disable them, hence the maximum timeout.
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


@suite.case("completions arrive in another order than commands")
def out_of_order():
    device = bench.device

    def disturb():
        # The first ALLOC_PD command of each process is withheld under a separate name.
        for number in range(IN_FLIGHT):
            device.inject({"opcode": "ALLOC_PD"}, {"hold": str(number)}, skip=number, times=1)

    def meanwhile():
        wait_until(lambda: len(device.withheld()) == IN_FLIGHT, "all processes wait")
        equal(type(device.counter("tx_bytes", port=True)), int, "type of the result of later commands")
        for number in reversed(range(IN_FLIGHT)):
            device.release(str(number))

    bench.run_at_once(use, IN_FLIGHT, disturb, meanwhile)
    bench.nothing_lost()


suite.add("efa4: completions arrive in another order than commands", bench.on_newest(out_of_order))


def all_events():
    """Waits until the driver has counted all events of the device, which are all keep-alives."""
    device = bench.device
    wait_until(lambda: device.counter("keep_alive_rcvd") == device.state()["events"], "all events are counted")


@suite.case("events and commands at the same time")
def events_and_commands():
    bench.run_at_once(use, 8, lambda: bench.device.set(keep_alive_ms=1))
    bench.device.set(keep_alive_ms=1000)
    all_events()
    bench.nothing_lost()


bench.run(suite)
