#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Probes of unusual devices for which the drivers differ, or which need a real PCI function. Probes that wait for the device are in
probe_timeouts.py, all others in host/driver/tests/driver/probe_errors.rs.
"""

from probe_cases import Probes, main
from selftest import Skipped, equal, function_with
from tracing import releases

# Number of reads of DEV_STS in a reset: one each for readiness, start and end.
RESET_READS = 3

# Duration of each half of a reset with an event, in ms, and the timeout of a reset, in units of 100 ms.
RESET_MS, RESET_TIMEOUT = 2000, 255

suite = Probes()
add = suite.add_probe

for register, wanted in (("CAPS", "EINVAL"), ("CONTROLLER_VERSION", "ok")):
    for fault, text in (
        ("silence", "is not answered"),
        ("wrong_offset", "is answered for another register"),
        ("wrong_req_id", "is answered for another request"),
    ):
        add(f"{register} {text}", wanted, [({"register": register}, {fault: True})])
add("DEV_STS is not answered after the reset", "ok", [({"register": "DEV_STS"}, {"silence": True}, {"skip": RESET_READS, "times": 1})])

# PCI functions without a BAR.
for bar in ("0", "2", "db"):
    lacking = function_with(f"profile=efa2,missing-bar={bar}")

    def missing(function=lacking):
        if not function:
            raise Skipped("there is no such device")
        return suite.probe(function)

    suite.add(f"BAR {bar} is missing", missing, "ENODEV")

for page_sizes in (0, 0xFFF):
    add(f"page sizes {page_sizes:#x}", "EINVAL", settings={"page_size_cap": page_sizes})
add("doorbells are in BAR 0", "ok", settings={"db_bar": 0})
for depth in (1000, 65535):
    add(f"event queues of at most {depth} entries", "EINVAL", settings={"max_eq_depth": depth})


@suite.case("memory for late responses is freed only once the device is no bus master", "ETIMEDOUT, bus master, memory")
def late_answer():
    with releases(main) as order:
        bind = suite.probe(main, [({"register": "DEV_STS"}, {"silence": True})])
    return ", ".join([bind, *order])


@suite.case("an event arrives during the reset of a removal", "no doorbell")
def event_with_reset():
    """The interrupt arrives during the device's reset, in which the driver must not ring a doorbell."""
    equal(main.bind(), "ok", "bind")
    main.inject({"reset": True}, {"with_event": True})
    # The reset takes longer than the handling of an interrupt, so that a doorbell of the C driver is detected.
    main.set(reset_ms=RESET_MS, reset_timeout=RESET_TIMEOUT)
    before = main.protocol_errors()
    equal(main.unbind(), "ok", "unbind")
    main.healthy = True
    return "a doorbell in the reset" if main.protocol_errors() > before else "no doorbell"


suite.run_all()
