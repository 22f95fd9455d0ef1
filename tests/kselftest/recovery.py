# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What becomes of a device that has failed in use: the driver brings it back."""

from selftest import emulator, equal, wait_until
from uverbs import opened

# Seconds before each attempt to bring a device back.
BACKOFF = (0, 1, 2, 4, 8)


class Recovery:
    """One failure of a device that works, after which the driver brings it back. Made before it, and awaited after it."""

    def __init__(self, function, reason):
        self.function = function
        self.reason = reason
        self.resets = function.resets()
        self.session = int(function.status()["session"])

    def is_over(self):
        status = self.function.status()
        return status["state"] == "up" and int(status["session"]) > self.session

    def wait(self, attempts=1):
        """Waits until the device is back; fails if anything is left of the time before, or if it was not for this reason alone.

        It has to be back with this attempt, of which the first one is made at once.
        """
        wait_until(self.is_over, f"a recovery ({self.reason})")
        status = self.function.status()
        equal([status["session"], status["attempts"]], [str(self.session + 1), str(attempts)], "the session, and the attempt")
        equal([status["last_reset"], status["quarantine"]], [self.reason, "0"], "reason of the reset, and memory in quarantine")
        if emulator:
            equal(self.function.held(), {}, "what the device has after a reset")
        self.function.settle()
        wanted = self.resets | {name: self.resets[name] + 1 for name in (self.reason, "all")}
        equal(self.function.resets(), wanted, "resets")
        # What it has done for a program tells its next failure from another one of the same kind.
        opened(self.function).close()
