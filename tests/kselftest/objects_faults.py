#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A device that refuses a command in the middle of each verb: the verb fails and nothing is lost."""

import objects
from fault_cases import LAST, Set, add_faults, behave, clean_attempt, main, pinned, prepare, run
from selftest import DRIVER, Skipped, Suite, equal, function_with, result_of
from uverbs import opened

suite = Suite()


def run_to_its_end():
    """Makes and destroys everything, but for what fails; returns how many verbs did."""
    failed, everything = 0, Set(until="open")
    for verb in (*Set.STEPS, "dereg_mr", "destroy_ah", "destroy_qp", *LAST):
        try:
            getattr(everything, verb)()
        except (OSError, AttributeError):
            # One that failed, or one that needs what another did not make.
            failed += 1
    everything.close()
    return failed


def in_turn(status):
    """One command after the other that makes something fails: neither side keeps anything."""
    prepare()
    memory = pinned()
    for number in range(len(Set.STEPS)):
        hit = main.state()["faults_hit"]
        main.inject({"opcode": "ANY"}, {"status": status}, skip=number, times=1)
        failed = run_to_its_end()
        equal(main.state()["faults_hit"], hit + 1, f"faults when command {number} was to fail")
        equal(failed > 0, True, f"a verb failed with command {number}")
        equal(main.held(), {}, f"what the device has after command {number} failed")
        equal(pinned(), memory, f"KiB of pinned memory after command {number} failed")
        behave()
    clean_attempt()


for name in ("UNKNOWN_ERROR", "RESOURCE_ALLOCATION_FAILURE"):
    suite.add(f"each command of a process that makes one of each fails with {name}", lambda name=name: in_turn(name))


@suite.case("a device without event queues has no completion channels", "EOPNOTSUPP; nothing")
def no_event_queues():
    if DRIVER == "c":
        raise Skipped("the C driver follows a pointer into an array of none, and the kernel oopses")
    function = function_with("profile=efa2,msix=1")
    if not function:
        raise Skipped("there is no such device")
    if not function.is_bound:
        function.rebind()
    with opened(function) as context:
        result = result_of(lambda: objects.CompletionQueue(context, flags=objects.CQ_WITH_COMPLETION_CHANNEL))
        return result + "; " + ("a queue" if function.state()["resources"]["cq"] else "nothing")


add_faults(suite, ["is refused"])
run(suite)
