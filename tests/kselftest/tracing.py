# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The order in which the kernel takes things away from a PCI function."""

import os
import re
from contextlib import contextmanager
from pathlib import Path

TRACEFS = Path("/sys/kernel/tracing")
INSTANCE = TRACEFS / "instances" / "efa_selftest"
PROBE = "efa_selftest/config"

# The command register of a PCI function, and the bit that lets it access memory.
PCI_COMMAND = 4
PCI_COMMAND_MASTER = 4

EVENT = re.compile(r": (?:dma_free: (?P<device>\S+) |config: .*value=(?P<command>\d+)$)", re.MULTILINE)


def dynamic_event(change):
    # Opened with O_TRUNC, as Python does, the file would lose the events of others, and it can't seek.
    fd = os.open(TRACEFS / "dynamic_events", os.O_WRONLY)
    try:
        os.write(fd, change.encode())
    finally:
        os.close(fd)


@contextmanager
def releases(function):
    """Gives a list that has, after the block, `memory` for each piece of coherent memory that the function's driver freed
    and `bus master` for each time that the function lost the right to access memory, in their order.

    No other function may be bound or unbound meanwhile.
    """
    found = []
    # Writes to a PCI function's configuration have no event of their own.
    dynamic_event(f"p:{PROBE} pci_write_config_word where=$arg2:s32 value=$arg3:u16")
    try:
        INSTANCE.mkdir()
        events = INSTANCE / "events"
        (events / PROBE / "filter").write_text(f"where == {PCI_COMMAND}")
        for event in (PROBE, "dma/dma_free"):
            (events / event / "enable").write_text("1")
        yield found
        for match in EVENT.finditer((INSTANCE / "trace").read_text()):
            if match["device"] == function.address:
                found.append("memory")
            elif match["command"] and not int(match["command"]) & PCI_COMMAND_MASTER:
                found.append("bus master")
    finally:
        # The event can't be removed while the instance has it turned on.
        if INSTANCE.exists():
            INSTANCE.rmdir()
        dynamic_event(f"-:{PROBE}")
