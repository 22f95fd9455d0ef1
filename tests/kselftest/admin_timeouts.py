#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Commands that a device in use does not complete, or whose completion is of no use, until the driver gives them up."""

import errno

import selftest
from admin_cases import ANY, Bench
from recovery import Recovery
from selftest import DRIVER, Failed, Skipped, Suite, equal, function_with, result_of, wait_until
from tracing import states
from uverbs import opened

if not selftest.emulator:
    selftest.skip_all("needs the emulator")

# How long a command may take, in units of 100 ms: the most that a device can announce.
ADMIN_TIMEOUT = 15
PROCESSES = 16
# Commands that read the counters of a port.
STATISTICS = 5

suite = Suite()
bench = Bench(admin_timeout=ADMIN_TIMEOUT)


def unanswered():
    """How many commands the driver has waited for in vain since the device was bound."""
    return bench.device.counter("no_completion_cmds")


def add_closings():
    """Faults after which the driver uses the queue no more."""
    for name, then, recovers in (
        ("a command that is not completed", {"silence": True}, True),
        ("a completion that is late", {"hold": "late"}, True),
        ("a completion with the wrong checksum", {"wrong_checksum": True}, True),
        ("a completion for an unknown command", {"wrong_id": True}, True),
        ("a completion without its interrupt", {"no_interrupt": True}, False),
    ):

        def run(then=then, recovers=recovers and DRIVER == "rust"):
            device = bench.device
            recovery = recovers and Recovery(device, "command_timeout")
            device.inject({"opcode": "ALLOC_PD"}, then, times=1)
            with opened(device) as context:
                results = " ".join(result_of(context.alloc_pd) for _ in range(3))
                if recovery:
                    recovery.wait()
                    bench.told(context)
            if DRIVER == "rust":
                bench.must_log(f"{results}, and the log does not say why")
            if "hold" in then and not recovery:
                device.release("late", count=1)
                wait_until(lambda: device.state()["admin"]["in_flight"] == 0, "the late completion")
            equal(unanswered(), 1, f"{results}, and no_completion_cmds")
            if not recovery:
                if DRIVER == "rust":
                    equal(device.resets()["all"], 0, "resets")
                device.clear()
                device.rebind()
            equal(device.withheld(), {}, "what the device still withholds")
            bench.works()
            return results

        suite.add(f"{name} closes the queue", run, "ETIME EIO EIO")
        suite.add(f"efa4: {name} closes the queue", bench.on_newest(run), "ETIME EIO EIO")


add_closings()


@suite.case("a completion that comes after a reset is ignored")
def late_completion():
    if DRIVER == "c":
        raise Skipped("the C driver resets no device that is in use")
    device = bench.device
    recovery = Recovery(device, "command_timeout")
    device.inject({"opcode": "ALLOC_PD"}, {"after_reset": True}, times=1)
    with opened(device) as context:
        equal(result_of(context.alloc_pd), "ETIME", "the command")
        recovery.wait()
        bench.told(context)
    equal(device.state()["late"], 0, "what is still to come of the device")
    bench.must_log("the log does not say that it has come", "which no command has")
    bench.works()
    equal(device.resets()["all"], 1, "resets")


@suite.case("a device falls silent while many wait for it")
def silent_device():
    device = bench.device
    wanted = {errno.ETIME, errno.EIO if DRIVER == "rust" else errno.ENODEV}

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

    def fall_silent():
        # It takes three resets to stop it in vain, the second one by its PCI function, and one for the first attempt to bring it back.
        device.inject(ANY, {"die": {"silent": True, "resets": 5}}, skip=40, times=1)

    if DRIVER == "c":
        bench.run_at_once(work, PROCESSES, fall_silent)
        equal(device.counter("tx_bytes", port=True), "ENODEV", "a port counter")
    else:
        recovery = Recovery(device, "command_timeout")
        with states(device) as passed:
            bench.run_at_once(work, PROCESSES, fall_silent)
            recovery.wait(attempts=2)
            wait_until(lambda: passed()[-1] == "up", "the device is up")
            equal(passed(), ["resetting", "resetting", "up"], "what the device was")
    # Each process has waited for one command, or for none.
    equal(1 <= unanswered() <= PROCESSES, True, f"{unanswered()} commands were waited for in vain")
    # The others are not concerned.
    other = function_with("profile=efa3")
    if other:
        with opened(other) as context:
            context.alloc_pd()
    if DRIVER == "c":
        device.clear()
        device.rebind()
    bench.works()


@suite.case("counters of the port take no more than one timeout of a silent device", "ETIME")
def silent_counters():
    device = bench.device
    recovery = DRIVER == "rust" and Recovery(device, "command_timeout")
    device.inject({"opcode": "GET_STATS"}, {"silence": True}, times=STATISTICS)
    result = device.counter("tx_bytes", port=True)
    if recovery:
        recovery.wait()
    equal(unanswered(), 1, "commands that were waited for in vain")
    if recovery:
        equal(type(device.counter("tx_bytes", port=True)), int, "the counter of the device that is back")
    return result


bench.run(suite)
