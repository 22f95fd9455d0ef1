# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The timeout of all waits of the runner. A longer wait counts as a hang. It does not depend on the speed of the host."""

import os
import time

from .failure import Failure

# Timeout in seconds.
PATIENCE = int(os.environ.get("EFA_PATIENCE") or 120)
# Seconds between two checks of a condition.
INTERVAL = 0.05


class Deadline:
    """The end of a wait that begins now, and again at each sign of progress."""

    def __init__(self, seconds=None):
        self.seconds = PATIENCE if seconds is None else seconds
        self.again()

    def again(self):
        self.begin = time.monotonic()

    def over(self):
        return time.monotonic() > self.begin + self.seconds


def wait_until(condition, what, interval=INTERVAL):
    """Waits until a condition is true, and returns its value. Fails after PATIENCE. WHAT begins the message of the failure."""
    deadline = Deadline()
    while not (found := condition()):
        if deadline.over():
            raise Failure(f"{what} within {PATIENCE} s (EFA_PATIENCE).")
        time.sleep(interval)
    return found
