#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Removals of a client that behaves like Lustre's efalnd (lnd.c), in each state of its device. usage: lnd.py kverbs_client.ko

By the order of tracepoints, a removal must end before the driver tries to recover the device. Posts may only fail for lack of
room. Hung tasks are detected on the guest's console, and here with the pattern of dmesg.py.
"""

import re
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "kselftest"))

import selftest
import tracing
from selftest import FUNCTIONS, Failed, KernelLog, Suite, equal, wait_until

MODULE = "kverbs_client"
PARAMETER = Path(f"/sys/module/{MODULE}/parameters/lnd")
# Number of queue pairs of each device, and of sends of each queue pair.
QPS, SENDS = 4, 14
# Number of bytes sent by a device after which messages are certainly moving.
MOVING = 1 << 14
# Timeouts of commands and resets in units of 100 ms, duration of a reset in ms, and no keep-alives.
ATTRIBUTES = {"admin_timeout": 15, "reset_timeout": 10, "reset_ms": 10, "keep_alive_ms": 0}
KEEP_ALIVE_MS, KEEP_ALIVES = 100, 5

PROBE = "efa_lnd/client"
EVENTS = (PROBE, "efa/efa_reset", "efa/efa_state", "efa/efa_command_submitted")
LINE = re.compile(r": (?P<event>client|efa_reset|efa_state|efa_command_submitted): (?P<text>.*)$", re.MULTILINE)
MARK = re.compile(r'device="(.*)" what="(.*)"')

# Orders of events. The first command of a recovery attempt is GET_FEATURE.
REMOVED = "removing removed"
UNBOUND = f"stopped {REMOVED}"


def recovered(cause):
    """Order of events if the driver removes the client of a failed device, and then recovers the device."""
    return f"reset {cause} resetting {REMOVED}( resetting)*( attempt( resetting)?)+ up"


def removed_and_recovered(cause):
    """Order of events if a user removes the client. The driver may detect the device's failure during the removal or after it."""
    failed = f"reset {cause} resetting"
    return f"removing ({failed} removed|removed {failed}) attempt up"


# An unplugged device may be detected as failed before the driver releases it.
GONE = "(reset register_timeout resetting )?(stopped )?((resetting|failed) )*removing removed( resetting| failed| stopped)*"

suite = Suite()
log = KernelLog()


def load():
    subprocess.run(["insmod", sys.argv[1]], check=True)


def unload():
    subprocess.run(["rmmod", MODULE], check=True)


def use(how):
    with PARAMETER.open("wb", buffering=0) as file:
        file.write(how.encode())


def counters():
    words = PARAMETER.read_text().split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=False) if name != "stage"}


def sent(function):
    return selftest.emulator.send({"command": "counters"})["devices"][function.number]["tx_bytes"]


def moves(function):
    before = sent(function)
    wait_until(lambda: sent(function) > before + MOVING, "messages move")


def order(text, function):
    """Returns the events of a device, in order."""
    found = []
    for match in LINE.finditer(text):
        mark = MARK.search(match["text"])
        if match["event"] == "client" and mark:
            address, what = mark.groups()
        else:
            address, _, what = match["text"].partition(" ")
            if match["event"] == "efa_reset":
                what = f"reset {what}"
            elif match["event"] == "efa_command_submitted":
                what = "attempt" if what.startswith("GET_FEATURE ") else ""
        if address == function.address and what and found[-1:] != [what]:
            found.append(what)
    return " ".join(found)


def check_order(text, function, wanted):
    got = order(text, function)
    if not re.fullmatch(wanted, got):
        raise Failed(f"order of events: got '{got}', wanted '{wanted}'")


def check_client(mode):
    """Checks that the client's posts had no errors other than full queues, whatever the device did."""
    got = counters()
    print(f"# {got}", flush=True)
    equal((got["failed"], got["errno"]), (0, 0), "posts that have failed with an errno other than ENOMEM, and the last errno")
    equal(got["sending"], 0, "sends without a completion")
    equal(got["full"] > 0, mode != "idle", "that a queue was full")
    equal(got["flushed"] > 0, True, "that work requests were flushed")


def check_log():
    texts = [text for _, text in log.records()]
    wrong = [text for text in texts if re.search(r"lnd: |blocked for more than|soft lockup", text)]
    equal(wrong, [], "lines of the client, or about hung tasks")


def end(function):
    """A user removes the client."""
    use("end")


def unbind(function):
    equal(function.unbind(), "ok", "unbind")


def rmmod(function):
    unload()


def removal(mode, prepare, remove, wanted):
    """Tests the removal by REMOVE of a client in a mode, after PREPARE has set the device's state."""
    try:
        removed(mode, prepare, remove, wanted)
    finally:
        # After any failure, the next test case starts without a client.
        if PARAMETER.exists():
            use("end")


def removed(mode, prepare, remove, wanted):
    """As `removal`, but may leave a client behind."""
    function = FUNCTIONS[0]
    for each in FUNCTIONS:
        each.forget_protocol_errors()
    use(mode)
    if mode == "busy":
        moves(function)
    elif mode == "starved":
        wait_until(lambda: counters()["sending"] == len(FUNCTIONS) * QPS * SENDS, "all sends wait for receives")
    is_up_again = wanted.endswith(" up")
    session = int(function.status()["session"]) + is_up_again
    with tracing.recording(*EVENTS) as trace:
        # A number for each event, common to all processors.
        (tracing.INSTANCE / "trace_clock").write_text("counter")
        prepare(function)
        remove(function)
        if is_up_again:
            wait_until(lambda: (status := function.status())["state"] == "up" and int(status["session"]) == session, "the recovery")
        text = trace()
    if remove is not rmmod:
        if is_up_again and mode == "busy" and remove is not end:
            moves(function)
        use("end")
        check_client(mode)
    else:
        load()
    check_order(text, function, wanted)
    check_log()
    if not function.is_bound or prepare is refuses_destroy:
        function.rebind()
    function.settle()
    for each in FUNCTIONS:
        equal({kind: count for kind, count in each.held().items() if kind != "uar"}, {}, "objects of a device")
        equal(each.protocol_errors(), 0, "protocol errors")


# States of the device.


def works(function):
    pass


def refuses_modify(function):
    function.inject({"opcode": "MODIFY_QP"}, {"status": "RESOURCE_BUSY"}, times=1)


def refuses_destroy(function):
    function.inject({"opcode": "DESTROY_QP"}, {"status": "RESOURCE_BUSY"}, times=QPS)


def does_not_answer(function):
    function.inject({"opcode": "MODIFY_QP"}, {"silence": True}, times=1)


def dies_silently(function):
    function.die(silent=True)


def keep_alives_stop(function):
    function.set(keep_alive_ms=KEEP_ALIVE_MS)
    before = function.state()["events"]
    wait_until(lambda: function.state()["events"] >= before + KEEP_ALIVES, "keep-alives")
    function.set(keep_alive_ms=0)


def fatal_event(function):
    function.event("FATAL_ERROR", 1)


def dies(function):
    """Its first reset fails."""
    function.die(resets=2)


def resets(function):
    (function.sysfs / "reset").write_text("1")


def unplug(function):
    selftest.emulator.send({"command": "unplug", "device": function.number})
    (function.sysfs / "remove").write_text("1")


def no_action(function):
    """Does nothing, as the driver removes the client."""


def replug(function):
    selftest.emulator.send({"command": "plug", "device": function.number})
    Path("/sys/bus/pci/rescan").write_text("1")
    wait_until(lambda: function.is_bound, "the device after a rescan of the bus")


for name, arguments in {
    "is idle": ("idle", works, end, REMOVED),
    "is busy, and unbound": ("busy", works, unbind, UNBOUND),
    "has no receives": ("starved", works, end, REMOVED),
    "refuses to modify a queue pair": ("busy", refuses_modify, end, removed_and_recovered("memory_held")),
    "refuses to destroy queue pairs": ("busy", refuses_destroy, end, REMOVED),
    "does not answer a command": ("busy", does_not_answer, end, removed_and_recovered("command_timeout")),
    "is dead, and unbound": ("busy", dies_silently, unbind, UNBOUND),
    "sends no keep-alives": ("busy", keep_alives_stop, no_action, recovered("keep_alive")),
    "has a fatal error": ("busy", fatal_event, no_action, recovered("fatal_error")),
    "dies, and recovers at the second attempt": ("busy", dies, no_action, recovered("fatal_error")),
    "is reset by sysfs": ("busy", resets, no_action, recovered("requested")),
    "is dead when the client's module is removed": ("starved", dies_silently, rmmod, removed_and_recovered("command_timeout")),
}.items():
    suite.add(f"a device that {name}", lambda arguments=arguments: removal(*arguments))


@suite.case("a device that is pulled out")
def gone():
    function = FUNCTIONS[0]
    use("busy")
    moves(function)
    with tracing.recording(*EVENTS) as trace:
        (tracing.INSTANCE / "trace_clock").write_text("counter")
        unplug(function)
        text = trace()
    replug(function)
    use("end")
    check_client("busy")
    check_order(text, function, GONE)
    check_log()


# The driver reads timeouts in a probe.
FUNCTIONS[0].set(**ATTRIBUTES)
FUNCTIONS[0].rebind()
load()
tracing.dynamic_event(f"p:{PROBE} {MODULE}:lnd_mark device=+0($arg1):string what=+0($arg2):string")
try:
    suite.run()
finally:
    unload()
    tracing.dynamic_event(f"-:{PROBE}")
