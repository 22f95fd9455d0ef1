# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Triggers: failures and removals of a device. Each is fired once in a round, while programs use the device, and has an end
after which the device can be used again.
"""

import errno
import os
import re
import struct
import subprocess
from pathlib import Path
from typing import ClassVar

from device import SILENT_ATTRIBUTES
from namespaces import Elsewhere, names_for_this, set_mode
from selftest import Skipped, emulator, equal, wait_until
from workers import Worker

# Interval in ms of keep-alives that then stop, and minimum number of keep-alives before that.
KEEP_ALIVE_MS, KEEP_ALIVES = 100, 5
# Errors with which the first call of a program may fail.
GONE, SILENT = {"EIO"}, {"EIO", "ETIME"}

AMAZON = "0x1d0f\n"
SLOTS = Path("/sys/bus/pci/slots")
AER_INJECTOR = Path("/dev/aer_inject")
# struct aer_error_inj of drivers/pci/pcie/aer_inject.c: bus, device, function; uncorrectable and correctable status, the header of
# the TLP, PCI domain.
AER_ERROR = struct.Struct("=3Bx2I4II")
POWER_STATE = Path("/sys/power/state")
PM_ASYNC = Path("/sys/power/pm_async")


class Trigger:
    """A device that fails and recovers without an action of its users. Base class of all triggers."""

    name: ClassVar[str]
    # The cause of the reset, which is counted and reported. None if the device is removed instead.
    reason: ClassVar[str | None] = None
    first_errors = GONE
    # Whether the trigger hits all devices of the driver, and not just one.
    hits_all = False
    # Whether the driver is bound again, and counts from zero.
    rebinds = False
    # Whether the driver's uevents are predictable.
    has_uevents = True
    # Whether queues are destroyed while programs have doorbells mapped, as the core removes mappings last.
    leaves_doorbells = False
    # Whether programs get an event.
    is_noticed = True
    # Whether the device stops responding to commands until its driver resets it.
    silences = False

    def __init__(self, stage):
        self.stage = stage
        self.device = stage.victim

    def prepare(self):
        """Is called before the first round; may skip the test."""

    def arrange(self):
        """Is called before each round, when programs have the device open."""

    def fire(self):
        """Fires the trigger, without waiting for its effect."""

    def back(self):
        """Brings the device back, or waits until it is back."""

    def clean(self):
        """Is called after the last round, also if that failed."""


class Fatal(Trigger):
    """The device reports a fatal error by an event and in its status, and stops."""

    name = "fatal error"
    reason = "fatal_error"
    silences = True

    def fire(self):
        self.device.die()


class Silence(Trigger):
    name = "no answer to a command"
    reason = "command_timeout"
    silences = True
    first_errors = SILENT

    def prepare(self):
        self.device.reset_attributes(**SILENT_ATTRIBUTES)
        self.device.rebind()

    def arrange(self):
        self.stage.hands.call("open", self.device)

    def fire(self):
        self.device.die(silent=True)
        self.stage.hands.begin("command")

    def back(self):
        result = self.stage.hands.result("the command")
        equal(result in SILENT, True, f"that a command without answer ends with {result}")
        self.stage.hands.call("close")

    def clean(self):
        self.device.reset_attributes()
        self.device.rebind()


class NoKeepAlive(Trigger):
    name = "keep-alives that stop"
    reason = "keep_alive"

    def arrange(self):
        self.device.set(keep_alive_ms=KEEP_ALIVE_MS)
        before = self.device.state()["events"]
        wait_until(lambda: self.device.state()["events"] >= before + KEEP_ALIVES, "keep-alives")

    def fire(self):
        self.device.set(keep_alive_ms=0)


class NoRegister(Trigger):
    """One failed read of the device's status, which the driver reads periodically."""

    name = "no answer to a register read"
    reason = "register_timeout"

    def fire(self):
        self.device.inject({"register": "DEV_STS"}, {"silence": True}, times=1)


class FunctionReset(Trigger):
    name = "reset by sysfs"
    reason = "requested"
    silences = True

    def fire(self):
        self.stage.hands.begin("write", self.device.sysfs / "reset", "1")

    def back(self):
        result = self.stage.hands.result("the reset")
        equal(result, "ok", "a write to reset")


class Aer(Trigger):
    """An error that the kernel's aer_inject simulates: the root port raises an interrupt, and its driver reads the error."""

    reason = "requested"
    # The error's bit in the uncorrectable status, whose severity is the specification's default.
    error: ClassVar[int]

    def prepare(self):
        if not AER_INJECTOR.exists():
            subprocess.run(["modprobe", "aer_inject"], check=True)

    def fire(self):
        domain, bus, device, function = (int(part, 16) for part in re.split("[:.]", self.device.address))
        # Unbuffered: each write is one error.
        with open(AER_INJECTOR, "wb", buffering=0) as injector:
            injector.write(AER_ERROR.pack(bus, device, function, self.error, 0, 0, 0, 0, 0, domain))


class AerNonFatal(Aer):
    """A completion timeout: a read of memory by the device was lost, the link is good."""

    is_noticed = False
    name = "non-fatal error of PCI Express"
    error = 1 << 14


class AerFatal(Aer):
    """A malformed packet: the link can't be trusted any more and is reset."""

    name = "fatal error of PCI Express"
    silences = True
    error = 1 << 18


class Removal(Trigger):
    """A device that is unbound, and bound again."""

    rebinds = True
    # The core destroys queues of programs before it removes their mappings.
    leaves_doorbells = True

    def end(self):
        """Waits until the removal has ended; returns its result."""
        return self.stage.hands.result(self.name)

    def undo(self):
        """Reverts the removal."""
        raise NotImplementedError

    def is_away(self):
        """Whether the removal must be reverted."""
        return not self.device.is_bound

    def back(self):
        # Programs still have it open, and close it only later.
        equal(self.end(), "ok", self.name)
        unbound = [device for device in self.stage.devices if device.sysfs.exists() and not device.is_bound]
        left = [name for device in unbound for name in device.leftovers()]
        equal(left, [], "leftovers of the driver")
        self.undo()

    def clean(self):
        if self.is_away():
            self.undo()


class Unbind(Removal):
    name = "unbind"

    def fire(self):
        self.stage.hands.begin("write", "/sys/bus/pci/drivers/efa/unbind", self.device.address)

    def undo(self):
        equal(self.device.bind(), "ok", "bind")


class Unload(Removal):
    name = "rmmod"
    hits_all = True

    def fire(self):
        self.stage.hands.begin("remove_module")

    def undo(self):
        result = self.stage.hands.call("load_module")
        equal(result, "ok", "insmod")

    def is_away(self):
        return not os.path.exists("/sys/module/efa")


class Unplug(Removal):
    """A removal like that by the slot's hot-plug controller after a press of its button, but without the time for a cancellation."""

    name = "unplug"

    def prepare(self):
        slots = [slot for slot in SLOTS.iterdir() if (slot / "address").read_text().strip() == self.device.address[:-2]]
        if not slots:
            raise Skipped("needs slots that devices can be pulled out of")
        self.power = slots[0] / "power"

    def fire(self):
        self.stage.hands.begin("write", self.power, "0")

    def undo(self):
        result = self.stage.hands.call("write", self.power, "1")
        equal(result, "ok", "the slot's power")

    def is_away(self):
        return not self.device.sysfs.exists()


class Pull(Removal):
    """A surprise removal: the device disappears, and its slot reports that afterwards."""

    name = "pulled out"
    silences = True
    # The driver may detect the removal before it is notified.
    has_uevents = False

    def prepare(self):
        if not self.stage.monitor:
            raise Skipped("needs slots that devices can be pulled out of")

    def fire(self):
        self.device.pull_out()
        self.stage.monitor.pull(self.device.number)

    def is_gone(self):
        """Whether the function is removed, which is after the driver has released it. Another function may be in its place."""
        try:
            return (self.device.sysfs / "vendor").read_text() != AMAZON
        except OSError as error:
            # A read fails with ENODEV if its file is removed at the same time.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            return True

    def end(self):
        wait_until(self.is_gone, "the driver releases it")
        return "ok"

    def undo(self):
        wait_until(self.is_empty, "the slot is seen to be empty")
        self.stage.monitor.plug(self.device.number)
        wait_until(lambda: self.device.is_bound, "the driver takes the device")

    def is_empty(self):
        """Whether the guest has detected the device that is in the slot instead."""
        return self.is_gone() and (self.device.sysfs / "vendor").exists()


class Move(Removal):
    """A move of the device to another network namespace, where it is used, and back."""

    name = "move to another network namespace"
    rebinds = False

    def prepare(self):
        set_mode("exclusive")
        names_for_this()
        self.elsewhere = Worker("the other namespace", Elsewhere)
        self.elsewhere.call("ready")

    def fire(self):
        self.stage.hands.begin("run", ["rdma", "dev", "set", self.device.name, "netns", Elsewhere.NAME])

    def back(self):
        equal(self.end(), "ok", self.name)
        self.elsewhere.call("use", self.device)
        self.undo()

    def undo(self):
        self.elsewhere.call("give_back", self.device.name)

    def clean(self):
        self.elsewhere.call("leave", self.device.name)
        self.elsewhere.end()
        set_mode("shared")


class Suspend(Trigger):
    """A suspend that fails. The guest's file system can't be suspended, so the suspend ends there, after the devices that are
    suspended before it. EFA devices are among them."""

    name = "suspend and resume"
    reason = "requested"
    hits_all = True

    def prepare(self):
        # Devices are suspended one after the other, so that the file system does not end the suspend before them.
        PM_ASYNC.write_text("0")

    def fire(self):
        self.stage.hands.begin("write", POWER_STATE, "freeze")

    def back(self):
        result = self.stage.hands.result("suspend")
        emulator.open()
        equal(result, "EOPNOTSUPP", "suspend")

    def clean(self):
        PM_ASYNC.write_text("1")


ALL = (Fatal, Silence, NoKeepAlive, NoRegister, FunctionReset, AerNonFatal, AerFatal, Unbind, Unload, Unplug, Pull, Move, Suspend)
