# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What a guest of the bench leaves: instructions per sample, the kernel's symbols, and what its program saw."""

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
    # Of the shortest sample: how often the instruction at an address was executed.
    counts: dict[int, int]


def parse_groups(text):
    """The groups of each label in what tests/bench/count.rs writes."""
    groups = {}
    for block in filter(None, text.split("\n\n")):
        head, *lines = block.split("\n")
        label, switches, *totals = map(int, head.split())
        counts = {int(address, 16): int(count) for address, count in map(str.split, filter(None, lines))}
        groups.setdefault(label, []).append(Group(switches, totals, counts))
    return groups


def representative(groups, round_trips):
    """The group that slept once for each round trip; else that with the most samples, and of those the cheapest one.

    In the others the device had answered before the program slept, or something else got the CPU.
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
        """The function with an address in it, followed by its module, if it is of one."""
        index = bisect.bisect(self.addresses, address) - 1
        return self.names[index] if index >= 0 else f"{address:#x}"

    def profile(self, counts):
        """Instructions by function."""
        found = Counter()
        for address, count in counts.items():
            found[self.name(address)] += count
        return found


class Results:
    """All of one guest."""

    def __init__(self, counts, folder):
        """COUNTS is the file of the plugin, FOLDER that of the program."""
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
        """Of the instructions of a verb, those of the driver itself, but for functions with WITHOUT in their names."""
        functions = {function: count for function, count in self.profiles[name].items() if function.endswith(MODULE)}
        return sum(count for function, count in functions.items() if not without or without not in function)
