#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Real concurrency: commands of many processes in flight, completions in any order, events at the same time."""

import os

from selftest import Suite, equal, forked, wait_until
from uverbs import opened

# Number of processes, and of commands that they keep in flight.
PROCESSES, IN_FLIGHT = 64, 16
# Commands of a process: ALLOC_UAR, DEALLOC_UAR, and rounds of ALLOC_PD and DEALLOC_PD.
ROUNDS = 4
COMMANDS = 2 + 2 * ROUNDS

suite = Suite()


def use(device):
    """Queries and allocations of a process."""
    with opened(device) as context:
        context.query_device()
        for _ in range(ROUNDS):
            context.dealloc_pd(context.alloc_pd()[0])


def at_once(device):
    device.clear()
    # The driver resets a device whose keep-alives or completions take too long, hence the maximum timeouts.
    device.set(keep_alive_ms=20, driver_watchdog_timeout_ms=0xFFFF, admin_completion_timeout_ms=0xFFFF)
    device.rebind()
    before = device.state()["admin"]
    for number in range(IN_FLIGHT):
        device.inject({"opcode": "ALLOC_PD"}, {"hold": str(number)}, skip=number, times=1)
    processes = [forked(use, device) for _ in range(PROCESSES)]
    try:
        wait_until(lambda: len(device.withheld()) == IN_FLIGHT, f"{IN_FLIGHT} commands are in flight")
        equal(type(device.counter("tx_bytes", port=True)), int, "type of the result of later commands")
        for number in reversed(range(IN_FLIGHT)):
            device.release(str(number))
    finally:
        # No process must wait for a withheld completion.
        device.clear()
        failed = sum(os.waitpid(process, 0)[1] != 0 for process in processes)
    equal(failed, 0, "processes that failed")
    device.set(keep_alive_ms=1000)
    wait_until(lambda: device.counter("keep_alive_rcvd") == device.state()["events"], "all events are counted")
    admin = device.state()["admin"]
    new = {kind: admin[kind] - before[kind] for kind in ("submitted", "completed")}
    equal((admin["in_flight"], new["completed"]), (0, new["submitted"]), "commands in flight, and completed ones")
    equal(new["submitted"] >= PROCESSES * COMMANDS, True, f"that {new['submitted']} commands are those of all processes")
    equal((device.protocol_errors(), device.counter("no_completion_cmds")), (0, 0), "errors")
    equal(device.held(), {}, "objects left in the device")
    device.clear()
    device.rebind()


for spec in ("profile=efa2", "profile=efa4"):
    suite.add_for(spec, f"{PROCESSES} processes, events, and completions in another order than commands", at_once)
suite.run()
