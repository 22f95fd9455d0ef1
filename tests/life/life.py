#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Devices that fail and recover, and devices that are removed, while programs use them in every way. Prints KTAP.

EFA_ROUNDS is the number of rounds of each test, by default one.
"""

import os
import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[2] / folder) for folder in ("tests/kselftest", "tools/guest")]

from loads import Everything, Load
from selftest import Suite
from stage import stage
from triggers import ALL

suite = Suite()
for trigger in ALL:
    for load in (Load, Everything) if trigger.is_noticed else ():
        suite.add(
            f"{trigger.name}, {load.name}",
            lambda trigger=trigger, load=load: stage.rounds(trigger(stage), load(stage), int(os.environ.get("EFA_ROUNDS") or 1)),
        )
suite.run()
