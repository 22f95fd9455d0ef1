# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The timeout of all waits of the runner. A longer wait counts as a hang. It does not depend on the speed of the host."""

import os
import sys
import time

from .failure import Failure


def seconds(text):
    """Parses EFA_PATIENCE. This module is imported before a failure could be reported."""
    if not text.isdecimal() or int(text) == 0:
        sys.exit(f"EFA_PATIENCE is {text!r}: set it to a number of seconds.")
    return int(text)


# Timeout in seconds.
PATIENCE = seconds(os.environ.get("EFA_PATIENCE") or "120")
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
