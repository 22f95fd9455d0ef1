# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The module builds for Debian's newest kernel, of any suite. Debian is asked once a day."""

from pathlib import Path

import pytest
from conftest import succeeds

MINUTES = 12
TIER = "named"
NEEDS = ["canary"]
CANARY = Path("/run/built/canary")
BUILD = "cp -rL efa_rs {0}/module && make -j$(nproc) -C {1}/kit M={0}/module modules"


def test_module(tmp_path):
    if (reason := CANARY / "reason").exists():
        pytest.skip(reason.read_text().strip())
    command = ["tools/layer", str(CANARY), "sh", "-c", BUILD.format(tmp_path, CANARY)]
    succeeds(command)
