# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What the driver and the emulator know of a device, in the terms of these tests."""

import errno
import os
import re
from pathlib import Path

from selftest import Failed, Function, emulator, result_of, wait_until

# The devices of these tests have the driver's longest command timeout, short resets, and no keep-alives. The driver misses those only
# after a first one.
ATTRIBUTES = {"admin_completion_timeout_ms": 30_000, "reset_ms": 10, "keep_alive_ms": 0}
# For tests that inject keep-alives: the device sends some as well, so that none is missed afterwards.
WITH_KEEP_ALIVES = {**ATTRIBUTES, "keep_alive_ms": 1000}
# Where a device is silent: how long a command may take, in units of 100 ms, so that this is found out soon.
ADMIN_TIMEOUT = 15
SILENT_ATTRIBUTES = {"admin_timeout": ADMIN_TIMEOUT, "reset_ms": 10, "keep_alive_ms": 0}

PCI = Path("/sys/bus/pci")

# In the emulator's trace: a program that writes to what it still has mapped for a queue that is gone.
LATE_DOORBELL = re.compile(r"protocol error: doorbell in user access region \d+ for a queue that it has not$")


class Device(Function):
    """A PCI function that is an EFA device, with what the driver offers once it can recover."""

    def __init__(self, function):
        super().__init__(function.address, function.number)
        self.name = self.final_name()
        self.gid = self.read_gid()

    def final_name(self):
        """The name that udev gives its RDMA device each time; waits for that."""
        wait_until(lambda: self.names("infiniband") and self.names("infiniband")[0].startswith("rdmap"), "udev's name of the device")
        return self.names("infiniband")[0]

    def read_gid(self):
        text = (self.sysfs / "infiniband" / self.name / "ports/1/gids/0").read_text()
        return bytes.fromhex(text.strip().replace(":", ""))

    def status(self):
        """As the driver shows it; empty if it shows nothing, as the C driver."""
        try:
            return super().status()
        except FileNotFoundError:
            return {}

    def await_status(self, *wanted):
        """Waits until the session is in one of these states."""
        wait_until(lambda: self.status().get("state") in wanted, f"the state {' or '.join(wanted)} of {self.address}")

    def has_name(self):
        """Whether it is registered and udev has renamed it."""
        return self.names("infiniband") == [self.name]

    def uverbs(self):
        """The path of its device node as it is now; fails with ENOENT if there is none."""
        for name in self.names("infiniband_verbs"):
            return f"/dev/infiniband/{name}"
        raise FileNotFoundError(errno.ENOENT, f"{self.address} has no device node")

    def has_file(self):
        """Whether it can be opened."""
        return result_of(lambda: os.close(os.open(self.uverbs(), os.O_RDWR))) == "ok"

    def pull_out(self):
        """It is gone, of which its slot does not say anything yet."""
        emulator.send({"command": "unplug", "device": self.number})

    def put_in(self):
        """It is there again."""
        emulator.send({"command": "plug", "device": self.number})

    def bring_back(self):
        """Binds it again, whatever has become of it."""
        self.unbind()
        if self.bind() != "ok":
            # The core of PCI may have lost what it is configured to.
            (self.sysfs / "remove").write_text("1")
            (PCI / "rescan").write_text("1")
            wait_until(lambda: self.is_bound, "the device after a rescan of the bus")

    def reset_attributes(self, **attributes):
        """Puts back what a test has changed."""
        self.clear()
        self.set(**(attributes or ATTRIBUTES))

    def errors(self):
        """How often the driver did what a correct one never does, by what it was. Commands that it sends before an interrupt has
        told it of a fatal error are none of this.
        """
        state = self.state()
        return {name: state[name] for name in ("protocol_errors", "dma_after_reset")}

    def trace(self):
        """What the emulator has seen since the last call; the first one starts that."""
        return emulator.send({"command": "trace", "device": self.number})

    def late_doorbells(self):
        """How many of those errors since the last look at the trace were none of the driver's."""
        trace = self.trace()
        if trace["lost"]:
            raise Failed(f"{trace['lost']} lines of the emulator's trace are lost")
        return sum(bool(LATE_DOORBELL.search(line)) for line in trace["lines"])
