# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The kernel's trace of a PCI function and its driver: the order of events, and whether all acquired resources were released."""

import os
import re
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

TRACEFS = Path("/sys/kernel/tracing")
INSTANCE = TRACEFS / "instances" / "efa_selftest"
PROBE = "efa_selftest/probe"

# Offset of the command register of a PCI function, and its bit for bus mastering.
PCI_COMMAND = 4
PCI_COMMAND_MASTER = 4

RELEASE = re.compile(r": (?:dma_free: (?P<device>\S+) |probe: .*value=(?P<command>\d+)$)", re.MULTILINE)
DMA = re.compile(r": dma_(?P<what>alloc|map|free|unmap)_?(?P<kind>\w*): (?P<device>\S+) ", re.MULTILINE)
LOST = re.compile(r"^(?:overrun|dropped events): [1-9]", re.MULTILINE)

# Buffer size per CPU in KiB: more than the events of any test case.
BUFFER = 8192


def dynamic_event(change):
    # With O_TRUNC, as in Python's open(), the file would lose the events of others. It can't seek either.
    fd = os.open(TRACEFS / "dynamic_events", os.O_WRONLY)
    try:
        os.write(fd, change.encode())
    finally:
        os.close(fd)


@contextmanager
def recording(*events, probe="", only=""):
    """Yields a function that returns the trace of these events so far, and of a probe, of which only those that pass a filter."""
    with ExitStack() as stack:
        if probe:
            dynamic_event(f"p:{PROBE} {probe}")
            # Only possible once the event is disabled in all instances.
            stack.callback(dynamic_event, f"-:{PROBE}")
        INSTANCE.mkdir()
        stack.callback(INSTANCE.rmdir)
        (INSTANCE / "buffer_size_kb").write_text(str(BUFFER))
        # The clock of all processors, so that the order of events is theirs.
        (INSTANCE / "trace_clock").write_text("counter")
        if probe:
            (INSTANCE / "events" / PROBE / "filter").write_text(only)
        for event in (*events, *[PROBE] * bool(probe)):
            (INSTANCE / "events" / event / "enable").write_text("1")
        yield (INSTANCE / "trace").read_text


@contextmanager
def releases(function):
    """Yields a list of releases by the function's driver in the block, in order. The list is complete after the block.

    `memory` is a piece of coherent memory that was freed, `bus master` a write that turned bus mastering off.
    No other function may be bound or unbound at the same time.
    """
    found = []
    # There is no tracepoint for writes to a PCI function's configuration.
    probe = "pci_write_config_word where=$arg2:s32 value=$arg3:u16"
    with recording("dma/dma_free", probe=probe, only=f"where == {PCI_COMMAND}") as trace:
        yield found
        for match in RELEASE.finditer(trace()):
            if match["device"] == function.address:
                found.append("memory")
            elif match["command"] and not int(match["command"]) & PCI_COMMAND_MASTER:
                found.append("bus master")


@contextmanager
def dma(function):
    """Yields a function that returns the remaining DMA mappings of a PCI function by kind, and the total number of mappings made."""
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
