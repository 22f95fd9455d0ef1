#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests of a client in the kernel, tests/kverbs in C or samples/rdma_exchange in Rust: it sends to itself, and its devices are removed.

usage: kverbs.py MODULE.ko
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "kselftest"))

from selftest import FUNCTIONS, Failed, Suite, emulator, equal, errno_name, wait_until

MODULE = Path(sys.argv[1])
RUN = Path("/sys/kernel/debug", MODULE.stem, "run")
ROUNDS = int(os.environ.get("EFA_ROUNDS") or 3)
# More messages than are sent before the removal of the device.
ENDLESS = 10_000_000
# Number of bytes sent by the devices from which a command is certainly in progress.
MOVING = 1 << 16

suite = Suite()


def run(*command):
    subprocess.run(command, check=True)


def restore(function):
    """Binds a device that was removed. Until udev has renamed it, its files in sysfs may have another path."""
    if not function.is_bound:
        function.rebind()
    function.settle()


def before():
    for function in FUNCTIONS:
        restore(function)
    run("insmod", MODULE)


def after():
    run("rmmod", MODULE.stem)
    for function in FUNCTIONS:
        held = function.held()
        # The kernel keeps the user access region of its doorbells.
        held.pop("uar", None)
        equal((held, function.state()["protocol_errors"]), ({}, 0), "objects of a device, and protocol errors")


def command(*words):
    """Runs a command; returns `ok` or the name of its errno."""
    try:
        # Unbuffered: a command is one write.
        with open(RUN, "wb", buffering=0) as file:
            file.write(" ".join(map(str, words)).encode())
    except OSError as error:
        return errno_name(error.errno)
    return "ok"


def opened(pairs):
    """Opens a session that is its own peer; returns its device."""
    equal(command("open", pairs), "ok", "open")
    answer = RUN.read_text().split()
    equal(command("meet", *answer), "ok", "meet")
    for function in FUNCTIONS:
        for name in function.names("infiniband") if function.is_bound else []:
            gid = Path("/sys/class/infiniband", name, "ports/1/gids/0").read_text().strip()
            if gid.replace(":", "") == answer[0]:
                return function
    raise Failed(f"no device has the GID {answer[0]}")


@suite.case("it exchanges data with itself")
def exchanges():
    for pairs in 1, 8:
        opened(pairs)
        for verb, messages, length in (("send", 500, 8192), ("send", 1, 32), ("exchange", 500, 65536), ("exchange", 1, 1)):
            equal(command(verb, messages, length), "ok", f"{verb} {messages} {length}")
            _, count, _, size, *_ = RUN.read_text().split()
            directions = 2 if verb == "exchange" else 1
            equal((int(count), int(size)), (messages, directions * messages * length), "reported totals")
        equal(command("close"), "ok", "close")


@suite.case("it refuses invalid commands")
def refuses():
    for line in ("none", "open", "open 0", "open 9", "open -1", "x" * 257):
        equal(command(line), "EINVAL", line)
    equal([command("meet", "0", 1), command("send", 1, 32)], ["ENOTCONN"] * 2, "without a session")
    equal([command("open", 2), command("open", 2)], ["ok", "EBUSY"], "to open twice")
    equal([command("meet", "0", 1), command("meet", "xyz", 1, 2)], ["EINVAL"] * 2, "to meet others")
    equal([command("send", 1, 32), command("exchange", 1, 1)], ["ENOTCONN"] * 2, "before it has met")
    opened_again = [command("close"), command("close"), command("open", 2)]
    equal(opened_again, ["ok"] * 3, "to close twice, and to open again")
    for line in ("send 1 31", "send 1 8193", "send 1", "send a b", "exchange 1 0", "exchange 1 65537"):
        equal(command(line), "EINVAL", line)


@suite.case("it reports a peer that does not exist")
def alone():
    for words in (("send", 1, 100), ("exchange", 1, 100)):
        equal(command("open", 1), "ok", "open")
        gid, _ = RUN.read_text().split()
        equal(command("meet", gid, 0xFFFF), "ok", "meet")
        equal(command(*words), "EBADMSG", words)
        equal(command("close"), "ok", "close")


@contextlib.contextmanager
def meanwhile():
    """Waits at its end until data has moved."""

    def sent():
        return sum(device["tx_bytes"] for device in emulator.send({"command": "counters"})["devices"])

    before = sent()
    yield
    wait_until(lambda: sent() > before + MOVING, "data moves")


def ends(how, *words):
    """Runs a command, and calls how() on its device meanwhile; fails unless the command ends with EIO. Returns the device."""
    function, results = opened(4), []
    thread = threading.Thread(target=lambda: results.append(command(*words)))
    with meanwhile():
        thread.start()
    how(function)
    wait_until(lambda: not thread.is_alive(), "the end of the command")
    # A command that had only missed completions would end with ETIMEDOUT.
    equal(results, ["EIO"], "result of the command")
    return function


def unbound(function):
    function.unbind()


def dies(function):
    # Posted work requests end before the client has to release the device.
    function.die_and_recover()


def removed_repeatedly(how, *words):
    for _ in range(ROUNDS):
        function = ends(how, *words)
        opened(1)
        equal(command(*words[:1], 20, *words[2:]), "ok", "another device")
        restore(function)
        equal(command("close"), "ok", "close")


def held():
    """Returns how the queue pairs were left that stay open until a device is removed."""
    equal(command("held"), "ok", "held")
    error = -int(RUN.read_text())
    return errno_name(error) if error else "ok"


def held_repeatedly(how, name):
    """Removes the sending and the receiving device in turn: a device that is added is the second one."""
    for number in range(ROUNDS):
        function = FUNCTIONS[number // 2 % len(FUNCTIONS)]
        with meanwhile() if name == "busy" else contextlib.nullcontext():
            equal(command(name), "ok", name)
        equal(held(), "EINPROGRESS", "what is posted")
        how(function)
        wait_until(lambda: held() != "EINPROGRESS", "the end of what was posted")
        equal(held(), "ok", "the end of what was posted")
        restore(function)


IN_C = MODULE.stem == "kverbs_client"
for what, how in (("is unbound", unbound), ("dies", dies)):
    for words in (("hold",), ("busy",)) if IN_C else (("exchange", ENDLESS, 4096), ("send", ENDLESS, 8192)):
        removals = held_repeatedly if IN_C else removed_repeatedly
        suite.add(f"a device {what} under {words[0]}, {ROUNDS} times", lambda how=how, words=words, end=removals: end(how, *words))


@suite.case("its device is removed while a session is open")
def idle():
    function = opened(8)
    function.unbind()
    restore(function)
    opened(8)


def unloaded():
    ends(lambda _: run("rmmod", MODULE.stem), "exchange", ENDLESS, 100)
    run("insmod", MODULE)


if IN_C:
    suite.add("queues that the core polls are drained", lambda: command("drain"), "ok")
else:
    suite.add("it is unloaded while a command runs", unloaded)
suite.run(before, after)
