#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Lustre's LNet over EFA, between two guests: lnetctl and lst. Prints KTAP, and what lst has measured.

usage: lnet.py [unbind|die]: with one of these, what comes of a device that goes while lst runs, after which lst is of no use any more

/share has what was built of Lustre, as Documentation/lustre.md says: modules in ko, programs in bin, libraries in lib.
"""

import contextlib
import os
import re
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "kselftest"))

import conditions  # noqa: E402
import guests  # noqa: E402
from selftest import FUNCTIONS, Failed, Suite, equal, wait_until  # noqa: E402

ENVIRONMENT = {
    "PATH": f"/share/bin:{os.environ['PATH']}",
    "LD_LIBRARY_PATH": "/share/lib",
    # lst finds its session by this number.
    "LST_SESSION": "1",
}
# Queue pairs of each interface, with which its memory grows: efalnd's default of eight is too much for guests of 2 GB.
QPS = os.environ.get("EFA_QPS", "1")
SECONDS = int(os.environ.get("EFA_SECONDS", "10"))
# lst finds peers by the name that they were given, and not by their first one, which discovery has them get.
UP = f"""
    set -e
    modprobe sunrpc
    for module in libcfs lnet ksocklnd 'kefalnd nqps={QPS}' lnet_selftest; do
        set -- $module
        insmod /share/ko/$1.ko $2
    done
    lnetctl lnet configure
    lnetctl set discovery 0
    lnetctl net add --net efa --if $(ls /sys/class/infiniband | head -n 1)
"""
NID = re.compile(r"nid: (\S+@efa)")
# What lst stat prints of the clients: calls or MiB in a second that came and went.
STAT = re.compile(r"\[LNet (Rates|Bandwidth) of clients\]\n\[R\] Avg: ([\d.]+).*\n\[W\] Avg: ([\d.]+)")
ERRORS = re.compile(r"(\d+) (?:brw errors|ping errors|errors)")
# Calls that are under way at a time.
CONCURRENCY = 4
# Name, options of lst add_test, and which of its figures is the one to look at. Up to 8 KiB are in messages, from there on a peer
# reads what was registered.
TESTS = (
    ("ping", "ping", ("Rates", 0)),
    ("read of 4 KiB", "brw read check=full size=4K", ("Bandwidth", 0)),
    ("write of 4 KiB", "brw write check=full size=4K", ("Bandwidth", 1)),
    ("read of 64 KiB", "brw read check=full size=64K", ("Bandwidth", 0)),
    ("write of 64 KiB", "brw write check=full size=64K", ("Bandwidth", 1)),
    ("read of 1 MiB", "brw read check=full size=1M", ("Bandwidth", 0)),
    ("write of 1 MiB", "brw write check=full size=1M", ("Bandwidth", 1)),
    ("write of 63 KiB, not from the start of a page", "brw write check=full size=63K off=512", ("Bandwidth", 1)),
)
UNITS = {"Rates": "calls/s", "Bandwidth": "MiB/s"}
# A few packets of a hundred: most calls then have wrong data, and few messages are lost.
WRONG_BITS = conditions.Condition("", {"flip": 0.02})

suite = Suite()


def run(command, guest=0):
    """Runs a command line on a guest, with Lustre's programs; returns what it prints."""
    return guests.run(["sh", "-c", command], guest, ENVIRONMENT)


def nid(guest):
    """The name of a guest's EFA interface in LNet."""
    return NID.search(run("lnetctl net show --net efa", guest=guest))[1]


def ping():
    """LNet reaches the other guest over EFA. Not always at once: efalnd has to ask that one over TCP how."""
    name = nid(1)

    def answers():
        with contextlib.suppress(guests.ProgramFailed):
            return f"primary nid: {name}" in run(f"lnetctl ping {name}")

    wait_until(answers, f"{name} answers")


def start(test):
    """Has lst run a test."""
    run(
        f"""
        set -e
        lst new_session --timeout 100 efa
        lst add_group clients {nid(0)}
        lst add_group servers {nid(1)}
        lst add_batch one
        lst add_test --batch one --concurrency {CONCURRENCY} --from clients --to servers {test}
        lst run one
    """
    )


@contextlib.contextmanager
def running(test):
    """A test of lst runs meanwhile."""
    start(test)
    yield
    run("lst end_session")


def errors():
    """What lst has counted of them, in the order in which it shows them."""
    return [int(count) for count in ERRORS.findall(run("lst show_error clients servers"))]


def measure(name, test, figure):
    kind, direction = figure
    with running(test):
        output = run(f"lst stat --count 1 --delay {SECONDS} clients servers")
        run("lst stop one")
        found = errors()
    rows = {row[0]: row[1:] for row in STAT.findall(output)}
    if sum(found) or float(rows[kind][direction]) <= 0:
        raise Failed(f"errors {found}\n{output}")
    print(f"  # lst {name}: {rows[kind][direction]} {UNITS[kind]}", flush=True)


def wrong_bits():
    """What arrives is looked at."""
    with running("brw read check=full size=1M"), conditions.applied(WRONG_BITS):
        wait_until(lambda: sum(errors()), "lst counts errors")


def goes(how, comes_back):
    """A device goes while it is in use: it waits until LNet lets go of it, and LNet can use it again."""
    (device,) = FUNCTIONS[0].names("infiniband")
    start("ping")
    time.sleep(2)
    started = how(FUNCTIONS[0])
    run(f"lnetctl net del --net efa --if {device}")
    comes_back(FUNCTIONS[0], started)
    FUNCTIONS[0].settle()
    run(f"lnetctl net add --net efa --if {device}")
    ping()


def unbind(function):
    """Asks for it, which lasts until LNet lets go; returns who has asked."""
    asking = threading.Thread(target=function.unbind, daemon=True)
    asking.start()
    time.sleep(2)
    equal(asking.is_alive(), True, "whether it waits")
    return asking


def rebind(function, asking):
    wait_until(lambda: not asking.is_alive(), "the end of the unbind")
    equal(function.bind(), "ok", "bind")


def die(function):
    """The driver has noticed, and waits until LNet lets go."""
    function.die()
    time.sleep(2)
    equal(function.status()["state"], "resetting", "the device's state while efalnd holds it")


def await_device(function, _):
    wait_until(lambda: function.status()["state"] == "up", "the device is back")


def up():
    for guest in range(guests.GUESTS):
        run(UP, guest)


GOES = {
    "unbind": ("a device that is unbound", lambda: goes(unbind, rebind)),
    "die": ("a device that dies", lambda: goes(die, await_device)),
}

suite.add("an interface comes up on both guests", up, needs_emulator=False)
suite.add("lnetctl ping", ping, needs_emulator=False)
if sys.argv[1:]:
    name, test = GOES[sys.argv[1]]
    suite.add(name, test)
else:
    for name, test, figure in TESTS:
        suite.add(f"lst {name}", lambda name=name, test=test, figure=figure: measure(name, test, figure), needs_emulator=False)
    suite.add("wrong bits are noticed", wrong_bits)

if __name__ == "__main__":
    guests.lead(suite.run)
