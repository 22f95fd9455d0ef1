#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Probes of unusual devices for which the drivers differ, or which need a real PCI function. All others are in
host/driver/tests/driver/probe_errors.rs.

Each test case makes the device misbehave and binds it. The result is `ok` or the errno, and the number of the driver's
protocol errors, if there are any. After a failure, the driver has released all resources, and the log has the reason. After
success and failure alike, a healthy device can be bound.
"""

import re

import selftest
from selftest import DRIVER, Failed, KernelLog, Skipped, Suite, equal, function_with
from tracing import releases

# Timeouts in units of 100 ms. A device can announce no larger one for commands.
RESET_TIMEOUT, ADMIN_TIMEOUT = 20, 15
# Timeout of a command by the hint, in ms, and a delay in ms that is within that timeout, but beyond ADMIN_TIMEOUT.
HINT_MS, LATE_MS = 30_000, 2_500
# Number of reads of DEV_STS in a reset: one each for readiness, start and end.
RESET_READS = 3
# Duration of each half of a reset with an event, in ms, and the timeout of such a reset, in units of 100 ms.
SLOW_RESET_MS, SLOW_RESET_TIMEOUT = 2000, 255

suite = Suite()
log = KernelLog()
main = selftest.any_function()
if not selftest.emulator:
    selftest.skip_all("needs the emulator")


def before():
    main.clear()
    main.healthy = False
    if main.is_bound:
        equal(main.unbind(), "ok", "unbind")


def after():
    """Checks that a healthy device works again, unless the test case has just shown that."""
    main.clear()
    if not main.healthy:
        equal(main.bind(), "ok", "the next bind")
        if not main.names("infiniband"):
            raise Failed("the next probe has no RDMA device")


def probe(function, rules=(), **attributes):
    """Binds the device while it misbehaves, checks for leaks, and returns the result and the driver's errors in the log."""
    for when, then, *how_often in rules:
        function.inject(when, then, **(how_often[0] if how_often else {}))
    function.set(reset_timeout=RESET_TIMEOUT, admin_timeout=ADMIN_TIMEOUT, **attributes)
    before = function.protocol_errors()
    list(log.records())
    result = function.bind()
    if result == "ok":
        equal(function.unbind(), "ok", "unbind")
        function.healthy = True
    logged = log.driver_errors(function)
    if result != "ok" and DRIVER == "rust" and not logged:
        raise Failed(f"{result}, without a reason in the log")
    equal(function.leftovers(), [], f"{result}, and leftovers")
    equal({name: count for name, count in function.state()["resources"].items() if count}, {}, f"{result}, and objects of the device")
    errors = function.protocol_errors() - before
    return f"{result}, {errors} protocol errors" if errors else result, logged


def add(name, wanted, rules=(), **attributes):
    """Adds a test case that is one probe."""
    suite.add(name, lambda: probe(main, rules, **attributes)[0], wanted)


for register, wanted in (("CAPS", "EINVAL"), ("VERSION", "ok"), ("CONTROLLER_VERSION", "ok")):
    for fault, text in (
        ("silence", "is not answered"),
        ("wrong_offset", "is answered for another register"),
        ("wrong_req_id", "is answered for another request"),
    ):
        add(f"{register} {text}", wanted, [({"register": register}, {fault: True})])
add("DEV_STS is not answered after the reset", "ok", [({"register": "DEV_STS"}, {"silence": True}, {"skip": RESET_READS, "times": 1})])

for bar in ("0", "2", "db"):

    def missing(bar=bar):
        function = function_with(f"profile=efa2,missing-bar={bar}")
        if not function:
            raise Skipped("there is no such device")
        return probe(function)[0]

    suite.add(f"BAR {bar} is missing", missing, "ENODEV")

for page_sizes in (0, 0xFFF):
    add(f"page sizes {page_sizes:#x}", "EINVAL", page_size_cap=page_sizes)
add("doorbells are in BAR 0", "ok", db_bar=0)
for depth in (1000, 65535):
    add(f"event queues of at most {depth} entries", "EINVAL", max_eq_depth=depth)
# From SET_FEATURE on, the driver uses the hint.
late = ({"opcode": "SET_FEATURE"}, {"delay_ms": LATE_MS}, {"times": 1})
add("a hint for the timeout of a command is in ms", "ok", [late], admin_completion_timeout_ms=HINT_MS)


@suite.case("a hint below the minimum timeout of a command is ignored", "ETIME within 100 ms")
def short_hint():
    result, logged = probe(main, [({"opcode": "SET_FEATURE"}, {"silence": True})], admin_completion_timeout_ms=1)
    return " ".join([result, *re.findall(r"for admin cmd SET_FEATURE (within \d+ ms)", " ".join(logged))])


@suite.case("memory for late responses is freed only once the device is no bus master", "ETIMEDOUT, bus master, memory")
def late_answer():
    with releases(main) as order:
        bind, _ = probe(main, [({"register": "DEV_STS"}, {"silence": True})])
    return ", ".join([bind, *order])


@suite.case("an event arrives during the reset of a removal", "no doorbell")
def event_with_reset():
    """The interrupt arrives during the device's reset, in which the driver must not ring a doorbell."""
    equal(main.bind(), "ok", "bind")
    main.inject({"reset": True}, {"with_event": True})
    # The reset takes longer than the handling of an interrupt, so that a doorbell of the C driver is detected.
    main.set(reset_ms=SLOW_RESET_MS, reset_timeout=SLOW_RESET_TIMEOUT)
    before = main.protocol_errors()
    equal(main.unbind(), "ok", "unbind")
    main.healthy = True
    return "a doorbell in the reset" if main.protocol_errors() > before else "no doorbell"


try:
    suite.run(before, after)
finally:
    main.rebind()
