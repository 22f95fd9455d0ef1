#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Random triggers under random loads, one after the other, chosen by EFA_SEED, for EFA_MINUTES. Prints KTAP.

See cases.py for its arguments.
"""

import os
import random
from pathlib import Path
from typing import Any

import cases
import loads
import selftest
import triggers
from selftest import Failed, Skipped
from stage import Stage
from timing import now

SEED = int(os.environ.get("EFA_SEED") or 1)
SECONDS = 60 * int(os.environ.get("EFA_MINUTES") or 1)
# lockdep reports the kernel's own locks for these two, and then disables itself. aer_inject takes a spinlock while it holds a raw
# one; pciehp takes its two mutexes in both orders.
LEFT_OUT = (triggers.Aer, triggers.Unplug) if Path("/proc/lockdep_stats").exists() else ()
# Other triggers are limited to few rounds per guest.
TRIGGERS = [trigger for trigger in triggers.ALL if trigger.is_noticed and not trigger.most_rounds and not issubclass(trigger, LEFT_OUT)]
LOADS = (loads.Load, *loads.BUSY)

stage: Any = Stage() if selftest.emulator else None
suite = cases.Tests()


@suite.case(f"seed {SEED}")
def mixture():
    choices, end, number = random.Random(SEED), now() + SECONDS, 0
    while now() < end:
        number += 1
        trigger, load = choices.choice(TRIGGERS), choices.choice(LOADS)
        print(f"# choice {number}", flush=True)
        try:
            stage.rounds(trigger(stage), load(stage), 1)
        except (Failed, Skipped) as failure:
            raise Failed(f"choice {number}, {trigger.name}, {load.name}: {failure}") from failure


if __name__ == "__main__":
    suite.main()
