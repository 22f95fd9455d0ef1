# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Conditions of the network between the emulated devices during a test."""

import contextlib
from dataclasses import dataclass, field

from selftest import emulator


@dataclass
class Condition:
    # Suffix of the names of tests.
    suffix: str
    # Settings of the emulator's network that differ from those at its start.
    settings: dict = field(default_factory=dict)
    # Whether datagrams are lost, which only a test's own program can detect.
    lossy: bool = False


# The realistic network that the emulator was started with: packets overtake each other, and none is lost.
GOOD = Condition("")
# Each other condition has a single defect.
FEW_PATHS = {"paths": 4, "delay_us": 0, "jitter_us": 0}
BAD = (
    Condition(", 1 % loss", {**FEW_PATHS, "loss": 0.01}, lossy=True),
    # The delays of a message's packets differ by up to jitter_us, and the packets overtake each other on four paths.
    Condition(", reordering", {**FEW_PATHS, "jitter_us": 200}),
    Condition(", one of four paths down", {**FEW_PATHS, "path": [{"down": True}]}, lossy=True),
)
LOSS_AND_REORDERING = Condition(", 1 % loss and reordering", {**FEW_PATHS, "loss": 0.01, "jitter_us": 200}, lossy=True)
WRONG_BITS = Condition("", {**FEW_PATHS, "flip": 1})


@contextlib.contextmanager
def applied(condition):
    """Applies a condition to the network within the context manager."""
    if not condition.settings:
        yield
        return
    before = emulator.send({"command": "fabric"})["settings"]
    emulator.send({"command": "fabric", "set": condition.settings})
    try:
        yield
    finally:
        emulator.send({"command": "fabric", "set": before})
