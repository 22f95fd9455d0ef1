# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Recovery by the driver of a device that has failed in use."""

from selftest import emulator, equal, wait_until
from uverbs import opened


class Recovery:
    """Recovery from one failure of a working device. Created before the failure, and awaited after it."""

    def __init__(self, function, reason):
        self.function = function
        self.reason = reason
        self.resets = function.resets()
        self.session = function.status()["session"]

    def wait(self, attempts=1):
        """Waits until the device is back; fails if it has objects from before the failure, or if there were resets for other reasons.

        The attempt with the number `attempts` must succeed. The first attempt has no delay.
        """
        wait_until(lambda: self.function.has_recovered(self.session), f"a recovery ({self.reason})")
        status = self.function.status()
        equal([status["session"], status["attempts"]], [str(int(self.session) + 1), str(attempts)], "session and attempt")
        equal([status["last_reset"], status["quarantine"]], [self.reason, "0"], "reason of the reset, and memory in quarantine")
        if emulator:
            equal(self.function.held(), {}, "objects of the device after a reset")
        self.function.settle()
        wanted = self.resets | {name: self.resets[name] + 1 for name in (self.reason, "all")}
        equal(self.function.resets(), wanted, "resets")
        # Once a program has used the device, an early next failure does not count as a failed attempt.
        opened(self.function).close()
