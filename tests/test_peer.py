# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""RDMA of one guest to and from the memory of a PCI device of the other guest, which is revoked in every way."""

import shlex

import traffic
from conftest import CLONE

MINUTES = 2
COMBINATIONS = {"all": ["rust cloud-amd64"], "named": ["rust debug"]}
GUESTS = {"count": 2, "cpus": 1, "devices": ["profile=efa3,keep_alive_ms=0"], "hotplug": True, "memory_device": "16M"}


def test_peer_memory(guests, case, ktap):
    program = f"env EFA_CASES={shlex.quote(case)} {CLONE}/tests/peer/peer.py"
    ktap(traffic.tried(traffic.pair, guests, f"{program} serve", program, 7100))
