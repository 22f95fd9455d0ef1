#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What becomes of a probe when the device takes longer than it may, or for ever, or answers in a way that is no answer."""

import re

from probe_cases import ANY, DEFERRED, Probes, log, main
from selftest import DRIVER, Skipped, equal

# In units of 100 ms: the latter is the most that a device can announce.
RESET_TIMEOUT, ADMIN_TIMEOUT = 20, 15

# What a hint has a command take, in ms, and how late one is in time by the hint, and not by ADMIN_TIMEOUT.
HINT_MS, LATE_MS = 30_000, 2_500

suite = Probes(reset_timeout=RESET_TIMEOUT, admin_timeout=ADMIN_TIMEOUT)
add = suite.add_probe


# Before the device can be used.

add("the reset never starts", DEFERRED, [({"reset": True}, {"never_starts": True})])
add("the reset never ends", DEFERRED, [({"reset": True}, {"never_ends": True})])
# Then neither understands the other's idea of a command: the device does not accept the queue, and has none for its doorbell.
add("API version 0.3 of a device that speaks 0.2", "ETIME, 2 protocol errors", [({"register": "VERSION"}, {"value": 3})])
add("API version 0.2 of a device that speaks 0.3", "ETIME, 2 protocol errors", [({"register": "VERSION"}, {"value": 2})], {"version": 3})
for register, wanted in (("DEV_STS", DEFERRED), ("VERSION", "ok")):
    for fault, text in (
        ("silence", "is not answered"),
        ("wrong_offset", "is answered for another register"),
        ("wrong_req_id", "is answered for another request"),
    ):
        add(f"{register} {text}", wanted, [({"register": register}, {fault: True})])
for register, wanted in (("DEV_STS", DEFERRED), ("VERSION", "ETIME, 2 protocol errors")):
    # Version 255.255, which the device does not speak.
    add(f"{register} is all ones", wanted, [({"register": register}, {"value": 0xFFFFFFFF})])


# The admin queue.

add("no command is completed", "ETIME", [(ANY, {"silence": True})])
add("the second command is not completed", "ETIME", [(ANY, {"silence": True}, {"skip": 1})])
add("a completion is late", "ETIME", [(ANY, {"hold": "late"}, {"times": 1})])
add("completions have the wrong checksum", "ETIME", [(ANY, {"wrong_checksum": True})])
add("a completion has the wrong checksum", "ETIME", [(ANY, {"wrong_checksum": True}, {"skip": 2, "times": 1})])
for name, rule, wanted in (
    ("no command is completed", [(ANY, {"silence": True})], "ETIME"),
    ("completions have the wrong checksum", [(ANY, {"wrong_checksum": True})], "ETIME"),
    ("it speaks API version 0.3, and says 0.2", [({"register": "VERSION"}, {"value": 2})], "ETIME, 2 protocol errors"),
):
    suite.add_probe_of("profile=efa4", f"efa4: {name}", wanted, rule)
add("completions are for unknown commands", "ETIME", [(ANY, {"wrong_id": True})])
add("completions have the phase of the round before", "ETIME", [(ANY, {"wrong_phase": True})])
add("a completion comes without its interrupt", "ETIME", [(ANY, {"no_interrupt": True}, {"times": 1})])
add("CREATE_EQ is not completed", "ETIME", [({"opcode": "CREATE_EQ"}, {"silence": True})])
# From SET_FEATURE on the driver follows the hint.
add(
    "a hint for the time of a command is in ms",
    "ok",
    [({"opcode": "SET_FEATURE"}, {"delay_ms": LATE_MS}, {"times": 1})],
    {"admin_completion_timeout_ms": HINT_MS},
)


def hinted(hint):
    """What becomes of a command that is not completed, and how long the driver says that it has waited for it."""
    result = suite.probe(main, [({"opcode": "SET_FEATURE"}, {"silence": True})], {"admin_completion_timeout_ms": hint})
    return " ".join([result, *re.findall(r"SET_FEATURE was not completed (within \d+ ms)", " ".join(suite.errors))])


suite.add("a hint of less time than a command may need is not taken", lambda: hinted(1), "ETIME within 100 ms")
suite.add("the largest hint for the time of a command makes nobody wait for more than 30 s", lambda: hinted(0xFFFF), "ETIME within 30000 ms")


@suite.case("the largest hint for the time of a register read makes nobody wait for more than 1 s", "ok")
def longest_read():
    if DRIVER == "c":
        raise Skipped("the C driver spins for 65 s with a lock held, which the kernel reports")
    main.set(**suite.attributes, mmio_read_timeout_ms=0xFFFF)
    equal(main.bind(), "ok", "bind")
    main.inject({"register": "DEV_STS"}, {"silence": True})
    list(log.records())
    result = main.unbind()
    waits = {line.rpartition("within ")[2] for line in log.driver_errors(main) if "within" in line}
    equal(waits, {"1000000 us"}, "how long the driver says that it has waited")
    return result


suite.run_all()
