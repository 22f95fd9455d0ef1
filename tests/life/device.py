# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""State of a device in the driver and in the emulator, as these tests need it."""

import errno
import os
import re
from pathlib import Path

from selftest import Function, emulator, result_of, wait_until

# The devices of these tests have the driver's longest command timeout, short resets, and no keep-alives. The driver expects
# keep-alives only after a first one.
ATTRIBUTES = {"admin_completion_timeout_ms": 30_000, "reset_ms": 10, "keep_alive_ms": 0}
# Those of a device that becomes silent: a short command timeout, in units of 100 ms, so that the driver detects the silence soon.
SILENT_ATTRIBUTES = {"admin_timeout": 15, "reset_ms": 10, "keep_alive_ms": 0}

PCI = Path("/sys/bus/pci")

# Line of the emulator's trace for a program that rings a doorbell that is still mapped, of a destroyed queue.
LATE_DOORBELL = re.compile(r"protocol error: doorbell in user access region \d+ for a queue outside of it$")


class Device(Function):
    """A PCI function that is an EFA device, with functions for recoveries."""

    def __init__(self, function):
        super().__init__(function.address, function.number)
        # udev renames its RDMA device, each time to the same name.
        wait_until(lambda: self.names("infiniband") and self.names("infiniband")[0].startswith("rdmap"), "udev's name of the device")
        self.name = self.names("infiniband")[0]
        self.gid = self.read_gid()

    def status(self):
        """Returns the driver's state of the device. It is empty for the C driver, which has no such file."""
        try:
            return super().status()
        except FileNotFoundError:
            return {}

    def await_status(self, *wanted):
        """Waits until the session is in one of these states."""
        wait_until(lambda: self.status().get("state") in wanted, f"the state {' or '.join(wanted)} of {self.address}")

    def has_name(self):
        """Whether its RDMA device is registered and udev has renamed it."""
        return self.names("infiniband") == [self.name]

    def uverbs(self):
        """Returns the current path of its device node; fails with ENOENT if there is none."""
        for name in self.names("infiniband_verbs"):
            return f"/dev/infiniband/{name}"
        raise FileNotFoundError(errno.ENOENT, f"{self.address} has no device node")

    def has_file(self):
        """Whether its device node can be opened."""
        return result_of(lambda: os.close(os.open(self.uverbs(), os.O_RDWR))) == "ok"

    def pull_out(self):
        """Unplugs the device in the emulator. Its slot does not report that yet."""
        emulator.send({"command": "unplug", "device": self.number})

    def bring_back(self):
        """Binds the device again, whatever its state."""
        self.unbind()
        if self.bind() != "ok":
            # The PCI core may have lost the device's configuration.
            (self.sysfs / "remove").write_text("1")
            (PCI / "rescan").write_text("1")
            wait_until(lambda: self.is_bound, "the device after a rescan of the bus")

    def reset_attributes(self, **attributes):
        """Reverts the changes of a test."""
        self.clear()
        self.set(**(attributes or ATTRIBUTES))

    def errors(self):
        """Returns the number of the driver's errors by kind. Commands that it submits before an interrupt reports a fatal error
        do not count.
        """
        state = self.state()
        return {name: state[name] for name in ("protocol_errors", "dma_after_reset")}

    def late_doorbells(self):
        """Returns the number of protocol errors since the last read of the trace that programs caused, not the driver."""
        return sum(bool(LATE_DOORBELL.search(line)) for line in self.trace())
