#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Devices that fail and recover, and devices that are removed, while programs use them in every way. Prints KTAP.

See cases.py for its arguments.
"""

import math
from typing import Any

import cases
import loads
import selftest
import triggers
from stage import Stage

stage: Any = Stage() if selftest.emulator else None
suite = cases.Tests()


def add(trigger, load):
    def run():
        stage.rounds(trigger(stage), load(stage), min(cases.rounds(), trigger.most_rounds or math.inf))

    suite.add(f"{trigger.name}, {load.name}", run, most_rounds=trigger.most_rounds)


for trigger in filter(lambda trigger: trigger.is_noticed, triggers.ALL):
    for load in (loads.Load, loads.Everything):
        add(trigger, load)

if __name__ == "__main__":
    suite.main()
