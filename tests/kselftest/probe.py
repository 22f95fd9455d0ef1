#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""State of the module and of its devices after the driver has probed them."""

import functools
import os
import subprocess
from pathlib import Path

from selftest import SYSFS_DRIVER, Failed, Skipped, Suite, emulator, equal, first_line

# The module's file: the loaded module does not show all its information.
MODULE = os.environ.get("EFA_KO") or "efa"
LOADED = Path("/sys/module/efa")

CPUS = os.cpu_count()
# Number of event queues of each device. Real devices have their own limit.
DEVICES = {
    "profile=efa0": 0,
    "profile=efa1": CPUS,
    "profile=efa2": CPUS,
    "profile=efa3": CPUS,
    "profile=efa4": CPUS,
    "profile=efa2,msix=1": 0,
}

suite = Suite()


# The module.


@functools.cache
def information():
    """Returns the module's information: the values of each field."""
    try:
        done = subprocess.run(["modinfo", MODULE], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        done = None
    if not done or done.returncode != 0:
        raise Skipped(f"modinfo finds no module {MODULE}")
    fields = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.strip())
    return fields


@suite.case("the module is live", "live", needs_emulator=False)
def live():
    return first_line(LOADED / "initstate")


@suite.case("the module has a version that programs accept", "yes", needs_emulator=False)
def version():
    # Programs take releases of Amazon's driver from 2.12.1 or 3.3.0 on, and compare with sort.
    wanted = ["2.12.1", "3.3.0", first_line(LOADED / "version"), "3.4.0"]
    done = subprocess.run(["sort", "-V"], input="\n".join(wanted), capture_output=True, text=True, check=True)
    return "yes" if done.stdout.split() == wanted else "no"


@suite.case("the module has the aliases of all generations", needs_emulator=False)
def aliases():
    missing = {f"pci:v00001D0Fd0000EFA{number}sv*sd*bc*sc*i*" for number in range(5)} - set(information()["alias"])
    equal(missing, set(), "missing aliases")


@suite.case("the module requests ib_uverbs first", "yes", needs_emulator=False)
def softdep():
    return "yes" if ["pre:", "ib_uverbs"] in [value.split()[:2] for value in information().get("softdep", [])] else "no"


@suite.case("the module has a licence that the kernel accepts", "Dual BSD/GPL", needs_emulator=False)
def licence():
    return ", ".join(information()["license"])


# The devices. Each test gets a device and the number of its event queues.


def is_bound(function, event_queues):
    equal(function.is_bound, True, "bound")


def has_rdma_device(function, event_queues):
    equal(len(function.names("infiniband")), 1, "RDMA devices")


def same(one, other):
    """Fails if the two are not the same file."""
    if not os.path.samefile(one, other):
        raise Failed(f"{one} is not {other}")


def refers_to_function(function, event_queues):
    shown = Path("/sys/class/infiniband") / function.rdma.name
    same(shown, function.rdma)
    same(shown / "device", function.sysfs)


def refers_to_driver(function, event_queues):
    same(function.sysfs / "driver", SYSFS_DRIVER)
    same(SYSFS_DRIVER / "module", LOADED)


def interrupt_names(function, event_queues):
    wanted = ["efa-mgmnt", *(f"efa-comp{number}" for number in range(event_queues))]
    equal([name for _, name in function.interrupts()], wanted, "interrupts")


def hints(function, event_queues):
    files = [f"/proc/irq/{number}/affinity_hint" for number, _ in function.interrupts()]
    # The management interrupt has the first CPU as its hint, too.
    wanted = [1, *(1 << number for number in range(event_queues))]
    equal([int(first_line(file).replace(",", ""), 16) for file in files], wanted, "hints")


def bars(function, event_queues):
    reserved = [is_reserved for _, is_reserved in function.bars()]
    equal(reserved, [True] * (3 if emulator else len(reserved)), "whether each BAR is reserved")


def can_be_opened(function, event_queues):
    name = next(iter(function.names("infiniband_verbs")), "")
    equal(Path("/dev/infiniband", name).is_char_device(), True, f"a device node {name}")
    equal(first_line(function.sysfs / "infiniband_verbs" / name / "abi_version"), "1", "ABI version")


def armed(function, event_queues):
    state = function.state()
    equal((state["resources"]["eq"], state["armed_eqs"]), (event_queues, event_queues), "event queues, and those that are armed")


def has_host_info(function, event_queues):
    info = function.state()["host_info"] or {}
    wanted = (function.address.partition(":")[2], os.uname().release)
    equal((info.get("bdf"), info.get("os_dist")), wanted, "address and release")


TESTS = (
    ("the device is bound", is_bound, False),
    ("there is an RDMA device", has_rdma_device, False),
    ("the RDMA device refers to the PCI device", refers_to_function, False),
    ("the device refers to its driver, and that to its module", refers_to_driver, False),
    ("interrupts have their names", interrupt_names, False),
    ("each event queue hints at its CPU", hints, False),
    ("BARs are reserved", bars, False),
    ("it can be opened, with ABI version 1", can_be_opened, False),
    ("there are event queues, all armed", armed, True),
    ("the device has the host information", has_host_info, True),
)


def add_devices():
    for spec, event_queues in DEVICES.items():
        for name, test, needs_emulator in TESTS:

            def run(function, test=test, event_queues=event_queues):
                if event_queues and not emulator:
                    event_queues = sum("efa-comp" in name for _, name in function.interrupts())
                return test(function, event_queues)

            suite.add_for(spec, name, run, needs_emulator=needs_emulator)


add_devices()
suite.run()
