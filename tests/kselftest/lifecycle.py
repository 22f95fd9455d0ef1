#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Drivers come and go: bind and unbind, insmod and rmmod.

EFA_ROUNDS sets how often; from 100 rounds on all of it is done under load.
"""

import functools
import os
import re
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import selftest
from modules import load_module, remove_module
from selftest import Skipped, Suite, equal, first_line, free_memory, result_of

ROUNDS = int(os.environ.get("EFA_ROUNDS") or 10)
UNDER_LOAD = ROUNDS >= 100
# Memory that may be missing after all rounds, in KiB: what the rest of the system does meanwhile. Few rounds begin with
# caches that are not yet filled.
TOLERANCE = 4096 if UNDER_LOAD else 8192

# Keeps devices and counters in use until killed.
LOAD = "while :; do ibv_devinfo; cat /sys/class/infiniband/*/hw_counters/* /sys/class/infiniband/*/ports/1/hw_counters/*; done"
LOADERS = 2

# Under load, a device may be open for a moment.
ATTEMPTS = 200 if UNDER_LOAD else 1

# How many resets the emulator remembers.
REMEMBERED_RESETS = 1024

LOADED = Path("/sys/module/efa")
COMPLAINT = re.compile("BUG:|WARNING:|Oops|general protection|Call Trace:|refcount_t|soft lockup|blocked for more")
# What of /proc/meminfo tells where memory has gone.
DETAILS = re.compile("Anon|Slab|Unreclaim|Kernel|PageTables|Vmalloc|Percpu")

suite = Suite()
main = selftest.any_function()
log = selftest.KernelLog()
complaints = []


def find_module():
    """The module's file, to load it again; nothing if it is not known."""
    name = os.environ.get("EFA_KO")
    if not name:
        try:
            name = subprocess.run(["modinfo", "-F", "filename", "efa"], capture_output=True, text=True).stdout.strip()
        except FileNotFoundError:
            return None
    return name if os.path.isfile(name) else None


MODULE = find_module()


def needs_module():
    if not MODULE:
        raise Skipped("the module's file is not known: set EFA_KO")


def after():
    # Before newer lines take their place.
    complaints.extend(text for _, text in log.records() if COMPLAINT.search(text))


# Unbind and bind. Each test case starts with what it needs.


def bound():
    if not main.is_bound:
        equal(main.bind(), "ok", "bind")


def unbound():
    if main.is_bound:
        equal(main.unbind(), "ok", "unbind")


@suite.case("unbind", "ok", needs_emulator=False)
def unbind():
    bound()
    return main.unbind()


@suite.case("nothing is left after an unbind", needs_emulator=False)
def nothing_left():
    unbound()
    equal(main.leftovers(), [], "what is left")
    equal((main.sysfs / "driver").exists(), False, "it has a driver")


@suite.case("a second unbind fails", "ENODEV", needs_emulator=False)
def unbind_again():
    unbound()
    return main.unbind()


@suite.case("bind", "ok", needs_emulator=False)
def bind():
    unbound()
    return main.bind()


@suite.case("a second bind fails", "EBUSY", needs_emulator=False)
def bind_again():
    bound()
    return main.bind()


@suite.case("an unbind and a bind reset the device for NORMAL reasons", "NORMAL NORMAL")
def resets():
    bound()
    before = len(main.state()["resets"])
    if before >= REMEMBERED_RESETS - 2:
        raise Skipped("the emulator remembers no more resets")
    main.rebind()
    return " ".join(main.state()["resets"][before:])


# Many rounds.


@contextmanager
def load():
    """Where many rounds are asked for, others use all devices meanwhile."""
    with ExitStack() as stack:
        for _ in range(LOADERS * UNDER_LOAD):
            loader = subprocess.Popen(["bash", "-c", LOAD], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(loader.wait)
            stack.callback(loader.kill)
        yield


@contextmanager
def alone():
    """Nobody drives the other devices meanwhile, so that a few rounds are quick."""
    others = [function.sysfs / "driver_override" for function in selftest.FUNCTIONS if function is not main]
    for file in others:
        file.write_text("none\n")
    try:
        yield
    finally:
        for file in others:
            file.write_text("\n")


def patiently(action):
    """What an action ends with; tries it again for a while if it fails."""
    for _ in range(ATTEMPTS):
        if (result := result_of(action)) == "ok":
            break
        time.sleep(0.02)
    return result


def reload_once():
    """Removes and loads the module, and returns what that ends with."""
    result = patiently(remove_module)
    return result_of(load_module, MODULE) if result == "ok" else result


def rebind_once():
    result = main.unbind()
    return main.bind() if result == "ok" else result


def repeat(action, rounds):
    """What an action ends with that often, under load: each result with its number."""
    with load():
        results = [action() for _ in range(rounds)]
    return {result: results.count(result) for result in sorted(set(results))}


def rebind(rounds):
    bound()
    return repeat(rebind_once, rounds)


def reload(rounds):
    if UNDER_LOAD:
        return repeat(reload_once, rounds)
    with alone():
        results = repeat(reload_once, rounds)
    equal(reload_once(), "ok", "the last one, with all devices")
    return results


def quiesce():
    """Waits until those who were busy with the devices have given back their memory; idle workers of udev stay for 3 s."""
    main.settle()
    time.sleep(4)


@functools.cache
def memory_before():
    """The memory before all rounds."""
    if UNDER_LOAD:
        # The first rounds fill caches; a leak is what goes on after them.
        rebind(ROUNDS // 10)
        if MODULE:
            reload(ROUNDS // 10)
    quiesce()
    return free_memory()


@functools.cache
def all_rebinds():
    memory_before()
    return rebind(ROUNDS)


@functools.cache
def all_reloads():
    memory_before()
    return reload(ROUNDS)


@suite.case(f"{ROUNDS} rounds of unbind and bind", needs_emulator=False)
def rebinds():
    equal(all_rebinds(), {"ok": ROUNDS}, "results")


@suite.case(f"{ROUNDS} rounds of rmmod and insmod", needs_emulator=False)
def reloads():
    needs_module()
    equal(all_reloads(), {"ok": ROUNDS}, "results")


@suite.case("memory is where it was", needs_emulator=False)
def memory():
    before = memory_before()
    all_rebinds()
    if MODULE:
        all_reloads()
    quiesce()
    left = free_memory()
    print(f"# memory before {before} KiB, after {left} KiB", flush=True)
    if before - left >= TOLERANCE:
        details = filter(DETAILS.search, Path("/proc/meminfo").read_text().splitlines())
        raise selftest.Failed("\n".join([f"{before - left} KiB are missing", *details]))


# A device that is open.


@contextmanager
def device_open():
    main.settle()
    fd = os.open(main.uverbs(), os.O_RDWR | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.close(fd)


@suite.case("users of the module while a device is open", "0", needs_emulator=False)
def users():
    with device_open():
        return first_line(LOADED / "refcnt")


@suite.case("removal of the module while a device is open", "ok", needs_emulator=False)
def removal():
    needs_module()
    with device_open():
        result = result_of(remove_module)
        if not LOADED.exists():
            load_module(MODULE)
        return result


@suite.case("the device is bound in the end", needs_emulator=False)
def bound_in_the_end():
    equal(main.is_bound, True, "bound")


@suite.case("the kernel has no complaint", needs_emulator=False)
def no_complaint():
    after()
    equal(complaints, [], "complaints")


if first_line(LOADED / "refcnt") != "0":
    selftest.skip_all("the driver is in use")
suite.run(after=after)
