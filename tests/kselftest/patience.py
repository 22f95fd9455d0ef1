# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The one bound of every wait. What exceeds it hangs. It says nothing about how fast a driver, a device or a host is."""

import os
import time

# How many times slower than a stock kernel this one is: a debug kernel checks all that it does.
SLOW = int(os.environ.get("EFA_SLOW_KERNEL", "1"))
# Seconds.
PATIENCE = int(os.environ.get("EFA_PATIENCE") or 120) * SLOW
# Seconds between two looks at a condition.
INTERVAL = 0.005


class Failed(Exception):
    """A test case has failed; says why."""


def wait_until(condition, what):
    """Waits until a condition is true, and returns what it then is; raises Failed after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {PATIENCE} s")
        time.sleep(INTERVAL)
    return found
