# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Clients of RDMA in the kernel, in one guest: those of tests/kverbs, and the samples. A device is removed under load LENGTH times."""

import shlex

import pytest
from conftest import CLONE
from guests import LIMIT, result

MINUTES = 2
COMBINATIONS = {"check": ["rust cloud-amd64"], "named": ["rust debug"]}
# Without keep-alives. A busy host may delay those for so long that the driver resets a device.
GUESTS = {"devices": ["profile=efa3,keep_alive_ms=0", "profile=efa4,keep_alive_ms=0"]}
NEEDS = ["kverbs_client-{flavour}", "rdma_exchange-{flavour}", "null_rdma-{flavour}"]
# The program of each test, and its module. The last one checks the kernel log of all.
PROGRAMS = {
    "kverbs": ("../kverbs/kverbs.py", "kverbs_client"),
    "rdma_exchange": ("../kverbs/kverbs.py", "rdma_exchange"),
    "null_rdma": ("../samples/null_rdma.py", "null_rdma"),
    "dmesg": ("./dmesg.py", ""),
}


def module(name, flavour):
    """Returns the path of a client's module."""
    return result(f"{name}-{flavour}") / f"{name}.ko"


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(request, guests, program, case, ktap):
    length, (file, name) = request.config.option.length, PROGRAMS[program]
    settings = f"EFA_ROUNDS={length or ''} EFA_CASES={shlex.quote(case)}"
    command = f"cd {CLONE}/tests/kselftest && {settings} {file} {module(name, guests.flavour) if name else ''}"
    ktap(guests.tried(command, timeout=LIMIT + 60 * length), f"{program}: ")
