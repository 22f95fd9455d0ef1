# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Register writes and commands of a driver, in their order, during a probe and a removal."""

import re

from harness import Cases, trace

cases = Cases("registers", "registers")

# The number of register reads depends on the device's speed, and that of GET_STATS commands on other readers of the counters.
HIDDEN = re.compile(r"^aenq KEEP_ALIVE|^read |GET_STATS")
# Bus addresses are reduced to their offset in a page.
LOW, HIGH = re.compile(r"^(write \w+_LO) = 0x([0-9a-f]+)"), re.compile(r"^(write \w+_HI) = .*")
# The steps of the probe, recorded by the first case for the second.
probed = []


def steps(function):
    """Returns the register writes and commands since the last call, without values that vary between runs."""
    lines = []
    for line in trace(function, HIDDEN):
        text = re.sub(r"^aq \d+ (\w+\((?:feature_id=\w+)?).*", r"\1)", line)
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
