#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Attributes of a device and its port in sysfs and in the output of the RDMA tools."""

import functools
import json
import mmap
import re
import shutil
import subprocess
from typing import Any

from selftest import DRIVER, FUNCTIONS, Failed, Skipped, Suite, emulator, equal, first_line, wait_until

# Rate of each device, and maximum number of entries in the scatter list of an RDMA read.
DEVICES = {
    "profile=efa0": ("100 Gb/sec (4X EDR)", 0),
    "profile=efa1": ("100 Gb/sec (4X EDR)", 1),
    "profile=efa2": ("200 Gb/sec (4X HDR)", 1),
    "profile=efa3": ("400 Gb/sec (8X HDR)", 1),
    "profile=efa4": ("800 Gb/sec (8X NDR)", 1),
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
# Maximum size of a memory region in pages of the kernel.
MAX_MR_PAGES = 0x100000

suite = Suite()
# The device for tests of all rates. Faults that an earlier program has injected are cleared.
main: Any = FUNCTIONS[0] if emulator else None
if main:
    main.clear()


# Tests of each device.


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


def one_gid(function):
    return len(list((function.port / "gids").iterdir()))


def pkey(function):
    return first_line(function.port / "pkeys/0")


def one_pkey(function):
    return len(list((function.port / "pkeys").iterdir()))


def state(function):
    return first_line(function.port / "state")


def physical_state(function):
    return first_line(function.port / "phys_state")


def rate(function, wanted):
    like(first_line(function.port / "rate"), wanted, "[1-9][0-9]* Gb/sec.*")


def link_layer(function):
    return first_line(function.port / "link_layer")


def node_type(function):
    return first_line(function.rdma / "node_type")


def infiniband_only(function):
    got = {field: first_line(function.port / field) for field in ("lid", "sm_lid", "sm_sl", "cap_mask", "lid_mask_count")}
    equal(got, {"lid": "0x0", "sm_lid": "0x0", "sm_sl": "0", "cap_mask": "0x00000000", "lid_mask_count": "1"}, "the port's files")
    return first_line(function.rdma / "sys_image_guid")


def firmware(function):
    version = first_line(function.rdma / "fw_ver")
    return "shown" if re.fullmatch("0x00000001" if emulator else "0x........", version) else version


def ibv_devinfo(function, part, rdma_sges):
    done = subprocess.run(["ibv_devinfo", "-v", "-d", function.rdma.name], capture_output=True, text=True, check=False)
    equal(done.returncode, 0, f"exit status of ibv_devinfo, with the output {done.stdout}{done.stderr}")
    shown = {}
    for line in done.stdout.splitlines():
        name, _, value = line.strip().partition(":")
        shown.setdefault(name, value.strip())
    wanted = {
        "transport": "unspecified (4)",
        "node_guid": first_line(function.rdma / "node_guid"),
        "vendor_id": "0x1d0f",
        "vendor_part_id": f"{part}",
        "hw_ver": f"0x{part:X}",
        "phys_port_cnt": "1",
        "max_mr_size": hex(MAX_MR_PAGES * mmap.PAGESIZE),
        "page_size_cap": "0x7ffff000",
        "max_qp": "256",
        "max_qp_wr": "4096",
        "max_sge": "2",
        "max_sge_rd": f"{rdma_sges}",
        "max_cq": "512",
        "max_cqe": "32768",
        "max_mr": "65534",
        "max_pd": "256",
        "max_ah": "4096",
        "max_srq": "0",
        "max_pkeys": "1",
        "state": "PORT_ACTIVE (4)",
        "max_mtu": "4096 (5)",
        "active_mtu": "4096 (5)",
        "link_layer": "Unspecified",
        "max_msg_sz": "0x22e0",
        "pkey_tbl_len": "1",
        "gid_tbl_len": "1",
    }
    equal({name: shown.get(name) for name in wanted}, wanted, "ibv_devinfo")


def rdma_link(function):
    if not shutil.which("rdma"):
        raise Skipped("needs the program rdma")
    link = f"{function.rdma.name}/1"
    done = subprocess.run(["rdma", "link", "show", link], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    wanted = f"link {link} state ACTIVE physical_state LINK_UP"
    equal(done.stdout[: len(wanted)], wanted, "rdma link")


def add_devices():
    for number, (spec, (gbps, rdma_sges)) in enumerate(DEVICES.items()):
        for name, test, wanted in (
            ("node GUID", node_guid, ""),
            ("GID", gid, ""),
            ("one GID", one_gid, "1"),
            ("partition key", pkey, "0xffff"),
            ("one partition key", one_pkey, "1"),
            ("state", state, "4: ACTIVE"),
            ("physical state", physical_state, "5: LinkUp"),
            ("rate", functools.partial(rate, wanted=gbps), ""),
            ("link layer", link_layer, "Unknown"),
            ("node type", node_type, "7: unspecified"),
            ("attributes of InfiniBand only", infiniband_only, "0000:0000:0000:0000"),
            ("firmware version", firmware, ""),
        ):
            suite.add_for(spec, name, test, wanted, needs_emulator=False)
        suite.add_for(spec, "ibv_devinfo", functools.partial(ibv_devinfo, part=0xEFA0 + number, rdma_sges=rdma_sges))
        suite.add_for(spec, "rdma link", rdma_link, needs_emulator=False)


add_devices()


# All rates, each after a probe.


@suite.case("devlink health")
def devlink_health():
    if DRIVER == "c":
        raise Skipped("Linux's C driver has no devlink instance")
    function = f"pci/{main.address}"

    def devlink(*command):
        done = subprocess.run(["devlink", "-j", "health", *command], capture_output=True, text=True, check=False)
        equal(done.stderr, "", f"the error of devlink health {' '.join(command)}")
        return json.loads(done.stdout.strip() or "{}")

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
