# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The kernel's trace of a PCI function and its driver: the order of events, and whether all acquired resources were released."""

import os
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

TRACEFS = Path("/sys/kernel/tracing")
INSTANCE = TRACEFS / "instances" / "efa_selftest"
PROBE = "efa_selftest/config"

# The command register of a PCI function, and the bit that lets it access memory.
PCI_COMMAND = 4
PCI_COMMAND_MASTER = 4

RELEASE = re.compile(r": (?:dma_free: (?P<device>\S+) |config: .*value=(?P<command>\d+)$)", re.MULTILINE)
DMA = re.compile(r": dma_(?P<what>alloc|map|free|unmap)_?(?P<kind>\w*): (?P<device>\S+) ", re.MULTILINE)
LOST = re.compile(r"^(?:overrun|dropped events): [1-9]", re.MULTILINE)

# KiB for each CPU: more than all events of a test case.
BUFFER = 8192


def dynamic_event(change):
    # Opened with O_TRUNC, as Python does, the file would lose the events of others, and it can't seek.
    fd = os.open(TRACEFS / "dynamic_events", os.O_WRONLY)
    try:
        os.write(fd, change.encode())
    finally:
        os.close(fd)


@contextmanager
def recording(*events):
    """Gives a function that returns the trace of these events up to then."""
    INSTANCE.mkdir()
    try:
        (INSTANCE / "buffer_size_kb").write_text(str(BUFFER))
        for event in events:
            (INSTANCE / "events" / event / "enable").write_text("1")
        yield (INSTANCE / "trace").read_text
    finally:
        INSTANCE.rmdir()


@contextmanager
def releases(function):
    """Gives a list of what the function's driver did in the block, in order, which is complete after it.

    `memory` stands for each piece of coherent memory that was freed, `bus master` for each time that bus mastering was turned off.
    No other function may be bound or unbound meanwhile.
    """
    found = []
    # Writes to a PCI function's configuration have no event of their own.
    dynamic_event(f"p:{PROBE} pci_write_config_word where=$arg2:s32 value=$arg3:u16")
    try:
        with recording(PROBE, "dma/dma_free") as trace:
            (INSTANCE / "events" / PROBE / "filter").write_text(f"where == {PCI_COMMAND}")
            yield found
            for match in RELEASE.finditer(trace()):
                if match["device"] == function.address:
                    found.append("memory")
                elif match["command"] and not int(match["command"]) & PCI_COMMAND_MASTER:
                    found.append("bus master")
    finally:
        # Only possible once no instance has it turned on.
        dynamic_event(f"-:{PROBE}")


@contextmanager
def dma(function):
    """Gives a function that returns two numbers by kind: how many DMA mappings of a PCI function are left, and how many it had in all."""
    with recording("dma") as trace:

        def count():
            lost = [file for file in INSTANCE.glob("per_cpu/cpu*/stats") if LOST.search(file.read_text())]
            if lost:
                raise OverflowError("the trace's buffer is too small")
            left, made = Counter(), Counter()
            for match in DMA.finditer(trace()):
                if match["device"] == function.address and not match["kind"].endswith("err"):
                    kind = ("map" if match["what"] in ("map", "unmap") else "alloc") + match["kind"]
                    is_made = match["what"] in ("map", "alloc")
                    made[kind] += is_made
                    left[kind] += 1 if is_made else -1
            return {kind: number for kind, number in left.items() if number}, made.total()

        yield count
