# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The kernel selftests: a guest for all, a test for each program, a result for each of its cases."""

import re
import shlex
import shutil
import tomllib

import pytest
from conftest import CLONE
from guests import Guests, lines_of, result

KSELFTEST = CLONE / "tests/kselftest"
MAKEFILE = (KSELFTEST / "Makefile").read_text()
PROGRAMS, TIMEOUTS = (re.findall(rf"^TEST_PROGS{kind} \+= (\S+)\.py$", MAKEFILE, re.MULTILINE) for kind in ("", "_SLOW"))
MINUTES = 4
COMBINATIONS = {"check": ["rust cloud-amd64"], "all": ["c cloud-amd64", "rust amd64"], "named": ["rust debug"]}
GUESTS = {"devices": lines_of(KSELFTEST / "devices")}
NEEDS = ["no_kverbs-cloud-amd64"]


def run(guests, program, case, ktap):
    environment = f"EFA_CASES={shlex.quote(case)} " if case else ""
    ktap(guests.tried(f"cd {KSELFTEST} && {environment}timeout {900 * guests.slow} ./{program}.py"), f"{program}: ")


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(guests, program, case, ktap):
    run(guests, program, case, ktap)


# Attributes of profiles for which the table of instances has others.
INVENTED = {"max_mr": 65534, "max_ah": 4096, "max_mr_pages": 1 << 20, "page_size_cap": (1 << 31) - (1 << 12)}
CROWD = {"max_pd": 1200, "max_cq": 1200, "max_qp": 1200, "max_llq_size": 16384}


def test_measured_attributes(guests):
    """`efa-emu probe` describes the devices as a file of instances, with the attributes that the table of instances lacks."""
    shutil.copy(result("emulator") / "efa-emu", guests.folder / "shared")
    said = guests.run("setpriv --reuid 65534 --clear-groups /run/efa-rs/efa-emu probe")
    found = list(tomllib.loads(said)["instance"].values())
    same = {"devices": 1, "rdma": "read-write"}
    assert {**same, "profile": "efa4", "link_gbps": 800} in found, said
    assert {**same, "profile": "efa3", "link_gbps": 400, "set": {**INVENTED, **CROWD}} in found, said


@pytest.mark.tier("all")
@pytest.mark.parametrize("program", TIMEOUTS)
def test_timeouts(guests, program, case, ktap):
    """Devices that do not answer until the driver gives them up."""
    run(guests, program, case, ktap)


@pytest.mark.tier("all")
def test_bounce(options, case, ktap):
    """Bounce buffers take a guest that is booted for them."""
    with Guests(**{**options, "append": "swiotlb=force"}) as guests:
        run(guests, "bounce", case, ktap)
        run(guests, "dmesg", case, ktap)


@pytest.mark.tier("all")
def test_without_kernel_verbs(options, case, ktap):
    """A module without kernel verbs serves programs as one with them."""
    with Guests(**{**options, "driver": "no_kverbs", "flavour": "cloud-amd64"}) as guests:
        for program in ("queues", "resource_details", "dmesg"):
            run(guests, program, case, ktap)


@pytest.mark.needs("emulator", "c-cloud-amd64", "kernel-cloud-amd64")
@pytest.mark.xdist_group("smoke")
def test_smoke_of_c(case, ktap):
    """Linux's own driver finds what it expects of the emulated devices. All of the selftests with it are in check-all."""
    with Guests(driver="c", **GUESTS) as guests:
        for program in ("probe", "ucontext_pd"):
            run(guests, program, case, ktap)
