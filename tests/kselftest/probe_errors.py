#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What becomes of a probe when something is wrong with the device, or is unusual. probe_timeouts.py has what the driver has to wait for."""

from probe_cases import ANY, DEFERRED, Probes, log, main
from selftest import DRIVER, Failed, Skipped, equal, function_with
from tracing import releases

FEATURES = {
    "DEVICE_ATTR": 1,
    "AENQ_CONFIG": 2,
    "NETWORK_ATTR": 3,
    "QUEUE_ATTR_1": 4,
    "HW_HINTS": 5,
    "HOST_INFO": 6,
    "EVENT_QUEUE_ATTR": 7,
    "QUEUE_ATTR_2": 9,
}
ALL_FEATURES = sum(1 << number for number in FEATURES.values())
AENQ_GROUPS = {"FATAL_ERROR": 1, "WARNING": 2, "NOTIFICATION": 3, "KEEP_ALIVE": 4}
ALL_AENQ_GROUPS = sum(1 << number for number in AENQ_GROUPS.values())

# Reads of DEV_STS in a reset: is it ready, has it started, has it ended.
RESET_READS = 3

# How long each half of a reset takes in which something else happens, in ms, and how long it may take, in units of 100 ms.
RESET_MS, RESET_TIMEOUT = 2000, 255

suite = Probes()
add = suite.add_probe


def add_ok_with(name, rules, settings, check):
    """A test case of a probe that works all the same; `check` looks at the state of the bound device."""

    def run():
        for when, then in rules:
            main.inject(when, then)
        main.set(**settings)
        equal(main.bind(), "ok", "bind")
        check(main.state())
        equal(main.unbind(), "ok", "unbind")
        main.healthy = True

    suite.add(name, run)


# Before the device can be used.

add("READY is never set", "EINVAL", settings={"ready": False})
add("READY is gone after the reset", "ENODEV", [({"register": "DEV_STS"}, {"value": 0}, {"skip": RESET_READS})])
add("the reset takes no time", "EINVAL", settings={"reset_timeout": 0})
add("the reset is slow", "ok", settings={"reset_ms": 150})
add("API version 0.0", "EOPNOTSUPP", settings={"version": 0})
for major, minor in ((0, 1), (0, 2), (0, 3), (0, 255), (1, 0)):
    add(f"API version {major}.{minor}", "ok", settings={"version": major << 8 | minor})
add("controller version 0.0.0", "EOPNOTSUPP", settings={"controller_version": 0})
add("controller version 0.0.0, implementation 5", "EOPNOTSUPP", settings={"controller_version": 5 << 24})
for width in (0, 31, 65, 255):
    add(f"DMA addresses of {width} bits", "EINVAL", settings={"dma_addr_width": width})
for width in (32, 64):
    add(f"DMA addresses of {width} bits", "ok", settings={"dma_addr_width": width})
for register, wanted in (
    ("CAPS", "EINVAL"),
    ("CONTROLLER_VERSION", "ok"),
):
    for fault, text in (
        ("silence", "is not answered"),
        ("wrong_offset", "is answered for another register"),
        ("wrong_req_id", "is answered for another request"),
    ):
        add(f"{register} {text}", wanted, [({"register": register}, {fault: True})])
for register, wanted in (("CAPS", "EINVAL"), ("CONTROLLER_VERSION", "ok")):
    add(f"{register} is all ones", wanted, [({"register": register}, {"value": 0xFFFFFFFF})])
add("DEV_STS is not answered after the reset", "ok", [({"register": "DEV_STS"}, {"silence": True}, {"skip": RESET_READS, "times": 1})])


# What the PCI function lacks.

for bar in ("0", "2", "db"):

    def missing(function=function_with(f"profile=efa2,missing-bar={bar}")):
        if not function:
            raise Skipped("there is no such device")
        return suite.probe(function)

    suite.add(f"BAR {bar} is missing", missing, "ENODEV")


# Features.

for feature in FEATURES:
    if feature != "HOST_INFO":
        suite.add_statuses(
            f"GET_FEATURE {feature} fails with each status",
            {"opcode": "GET_FEATURE", "feature": feature},
            settings={"supported_features": ALL_FEATURES},
        )
for feature, number in FEATURES.items():
    optional = feature in ("DEVICE_ATTR", "HOST_INFO", "EVENT_QUEUE_ATTR", "QUEUE_ATTR_2")
    add(f"feature {feature} is not there", "ok" if optional else "EOPNOTSUPP", settings={"supported_features": ALL_FEATURES & ~(1 << number)})
add("admin API version 0 in the attributes", "EINVAL", settings={"api_version": 0})
suite.add_statuses("SET_FEATURE AENQ_CONFIG fails with each status", {"opcode": "SET_FEATURE", "feature": "AENQ_CONFIG"})
for group, number in AENQ_GROUPS.items():
    add(f"event group {group} is missing", "EOPNOTSUPP", settings={"aenq_groups": ALL_AENQ_GROUPS & ~(1 << number)})
for page_sizes in (0, 0xFFF):
    add(f"page sizes {page_sizes:#x}", "EINVAL", settings={"page_size_cap": page_sizes})
add("doorbells are in BAR 1", "ENODEV", settings={"db_bar": 1})
add("doorbells are in BAR 0", "ok", settings={"db_bar": 0})


# The admin queue.

add("without checksums in the API, none is checked", "ok", [(ANY, {"wrong_checksum": True})], settings={"version": 1})
for name, rule, wanted in (
    ("no fault", [], "ok"),
    ("a command is malformed", [(ANY, {"status": "MALFORMED_REQUEST"})], "EINVAL"),
):
    suite.add_probe_of("profile=efa4", f"efa4: {name}", wanted, rule)
add("each completion comes twice", "ok", [(ANY, {"duplicate": True})])


@suite.case("a device that errs with each completion of a probe does not fill the log", "ok")
def noise_of_a_probe():
    list(log.records())
    main.inject(ANY, {"duplicate": True})
    result = main.bind()
    equal(main.unbind(), "ok", "unbind")
    main.healthy = True
    log.few(main)
    return result


# Event queues.

suite.add_statuses("CREATE_EQ fails with each status", {"opcode": "CREATE_EQ"})
add("the second CREATE_EQ fails", "ENOMEM", [({"opcode": "CREATE_EQ"}, {"status": "RESOURCE_ALLOCATION_FAILURE"}, {"skip": 1})])
add("DESTROY_EQ fails", "ok", [({"opcode": "DESTROY_EQ"}, {"status": "RESOURCE_BUSY"})])
for depth in (1, 16, 1024, 32768):
    add(f"event queues of at most {depth} entries", "ok", settings={"max_eq_depth": depth})
for depth in (1000, 65535):
    add(f"event queues of at most {depth} entries", "EINVAL", settings={"max_eq_depth": depth})
# The C driver allocates as much, or nothing, of which the kernel warns.
if DRIVER == "rust":
    add("event queues of at most 0 entries", "EINVAL", settings={"max_eq_depth": 0})
    for depth in (65536, 2**32 - 1):
        add(f"event queues of at most {depth} entries", "ok", settings={"max_eq_depth": depth})
add_ok_with("no event queues", [], {"max_eq": 0}, lambda state: equal(state["resources"]["eq"], 0, "event queues"))
add_ok_with("one event queue", [], {"max_eq": 1}, lambda state: equal(state["resources"]["eq"], 1, "event queues"))
add_ok_with(
    "a failed SET_FEATURE HOST_INFO leaves the device without host information",
    [({"opcode": "SET_FEATURE", "feature": "HOST_INFO"}, {"status": "RESOURCE_BUSY"})],
    {},
    lambda state: equal(state["host_info"], None, "host information"),
)


# What the device is told.


def resets(rules, settings={}):
    result = suite.probe(main, rules, settings)
    if "protocol errors" in result:
        raise Failed(result)
    return " ".join(suite.resets)


suite.add("a probe that fails before the admin queue resets once", lambda: resets([], {"version": 0}), "NORMAL")
suite.add(
    "a probe that fails after that resets again",
    lambda: resets([({"opcode": "CREATE_EQ"}, {"status": "UNKNOWN_ERROR"})]),
    "NORMAL INIT_ERR",
)
suite.add("a probe and a remove reset once each", lambda: resets([]), "NORMAL NORMAL")


@suite.case("a device that may answer late has memory for it until it is no bus master", "bus master, memory")
def late_answer():
    with releases(main) as order:
        equal(suite.probe(main, [({"register": "DEV_STS"}, {"silence": True})]), DEFERRED, "bind")
    return ", ".join(order)


@suite.case("an event comes with the reset of a remove", "left alone")
def event_with_reset():
    """The interrupt comes when the device is in its reset, in which it takes no doorbell."""
    equal(main.bind(), "ok", "bind")
    main.inject({"reset": True}, {"with_event": True})
    # The reset takes longer than it takes to handle an interrupt, which is to be seen with the C driver.
    main.set(reset_ms=RESET_MS, reset_timeout=RESET_TIMEOUT)
    before = main.protocol_errors()
    equal(main.unbind(), "ok", "unbind")
    main.healthy = True
    return "a doorbell in the reset" if main.protocol_errors() > before else "left alone"


suite.run_all()
