#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Attributes of a device and its port in sysfs and in the output of the RDMA tools."""

import json
import os
import re
from typing import Any

from selftest import DRIVER, FUNCTIONS, Failed, Skipped, Suite, emulator, equal, first_line, output_of, wait_until

# Rate of each device.
DEVICES = {
    "profile=efa0": "100 Gb/sec (4X EDR)",
    "profile=efa1": "100 Gb/sec (4X EDR)",
    "profile=efa2": "200 Gb/sec (4X HDR)",
    "profile=efa3": "400 Gb/sec (8X HDR)",
    "profile=efa4": "800 Gb/sec (8X NDR)",
}
# Rates in Gbit/s that the device reports, and the port's text for each.
RATES = {
    0: "100 Gb/sec (4X EDR)",
    1: "25 Gb/sec (1X EDR)",
    30: "30 Gb/sec (12X SDR)",
    40: "40 Gb/sec (4X FDR10)",
    50: "50 Gb/sec (1X HDR)",
    60: "60 Gb/sec (12X DDR)",
    100: "100 Gb/sec (4X EDR)",
    120: "120 Gb/sec (12X FDR10)",
    200: "200 Gb/sec (4X HDR)",
    400: "400 Gb/sec (8X HDR)",
    800: "800 Gb/sec (8X NDR)",
    1600: "1600 Gb/sec (8X XDR)",
}

suite = Suite()
# The device for tests of all rates. Faults that an earlier program has injected are cleared.
main: Any = FUNCTIONS[0] if emulator else None
if main:
    main.clear()


# Tests of each device.

# Files of the RDMA device or of its port, and their contents.
FILES = (
    ("partition key", "ports/1/pkeys/0", "0xffff"),
    ("state", "ports/1/state", "4: ACTIVE"),
    ("physical state", "ports/1/phys_state", "5: LinkUp"),
    ("link layer", "ports/1/link_layer", "Unknown"),
    ("node type", "node_type", "7: unspecified"),
)
# The same of those that only InfiniBand has.
INFINIBAND_ONLY = {
    "ports/1/lid": "0x0",
    "ports/1/sm_lid": "0x0",
    "ports/1/sm_sl": "0",
    "ports/1/cap_mask": "0x00000000",
    "ports/1/lid_mask_count": "1",
    "sys_image_guid": "0000:0000:0000:0000",
}


def like(got, wanted, form):
    """Fails if a text differs from that of the emulated device. For a real device only the form is known."""
    if emulator:
        equal(got, wanted, "value in sysfs")
    elif not re.fullmatch(form, got):
        raise Failed(f"unexpected value '{got}' in sysfs")


def node_guid(function):
    guid = first_line(function.rdma / "node_guid")
    like(guid, f"02ef:a0ff:fe00:{function.number or 0:04x}", "....:....:....:....")
    equal(guid == "0000:0000:0000:0000", False, "whether it is zero")


def gid(function):
    like(first_line(function.port / "gids/0"), f"fe80:0000:0000:0000:02ef:a0ff:fe00:{function.number or 0:04x}", "fe80:.*")


def infiniband_only(function):
    equal({name: first_line(function.rdma / name) for name in INFINIBAND_ONLY}, INFINIBAND_ONLY, "files")


def ibv_devinfo(function, part):
    shown = {}
    for line in output_of("ibv_devinfo", "-v", "-d", function.rdma.name).splitlines():
        name, _, value = line.strip().partition(":")
        shown.setdefault(name, value.strip())
    # tests/abi has the limits.
    wanted = {
        "transport": "unspecified (4)",
        "node_guid": first_line(function.rdma / "node_guid"),
        "vendor_id": "0x1d0f",
        "vendor_part_id": f"{part}",
        "hw_ver": f"0x{part:X}",
        "phys_port_cnt": "1",
        "state": "PORT_ACTIVE (4)",
        "active_mtu": "4096 (5)",
        "link_layer": "Unspecified",
    }
    equal({name: shown.get(name) for name in wanted}, wanted, "ibv_devinfo")


def rdma_link(function):
    link = f"{function.rdma.name}/1"
    wanted = f"link {link} state ACTIVE physical_state LINK_UP"
    equal(output_of("rdma", "link", "show", link)[: len(wanted)], wanted, "rdma link")


def add_devices():
    for number, (spec, rate) in enumerate(DEVICES.items()):
        for name, file, wanted in FILES:
            suite.add_for(spec, name, lambda function, file=file: first_line(function.rdma / file), wanted, needs_emulator=False)
        for name, folder in (("one GID", "gids"), ("one partition key", "pkeys")):
            suite.add_for(spec, name, lambda function, folder=folder: len(os.listdir(function.port / folder)), "1", needs_emulator=False)
        for name, test in (
            ("node GUID", node_guid),
            ("GID", gid),
            ("rate", lambda function, rate=rate: like(first_line(function.port / "rate"), rate, "[1-9][0-9]* Gb/sec.*")),
            ("attributes of InfiniBand only", infiniband_only),
            ("rdma link", rdma_link),
        ):
            suite.add_for(spec, name, test, needs_emulator=False)
        suite.add_for(spec, "ibv_devinfo", lambda function, part=0xEFA0 + number: ibv_devinfo(function, part))


add_devices()


@suite.case("firmware version", needs_emulator=False)
def firmware():
    """Returns `shown` or what the devices have in place of a version."""
    versions = {first_line(function.rdma / "fw_ver") for function in FUNCTIONS if function.is_bound}
    return " ".join("shown" if re.fullmatch("0x00000001" if emulator else "0x........", version) else version for version in versions)


@suite.case("devlink health")
def devlink_health():
    if DRIVER == "c":
        raise Skipped("Linux's C driver has no devlink instance")
    function = f"pci/{main.address}"

    def devlink(*command):
        return json.loads(output_of("devlink", "-j", "health", *command).strip() or "{}")

    def shown():
        (reporter,) = devlink("show", function)["health"][function]
        equal(reporter["reporter"], "fw_fatal", "reporter")
        return {name: reporter[name] for name in ("state", "error", "recover", "grace_period", "auto_recover")}

    def values(*command):
        return devlink(*command, function, "reporter", "fw_fatal")

    healthy = {"state": "healthy", "error": 0, "recover": 0, "grace_period": 0, "auto_recover": True}
    main.rebind()
    equal(shown(), healthy, "a new reporter")
    main.die_and_recover()
    wait_until(lambda: shown() == healthy | {"error": 1, "recover": 1}, "the reporter is healthy again")
    equal(values("diagnose")["last_reset"], "fatal_error", "cause in the diagnosis")

    # The dump of the failure is kept until it is cleared.
    dumped = values("dump", "show")
    equal((dumped["session"], dumped["last_reset"]), (1, "fatal_error"), "dump of the failure")
    values("dump", "clear")
    equal({name: str(value) for name, value in values("dump", "show").items()}, main.status(), "another dump")

    devlink("set", function, "reporter", "fw_fatal", "auto_recover", "false")
    main.die()
    wait_until(lambda: main.status()["state"] == "failed", "the device is given up")
    equal(shown(), healthy | {"state": "error", "error": 2, "recover": 1, "auto_recover": False}, "the reporter of a failed device")
    values("recover")
    equal(main.status()["state"], "up", "state after a recovery by an operator")
    equal(shown(), healthy | {"error": 2, "recover": 2, "auto_recover": False}, "the reporter after that")
    main.rebind()
    equal(shown(), healthy, "the reporter of the next binding")


# All rates, each after a probe.


def add_rates():
    for gbps, wanted in RATES.items():

        def run(gbps=gbps):
            main.set(link_gbps=gbps)
            main.rebind()
            # udev may rename the device at the same time.
            return next(filter(None, (first_line(main.port / "rate") for _ in range(3))), "")

        suite.add(f"a link of {gbps} Gbit/s", run, wanted)


add_rates()
try:
    suite.run()
finally:
    if main:
        main.clear()
        main.rebind()
