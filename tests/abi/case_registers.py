# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The registers that a driver writes, and the commands that it sends, in their order: in a probe and in a removal."""

import re

from harness import Cases, trace

cases = Cases("registers", "registers")

# How often a driver reads a register depends on how fast a device is, and its reads of counters on other readers.
HIDDEN = re.compile(r"^aenq KEEP_ALIVE|^read |GET_STATS")
# Of a bus address the offset in a page stays.
LOW, HIGH = re.compile(r"^(write \w+_LO) = 0x([0-9a-f]+)"), re.compile(r"^(write \w+_HI) = .*")
# What the first case leaves for the second one.
probed = []


def steps(function):
    """What the device saw since the last call, without what differs from run to run: commands by their names and bytes."""
    lines = []
    for line in trace(function, HIDDEN):
        text = re.sub(r"^aq \d+ (\w+\(\w*).*", r"\1)", line)
        text = LOW.sub(lambda match: f"{match[1]} = {int(match[2], 16) & 0xFFF:#x}", text)
        lines.append(HIGH.sub(r"\1", text) + f" {line.bytes}" * bool(line.bytes))
    return ", ".join(lines)


@cases.case("in a removal")
def removal(s):
    s.shows_commands = None
    trace(s.function)
    s.function.unbind()
    result = steps(s.function)
    # The other cases and the counters need a device that is bound.
    s.function.rebind()
    s.function.settle()
    probed.append(steps(s.function))
    return result


@cases.case("in a probe")
def probe(s):
    s.shows_commands = None
    return probed.pop()
