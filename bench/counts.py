# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Results of a guest of the bench: instructions per sample, the kernel's symbols, and the output of its program."""

import bisect
import json
from collections import Counter
from dataclasses import dataclass

MODULE = "[efa]"


@dataclass
class Group:
    """Samples of one name during which the program's task slept equally often."""

    switches: int
    totals: list[int]
    # Number of executions of the instruction at each address, in the shortest sample.
    counts: dict[int, int]


def parse_groups(text):
    """Returns the groups of each label in the output of bench/count.rs."""
    groups = {}
    for block in filter(None, text.split("\n\n")):
        head, *lines = block.split("\n")
        label, switches, *totals = map(int, head.split())
        counts = {int(address, 16): int(count) for address, count in map(str.split, filter(None, lines))}
        groups.setdefault(label, []).append(Group(switches, totals, counts))
    return groups


def representative(groups, round_trips):
    """Returns the group that slept once for each round trip; else that with the most samples, and of those the cheapest.

    In other groups, the device answered before the program slept, or another task got the CPU.
    """
    return min(groups, key=lambda group: (group.switches != round_trips, -len(group.totals), min(group.totals)))


class Symbols:
    """The functions of a kernel, as its /proc/kallsyms gives them."""

    def __init__(self, text):
        functions = []
        for line in text.splitlines():
            address, kind, *name = line.split()
            if kind in "tTwW":
                functions.append((int(address, 16), " ".join(name)))
        functions.sort()
        self.addresses = [address for address, _ in functions]
        self.names = [name for _, name in functions]

    def name(self, address):
        """Returns the function that contains an address, followed by its module, if it belongs to one."""
        index = bisect.bisect(self.addresses, address) - 1
        return self.names[index] if index >= 0 else f"{address:#x}"

    def profile(self, counts):
        """Instructions by function."""
        found = Counter()
        for address, count in counts.items():
            found[self.name(address)] += count
        return found


class Results:
    """All results of one guest."""

    def __init__(self, counts, folder):
        """COUNTS is the output file of the plugin, and FOLDER the output folder of the program."""
        seen = json.loads((folder / "results.json").read_text())
        symbols = Symbols((folder / "kallsyms").read_text())
        groups = parse_groups(counts.read_text())
        self.commands, self.memory = seen.get("commands", {}), seen.get("memory", {})
        self.instructions, self.profiles = {}, {}
        for label, name in enumerate(seen["labels"]):
            group = representative(groups[label], self.commands.get(name, {}).get("round_trips", 0))
            self.instructions[name] = min(group.totals)
            self.profiles[name] = symbols.profile(group.counts)

    def module_instructions(self, name, without=None):
        """Returns a verb's instructions in the driver itself, except for functions with WITHOUT in their names."""
        functions = {function: count for function, count in self.profiles[name].items() if function.endswith(MODULE)}
        return sum(count for function, count in functions.items() if not without or without not in function)
