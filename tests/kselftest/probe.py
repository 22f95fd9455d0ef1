#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""State of the module and of its devices after the driver has probed them."""

import functools
import os
import subprocess
from pathlib import Path

from selftest import SYSFS_DRIVER, Suite, emulator, equal, first_line, output_of

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
    fields = {}
    for line in output_of("modinfo", MODULE).splitlines():
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


# The devices.


def event_queues(function):
    return DEVICES[emulator.specs[function.number]] if emulator else sum("efa-comp" in name for _, name in function.interrupts())


def is_bound(function):
    equal(function.is_bound, True, "bound")


def has_rdma_device(function):
    equal(len(function.names("infiniband")), 1, "RDMA devices")


def refers_to_function(function):
    shown = Path("/sys/class/infiniband") / function.rdma.name
    equal((shown.resolve(), (shown / "device").resolve()), (function.rdma.resolve(), function.sysfs.resolve()), "folders")


def refers_to_driver(function):
    places = [(function.sysfs / "driver").resolve(), (SYSFS_DRIVER / "module").resolve()]
    equal(places, [SYSFS_DRIVER.resolve(), LOADED.resolve()], "driver and module")


def interrupt_names(function):
    wanted = ["efa-mgmnt", *(f"efa-comp{number}" for number in range(event_queues(function)))]
    equal([name for _, name in function.interrupts()], wanted, "interrupts")


def hints(function):
    files = [f"/proc/irq/{number}/affinity_hint" for number, _ in function.interrupts()]
    # The management interrupt has the first CPU as its hint, too.
    wanted = [1, *(1 << number for number in range(event_queues(function)))]
    equal([int(first_line(file).replace(",", ""), 16) for file in files], wanted, "hints")


def bars(function):
    reserved = [is_reserved for _, is_reserved in function.bars()]
    equal(reserved, [True] * (3 if emulator else len(reserved)), "whether each BAR is reserved")


def can_be_opened(function):
    name = next(iter(function.names("infiniband_verbs")), "")
    equal(Path("/dev/infiniband", name).is_char_device(), True, f"a device node {name}")
    equal(first_line(function.sysfs / "infiniband_verbs" / name / "abi_version"), "1", "ABI version")


def armed(function):
    state = function.state()
    equal((state["resources"]["eq"], state["armed_eqs"]), (event_queues(function),) * 2, "event queues, and those that are armed")


def has_host_info(function):
    info = function.state()["host_info"] or {}
    wanted = (function.address.partition(":")[2], os.uname().release)
    equal((info.get("bdf"), info.get("os_dist")), wanted, "address and release")


for spec in DEVICES:
    for name, test in (
        ("the device is bound", is_bound),
        ("there is an RDMA device", has_rdma_device),
        ("the RDMA device refers to the PCI device", refers_to_function),
        ("the device refers to its driver, and that to its module", refers_to_driver),
        ("interrupts have their names", interrupt_names),
        ("each event queue hints at its CPU", hints),
        ("BARs are reserved", bars),
        ("it can be opened, with ABI version 1", can_be_opened),
        ("there are event queues, all armed", armed),
        ("the device has the host information", has_host_info),
    ):
        suite.add_for(spec, name, test, needs_emulator=test in (armed, has_host_info))
suite.run()
