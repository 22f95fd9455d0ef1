#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Repeated bind and unbind, insmod and rmmod of a driver.

EFA_ROUNDS sets the number of rounds. With 100 or more, they run under load.
"""

import functools
import os
import re
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import selftest
from modules import load_module, remove_module
from selftest import Skipped, Suite, equal, first_line, result_of, wait_until
from tracing import dma

ROUNDS = int(os.environ.get("EFA_ROUNDS") or 10)
UNDER_LOAD = ROUNDS >= 100
# Keeps devices and counters in use until killed.
LOAD = "while :; do ibv_devinfo; cat /sys/class/infiniband/*/hw_counters/* /sys/class/infiniband/*/ports/1/hw_counters/*; done"
LOADERS = 2

LOADED = Path("/sys/module/efa")
WARNING = re.compile("BUG:|WARNING:|Oops|general protection|Call Trace:|refcount_t|soft lockup|blocked for more")

suite = Suite()
main = selftest.any_function()
log = selftest.KernelLog()
warnings = []


def find_module():
    """Returns the path of the module's file, or None if it is not known."""
    name = os.environ.get("EFA_KO")
    if not name:
        try:
            name = subprocess.run(["modinfo", "-F", "filename", "efa"], capture_output=True, text=True, check=False).stdout.strip()
        except FileNotFoundError:
            return None
    return name if os.path.isfile(name) else None


MODULE = find_module()


def needs_module():
    if not MODULE:
        raise Skipped("the module's file is not known: set EFA_KO")


def after():
    # Reads the log before newer lines overwrite these.
    warnings.extend(text for _, text in log.records() if WARNING.search(text))


# Unbind and bind. Each test case first brings the device to the state that it needs.


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


def mapped():
    """Returns the parts of the device's BARs that the kernel has mapped."""
    resources = [line.split() for line in (main.sysfs / "resource").read_text().splitlines()]
    bars = [(int(start, 16), int(end, 16)) for start, end, _ in resources if int(end, 16)]
    areas = [int(area, 16) for area in re.findall(r"phys=0x([0-9a-f]+)", Path("/proc/vmallocinfo").read_text())]
    return [hex(area) for area in areas if any(start <= area <= end for start, end in bars)]


@suite.case("nothing is left after an unbind", needs_emulator=False)
def nothing_left():
    bound()
    equal(mapped() != [], True, "parts of a bound device are mapped")
    unbound()
    equal(main.leftovers(), [], "leftovers of the driver")
    equal(mapped(), [], "parts of the device that are mapped")
    equal((main.sysfs / "driver").exists(), False, "whether it has a driver")


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
    with main.resets_meanwhile() as reasons:
        main.rebind()
    return " ".join(reasons)


# Many rounds.


@contextmanager
def load():
    """Makes other processes use all devices within the block, if there are many rounds."""
    with ExitStack() as stack:
        for _ in range(LOADERS * UNDER_LOAD):
            loader = subprocess.Popen(["bash", "-c", LOAD], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(loader.wait)
            stack.callback(loader.kill)
        yield


@contextmanager
def alone():
    """Keeps the driver from the other devices within the block, so that a few rounds are quick."""
    others = [function.sysfs / "driver_override" for function in selftest.FUNCTIONS if function is not main]
    for file in others:
        file.write_text("none\n")
    try:
        yield
    finally:
        for file in others:
            file.write_text("\n")


def remove():
    """Removes the module. Under load, a driver may refuse that while a device is open, hence the retries."""
    if UNDER_LOAD:
        wait_until(lambda: result_of(remove_module) == "ok", "the module is removed")
    else:
        equal(result_of(remove_module), "ok", "removal of the module")


def reload_once():
    remove()
    load_module(MODULE)


def repeat(action):
    """Runs an action in each round, under load. Returns the DMA mappings that remain after a final unbind, which should be none."""
    unbound()
    with dma(main) as mappings:
        with load():
            bound()
            for _ in range(ROUNDS):
                action()
            unbound()
        left, made = mappings()
    equal(made > ROUNDS, True, f"{made} pieces of DMA memory in {ROUNDS} rounds")
    bound()
    main.settle()
    return left


@functools.cache
def all_rebinds():
    return repeat(main.rebind)


@functools.cache
def all_reloads():
    if UNDER_LOAD:
        return repeat(reload_once)
    with alone():
        left = repeat(reload_once)
    # One round with all devices.
    reload_once()
    return left


@suite.case(f"{ROUNDS} rounds of unbind and bind", needs_emulator=False)
def rebinds():
    all_rebinds()


@suite.case(f"{ROUNDS} rounds of rmmod and insmod", needs_emulator=False)
def reloads():
    needs_module()
    all_reloads()


@suite.case("no DMA memory is left after all rounds", needs_emulator=False)
def memory():
    equal(all_rebinds(), {}, "DMA memory after rounds of unbind and bind")
    if MODULE:
        equal(all_reloads(), {}, "DMA memory after rounds of rmmod and insmod")


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


@suite.case("the kernel logs no warnings", needs_emulator=False)
def no_warnings():
    after()
    equal(warnings, [], "warnings")


if first_line(LOADED / "refcnt") != "0":
    selftest.skip_all("the driver is in use")
suite.run(after=after)
