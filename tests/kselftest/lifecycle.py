#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Repeated bind and unbind, insmod and rmmod of a driver.

EFA_ROUNDS sets the number of rounds. With 100 or more, they run under load.
"""

import os
import re
import subprocess
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import selftest
from modules import load_module, remove_module
from selftest import Suite, equal, first_line, result_of, wait_until
from tracing import dma

ROUNDS = int(os.environ.get("EFA_ROUNDS") or 10)
UNDER_LOAD = ROUNDS >= 100
# Keeps devices and counters in use until killed.
LOAD = "while :; do ibv_devinfo; cat /sys/class/infiniband/*/hw_counters/* /sys/class/infiniband/*/ports/1/hw_counters/*; done"
LOADERS = 2

LOADED = Path("/sys/module/efa")
suite = Suite()
main = selftest.any_function()

# Unbind and bind. Each test case first brings the device to the state that it needs.


def bound():
    if not main.is_bound:
        equal(main.bind(), "ok", "bind")


def unbound():
    if main.is_bound:
        equal(main.unbind(), "ok", "unbind")


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


@suite.case("unbind and bind, each of which fails the second time", "ok ENODEV ok EBUSY", needs_emulator=False)
def unbind_and_bind():
    bound()
    return " ".join(action() for action in (main.unbind, main.unbind, main.bind, main.bind))


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
    load_module()


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


@suite.case(f"{ROUNDS} rounds of unbind and bind leave no DMA memory", needs_emulator=False)
def rebinds():
    equal(repeat(main.rebind), {}, "DMA memory")


@suite.case(f"{ROUNDS} rounds of rmmod and insmod leave no DMA memory", needs_emulator=False)
def reloads():
    with nullcontext() if UNDER_LOAD else alone():
        left = repeat(reload_once)
    # One round with all devices.
    reload_once()
    equal(left, {}, "DMA memory")


if first_line(LOADED / "refcnt") != "0":
    selftest.skip_all("the driver is in use")
suite.run()
