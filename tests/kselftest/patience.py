# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Common timeout of all waits. A longer wait counts as a hang. It implies nothing about the speed of a driver, a device or a host."""

import os
import time

# Factor by which this kernel is slower than a stock kernel. A debug kernel checks all its operations.
SLOW = int(os.environ.get("EFA_SLOW_KERNEL", "1"))
# Timeout in seconds.
PATIENCE = int(os.environ.get("EFA_PATIENCE") or 120) * SLOW
# Seconds between two checks of a condition.
INTERVAL = 0.005


class Failed(Exception):
    """Failure of a test case, with its reason."""


def wait_until(condition, what):
    """Waits until a condition is true, and returns its value; raises Failed after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {PATIENCE} s")
        time.sleep(INTERVAL)
    return found
