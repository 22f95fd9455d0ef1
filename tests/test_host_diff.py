# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Sequences of verbs and faults: the driver as a program (host/) records them, and a guest repeats them. LENGTH is their number."""

import os
import subprocess

from conftest import CLONE
from guests import LIMIT, lines_of, result

MINUTES = 3
COMBINATIONS = {"all": ["rust cloud-amd64"]}
GUESTS = {"devices": lines_of(CLONE / "tests/kselftest/devices")}
NEEDS = ["sequences"]


def test_host_diff(request, guests, ktap):
    first, count = os.environ.get("EFA_SEED") or "0", request.config.option.length or 100
    with open(guests.folder / "shared/sequences", "w") as file:
        subprocess.run([result("sequences") / "sequences", first, str(count)], stdout=file, check=True)
    ktap(guests.tried(f"{CLONE}/tests/host-diff/play.py /run/efa-rs/sequences", timeout=LIMIT + 10 * count))
