#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What becomes of a probe when something is wrong with the device.

Each test case makes the device misbehave and binds it. The result is `ok` or the errno, and how often the driver broke the
rules of the interface, if it did. After a failure nothing of the driver is left, and the log says why; after either, a
healthy device can be bound.
"""

import time

import selftest
from selftest import DRIVER, STATUSES, Failed, Skipped, Suite, equal, function_with
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

ANY = {"opcode": "ANY"}

# bind() gives EAGAIN for what is EPROBE_DEFER inside of the kernel.
DEFERRED = "EAGAIN"

# Reads of DEV_STS in a reset: is it ready, has it started, has it ended.
RESET_READS = 3

# How long a reset takes to start, and to end, in which something else happens.
RESET_MS = 1000

# How many resets the emulator remembers.
REMEMBERED_RESETS = 1024

suite = Suite()
log = selftest.KernelLog()
main = selftest.any_function()

# The most that a hint can have a command, and a read of a register, take, in seconds; and what a slow machine adds to it.
LONGEST_COMMAND, LONGEST_READ, SLACK = 30, 1, 5

# How many messages of a kind about a device there may be in 5 s.
MESSAGES = 10

# Nobody is to wait longer than needed for a device that does not answer: all in units of 100 ms.
QUICK = {"reset_timeout": 2, "admin_timeout": 2}


def probe(function, rules=(), settings=QUICK):
    """Binds the device while it misbehaves, checks what that leaves behind, and returns the result."""
    for when, then, *how_often in rules:
        function.inject(when, then, **(how_often[0] if how_often else {}))
    function.set(**settings)
    before = function.state()
    list(log.records())
    result = function.bind()
    if result == "ok":
        if function.unbind() != "ok":
            raise Failed("it can't be unbound")
        function.healthy = True
    elif DRIVER == "rust" and not log.driver_errors(function):
        raise Failed(f"{result}, and the log does not say why")
    if left := function.leftovers():
        raise Failed(f"{result}, and left behind: {', '.join(left)}")
    state = function.state()
    if held := {name: count for name, count in state["resources"].items() if count}:
        raise Failed(f"{result}, and the device still has {held}")
    # A driver that has begun to use the device tells it that it gives up.
    function.new_resets = state["resets"][len(before["resets"]) :]
    errors = state["protocol_errors"] - before["protocol_errors"]
    return f"{result}, {errors} protocol errors" if errors else result


def add(name, wanted, rules=(), settings=QUICK, function=main):
    """A test case that is one probe."""
    suite.add(name, lambda: probe(function, rules, {**QUICK, **settings}), wanted)


def add_for(name, wanted, spec, rules=()):
    """The same with another device, which is left bound."""

    def run():
        function = function_with(spec)
        if not function:
            raise Skipped("there is no such device")
        function.clear()
        if function.is_bound:
            equal(function.unbind(), "ok", "unbind")
        try:
            return probe(function, rules)
        finally:
            function.clear()
            function.rebind()

    suite.add(name, run, wanted)


def add_statuses(name, when, settings=QUICK):
    """A test case of one probe for each status."""

    def run():
        results = []
        for status in STATUSES:
            results.append(probe(main, [(when, {"status": status})], settings))
            main.clear()
        return " ".join(results)

    suite.add(name, run, " ".join(STATUSES.values()))


def add_ok_with(name, rules, settings, check):
    """A test case of a probe that works all the same; `check` looks at the state of the bound device."""

    def run():
        for when, then in rules:
            main.inject(when, then)
        main.set(**{**QUICK, **settings})
        equal(main.bind(), "ok", "bind")
        check(main.state())
        equal(main.unbind(), "ok", "unbind")
        main.healthy = True

    suite.add(name, run)


def in_time(start, bound):
    """Fails if something that began at `start` took longer than its bound."""
    took = time.monotonic() - start
    if took > bound + SLACK:
        raise Failed(f"it took {took:.1f} s, which is more than {bound} s")


def few(lines, most):
    """Fails if the log has more than that."""
    if len(lines) > most:
        raise Failed(f"the log has {len(lines)} lines, such as: {lines[0]}")


def before():
    main.clear()
    main.healthy = False
    if main.is_bound:
        equal(main.unbind(), "ok", "unbind")


def after():
    """A healthy device works again, if it has not just done so."""
    main.clear()
    if not main.healthy:
        equal(main.bind(), "ok", "the next bind")
        if not main.names("infiniband"):
            raise Failed("the next probe has no RDMA device")


# Before the device can be used.

add("READY is never set", "EINVAL", settings={"ready": False})
add("READY is gone after the reset", "ENODEV", [({"register": "DEV_STS"}, {"value": 0}, {"skip": RESET_READS})])
add("the reset never starts", DEFERRED, [({"reset": True}, {"never_starts": True})])
add("the reset never ends", DEFERRED, [({"reset": True}, {"never_ends": True})])
add("the reset takes no time", "EINVAL", settings={"reset_timeout": 0})
add("the reset is slow", "ok", settings={"reset_timeout": 10, "reset_ms": 150})
add("API version 0.0", "EOPNOTSUPP", settings={"version": 0})
for major, minor in ((0, 1), (0, 2), (0, 3), (0, 255), (1, 0)):
    add(f"API version {major}.{minor}", "ok", settings={"version": major << 8 | minor})
# Then neither understands the other's idea of a command: the device does not accept the queue, and has none for its doorbell.
add("API version 0.3 of a device that speaks 0.2", "ETIME, 2 protocol errors", [({"register": "VERSION"}, {"value": 3})])
add("API version 0.2 of a device that speaks 0.3", "ETIME, 2 protocol errors", [({"register": "VERSION"}, {"value": 2})], {"version": 3})
add("controller version 0.0.0", "EOPNOTSUPP", settings={"controller_version": 0})
add("controller version 0.0.0, implementation 5", "EOPNOTSUPP", settings={"controller_version": 5 << 24})
for width in (0, 31, 65, 255):
    add(f"DMA addresses of {width} bits", "EINVAL", settings={"dma_addr_width": width})
for width in (32, 64):
    add(f"DMA addresses of {width} bits", "ok", settings={"dma_addr_width": width})
for register, wanted in (
    ("DEV_STS", DEFERRED),
    ("CAPS", "EINVAL"),
    ("VERSION", "ok"),
    ("CONTROLLER_VERSION", "ok"),
):
    for fault, text in (
        ("silence", "is not answered"),
        ("wrong_offset", "is answered for another register"),
        ("wrong_req_id", "is answered for another request"),
    ):
        add(f"{register} {text}", wanted, [({"register": register}, {fault: True})])
for register in ("DEV_STS", "CAPS", "VERSION", "CONTROLLER_VERSION"):
    # Version 255.255, which the device does not speak.
    wanted = {"DEV_STS": DEFERRED, "CAPS": "EINVAL", "VERSION": "ETIME, 2 protocol errors"}.get(register, "ok")
    add(f"{register} is all ones", wanted, [({"register": register}, {"value": 0xFFFFFFFF})])
add("DEV_STS is not answered after the reset", "ok", [({"register": "DEV_STS"}, {"silence": True}, {"skip": RESET_READS, "times": 1})])


# What the PCI function lacks.

for bar in ("0", "2", "db"):

    def missing(function=function_with(f"profile=efa2,missing-bar={bar}")):
        if not function:
            raise Skipped("there is no such device")
        return probe(function)

    suite.add(f"BAR {bar} is missing", missing, "ENODEV")


# Features.

for feature in FEATURES:
    if feature != "HOST_INFO":
        add_statuses(
            f"GET_FEATURE {feature} fails with each status",
            {"opcode": "GET_FEATURE", "feature": feature},
            settings={**QUICK, "supported_features": ALL_FEATURES},
        )
for feature, number in FEATURES.items():
    optional = feature in ("DEVICE_ATTR", "HOST_INFO", "EVENT_QUEUE_ATTR", "QUEUE_ATTR_2")
    add(f"feature {feature} is not there", "ok" if optional else "EOPNOTSUPP", settings={"supported_features": ALL_FEATURES & ~(1 << number)})
add("admin API version 0 in the attributes", "EINVAL", settings={"api_version": 0})
add_statuses("SET_FEATURE AENQ_CONFIG fails with each status", {"opcode": "SET_FEATURE", "feature": "AENQ_CONFIG"})
for group, number in AENQ_GROUPS.items():
    add(f"event group {group} is missing", "EOPNOTSUPP", settings={"aenq_groups": ALL_AENQ_GROUPS & ~(1 << number)})
for page_sizes in (0, 0xFFF):
    add(f"page sizes {page_sizes:#x}", "EINVAL", settings={"page_size_cap": page_sizes})
add("doorbells are in BAR 1", "ENODEV", settings={"db_bar": 1})
add("doorbells are in BAR 0", "ok", settings={"db_bar": 0})


# The admin queue.

add("no command is completed", "ETIME", [(ANY, {"silence": True})])
add("the second command is not completed", "ETIME", [(ANY, {"silence": True}, {"skip": 1})])
add("a completion is late", "ETIME", [(ANY, {"delay_ms": 400}, {"times": 1})])
add("completions have the wrong checksum", "ETIME", [(ANY, {"wrong_checksum": True})])
add("a completion has the wrong checksum", "ETIME", [(ANY, {"wrong_checksum": True}, {"skip": 2, "times": 1})])
add("without checksums in the API, none is checked", "ok", [(ANY, {"wrong_checksum": True})], settings={"version": 1})
for name, rule, wanted in (
    ("no fault", [], "ok"),
    ("no command is completed", [(ANY, {"silence": True})], "ETIME"),
    ("completions have the wrong checksum", [(ANY, {"wrong_checksum": True})], "ETIME"),
    ("a command is malformed", [(ANY, {"status": "MALFORMED_REQUEST"})], "EINVAL"),
    ("it speaks API version 0.3, and says 0.2", [({"register": "VERSION"}, {"value": 2})], "ETIME, 2 protocol errors"),
):
    add_for(f"efa4: {name}", wanted, "profile=efa4", rule)
add("completions are for unknown commands", "ETIME", [(ANY, {"wrong_id": True})])
add("completions have the phase of the round before", "ETIME", [(ANY, {"wrong_phase": True})])
add("each completion comes twice", "ok", [(ANY, {"duplicate": True})])
add("a completion comes without its interrupt", "ETIME", [(ANY, {"no_interrupt": True}, {"times": 1})])
# From here on the driver follows the hint.
add(
    "a hint for the time of a command is in ms",
    "ok",
    [({"opcode": "SET_FEATURE"}, {"delay_ms": 100})],
    settings={"admin_completion_timeout_ms": 1000},
)
add(
    "a hint of less time than a command may need is not taken",
    "ok",
    [({"opcode": "SET_FEATURE"}, {"delay_ms": 50})],
    settings={"admin_completion_timeout_ms": 1},
)


@suite.case(f"the largest hint for the time of a command makes nobody wait for more than {LONGEST_COMMAND} s", "ETIME")
def longest_command():
    start = time.monotonic()
    result = probe(main, [({"opcode": "SET_FEATURE"}, {"silence": True})], {**QUICK, "admin_completion_timeout_ms": 0xFFFF})
    in_time(start, LONGEST_COMMAND)
    return result


@suite.case(f"the largest hint for the time of a register read makes nobody wait for more than {LONGEST_READ} s", "ok")
def longest_read():
    if DRIVER == "c":
        raise Skipped("the C driver spins for 65 s with a lock held, which the kernel reports")
    main.set(**QUICK, mmio_read_timeout_ms=0xFFFF)
    equal(main.bind(), "ok", "bind")
    main.inject({"register": "DEV_STS"}, {"silence": True})
    start = time.monotonic()
    result = main.unbind()
    in_time(start, LONGEST_READ)
    return result


@suite.case("a device that errs with each completion of a probe does not fill the log", "ok")
def noise_of_a_probe():
    result = probe(main, [(ANY, {"duplicate": True})])
    few(log.driver_errors(main), MESSAGES)
    return result


# Event queues.

add_statuses("CREATE_EQ fails with each status", {"opcode": "CREATE_EQ"})
add("the second CREATE_EQ fails", "ENOMEM", [({"opcode": "CREATE_EQ"}, {"status": "RESOURCE_ALLOCATION_FAILURE"}, {"skip": 1})])
add("CREATE_EQ is not completed", "ETIME", [({"opcode": "CREATE_EQ"}, {"silence": True})])
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


def resets(rules, settings=QUICK):
    if len(main.state()["resets"]) >= REMEMBERED_RESETS - 2:
        raise Skipped("the emulator remembers no more resets")
    result = probe(main, rules, settings)
    if "protocol errors" in result:
        raise Failed(result)
    return " ".join(main.new_resets)


suite.add("a probe that fails before the admin queue resets once", lambda: resets([], {**QUICK, "version": 0}), "NORMAL")
suite.add(
    "a probe that fails after that resets again",
    lambda: resets([({"opcode": "CREATE_EQ"}, {"status": "UNKNOWN_ERROR"})]),
    "NORMAL INIT_ERR",
)
suite.add("a probe and a remove reset once each", lambda: resets([]), "NORMAL NORMAL")


@suite.case("a device that may answer late has memory for it until it is no bus master", "bus master, memory")
def late_answer():
    with releases(main) as order:
        equal(probe(main, [({"register": "DEV_STS"}, {"silence": True})]), DEFERRED, "bind")
    return ", ".join(order)


@suite.case("an event comes with the reset of a remove", "left alone")
def event_with_reset():
    """The interrupt comes when the device is in its reset, in which it takes no doorbell."""
    equal(main.bind(), "ok", "bind")
    main.inject({"reset": True}, {"with_event": True})
    # The reset takes longer than it takes a slow machine to handle an interrupt.
    main.set(reset_ms=RESET_MS, reset_timeout=5 * RESET_MS // 100)
    before = main.state()["protocol_errors"]
    equal(main.unbind(), "ok", "unbind")
    main.healthy = True
    return "a doorbell in the reset" if main.state()["protocol_errors"] > before else "left alone"


if not selftest.emulator:
    selftest.skip_all("needs the emulator")
try:
    suite.run(before, after)
finally:
    main.rebind()
