# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What happens to a device. Each trigger is fired once in a round, while programs use the device, and has an end at which the
device can be used again.
"""

import errno
import os
from pathlib import Path
from typing import ClassVar

import aer
from device import ADMIN_TIMEOUT, SILENT_ATTRIBUTES
from namespaces import Elsewhere, names_for_this, set_mode
from selftest import Skipped, emulator, equal, wait_until
from timing import now
from workers import Worker

# Limits in seconds, on a kernel without debugging: from the detection of a failure to the program's event, from the reset to the first
# use, and of a removal.
TOLD, USABLE, REMOVED = 1.0, 2.0, 1.0
# Seconds by which the driver may be late to find out, as it waits for a processor.
LATE = 0.5
# ms between the keep-alives of a device whose keep-alives then stop, how many come before, and the driver's limit in seconds.
KEEP_ALIVE_MS, KEEP_ALIVES, KEEP_ALIVE_LIMIT = 100, 5, 10
# Seconds between two looks of the driver at the device's status, and until a read that is not answered has failed.
HEALTH_INTERVAL, READ_TIMEOUT = 1, 0.05
# Errors with which the first call of a program may fail.
GONE, SILENT = {"EIO"}, {"EIO", "ETIME"}

AMAZON = "0x1d0f\n"
SLOTS = Path("/sys/bus/pci/slots")
POWER_STATE = Path("/sys/power/state")
PM_ASYNC = Path("/sys/power/pm_async")


class Trigger:
    """A device that dies by itself, and comes back by itself."""

    name: ClassVar[str]
    # The cause of the reset, which is counted and reported. Nothing if the device is removed instead.
    reason: ClassVar[str | None] = None
    # Seconds until the driver detects it, on any kernel; 0 if it is notified.
    detection: ClassVar[float] = 0
    first_errors = GONE
    # All devices of the driver, and not just one.
    hits_all = False
    # The driver is bound anew, and counts from zero.
    rebinds = False
    # What the driver tells by uevents is certain.
    tells = True
    # Queues go while the device is in use and programs have its doorbells mapped, as the core undoes mappings last.
    leaves_doorbells = False
    # Whether programs get an event.
    is_noticed = True
    # The device answers no commands any more unless it is reset by its driver.
    silences = False
    # No more rounds than that.
    most_rounds: ClassVar[int | None] = None

    def __init__(self, stage):
        self.stage = stage
        self.device = stage.victim

    def prepare(self):
        """Is called before the first round; may skip all."""

    def arrange(self):
        """Is called before each round, when programs have the device open."""

    def fire(self):
        """Lets it happen, and does not wait."""

    def back(self, told):
        """Has the device come back, or waits for it; returns since when it is to be usable."""
        return told

    def clean(self):
        """Is called after the last round, also if that failed."""


class Fatal(Trigger):
    """The device says so by an event and in its status, and does nothing any more."""

    name = "fatal error"
    reason = "fatal_error"
    silences = True

    def fire(self):
        self.device.die()


class Silence(Trigger):
    name = "no answer to a command"
    reason = "command_timeout"
    silences = True
    detection = ADMIN_TIMEOUT / 10
    first_errors = SILENT

    def prepare(self):
        self.device.reset_attributes(**SILENT_ATTRIBUTES)
        self.device.rebind()

    def arrange(self):
        self.stage.hands.call("open", self.device)

    def fire(self):
        self.device.die(silent=True)
        self.stage.hands.begin("command")

    def back(self, told):
        result, _ = self.stage.hands.result("the command")
        equal(result in SILENT, True, f"that a command without answer ends with {result}")
        self.stage.hands.call("close")
        return told

    def clean(self):
        self.device.reset_attributes()
        self.device.rebind()


class NoKeepAlive(Trigger):
    name = "keep-alives that stop"
    reason = "keep_alive"
    detection = KEEP_ALIVE_LIMIT

    def arrange(self):
        self.device.set(keep_alive_ms=KEEP_ALIVE_MS)
        before = self.device.state()["events"]
        wait_until(lambda: self.device.state()["events"] >= before + KEEP_ALIVES, "keep-alives")

    def fire(self):
        self.device.set(keep_alive_ms=0)


class UnreadableRegister(Trigger):
    """Read once: the driver looks at the device's status now and then."""

    reason = "register_timeout"
    detection = HEALTH_INTERVAL + READ_TIMEOUT
    then: ClassVar[dict]

    def fire(self):
        self.device.inject({"register": "DEV_STS"}, self.then, times=1)


class NoRegister(UnreadableRegister):
    name = "no answer to a register read"
    then: ClassVar = {"silence": True}


class AllOnes(UnreadableRegister):
    name = "a register with all ones"
    then: ClassVar = {"value": 0xFFFFFFFF}


class FunctionReset(Trigger):
    name = "reset by sysfs"
    reason = "requested"
    silences = True

    def fire(self):
        self.stage.hands.begin("write", self.device.sysfs / "reset", "1")

    def back(self, told):
        result, _ = self.stage.hands.result("the reset")
        equal(result, "ok", "a write to reset")
        return told


class Aer(Trigger):
    reason = "requested"
    severity: ClassVar[str]

    def fire(self):
        aer.inject(self.device.address, self.severity)


class AerNonFatal(Aer):
    """An error that needs no reaction."""

    is_noticed = False
    name = "non-fatal error of PCI Express"
    severity = "nonfatal"


class AerFatal(Aer):
    name = "fatal error of PCI Express"
    silences = True
    severity = "fatal"


class Removal(Trigger):
    """A device that is unbound, and bound again."""

    rebinds = True
    # The core ends the queues of programs before their mappings.
    leaves_doorbells = True

    def fire(self):
        self.fired = now()
        self.begin()

    def begin(self):
        """Has it removed."""
        raise NotImplementedError

    def end(self):
        """Waits until that has ended; returns how, and when."""
        return self.stage.hands.result(self.name)

    def undo(self):
        """Has it be taken again."""
        raise NotImplementedError

    def is_away(self):
        """Whether that has to be done."""
        return not self.device.is_bound

    def back(self, told):
        # Programs still have it open, and close it only later.
        result, when = self.end()
        equal(result, "ok", self.name)
        self.stage.limits.check("removed", when - self.fired, REMOVED)
        unbound = [device for device in self.stage.devices if device.sysfs.exists() and not device.is_bound]
        left = [name for device in unbound for name in device.leftovers()]
        equal(left, [], "what is left")
        self.undo()
        return now()

    def clean(self):
        if self.is_away():
            self.undo()


class Unbind(Removal):
    name = "unbind"

    def begin(self):
        self.stage.hands.begin("write", "/sys/bus/pci/drivers/efa/unbind", self.device.address)

    def undo(self):
        equal(self.device.bind(), "ok", "bind")


class Unload(Removal):
    name = "rmmod"
    hits_all = True

    def begin(self):
        self.stage.hands.begin("remove_module")

    def undo(self):
        result, _ = self.stage.hands.call("load_module", os.environ["EFA_KO"])
        equal(result, "ok", "insmod")

    def is_away(self):
        return not os.path.exists("/sys/module/efa")


class Unplug(Removal):
    """As its slot's hot-plug controller does after the button was pressed, but without the time in which that can be cancelled."""

    name = "unplug"

    def prepare(self):
        slots = [slot for slot in SLOTS.iterdir() if (slot / "address").read_text().strip() == self.device.address[:-2]]
        if not slots:
            raise Skipped("needs slots that devices can be pulled out of")
        self.power = slots[0] / "power"

    def begin(self):
        self.stage.hands.begin("write", self.power, "0")

    def undo(self):
        result, _ = self.stage.hands.call("write", self.power, "1")
        equal(result, "ok", "the slot's power")

    def is_away(self):
        return not self.device.sysfs.exists()


class Pull(Removal):
    """Without asking: the device is gone at once, and then its slot says so."""

    name = "pulled out"
    silences = True
    # It may detect it before it is notified.
    tells = False
    # QEMU keeps something of each device that was pulled out.
    most_rounds = 100

    def prepare(self):
        if not self.stage.monitor:
            raise Skipped("needs slots that devices can be pulled out of")

    def begin(self):
        self.device.pull_out()
        self.stage.monitor.pull(self.device.number)

    def is_gone(self):
        """Whether the function is not there any more, which is after the driver has let it go; something else may be there."""
        try:
            return (self.device.sysfs / "vendor").read_text() != AMAZON
        except OSError as error:
            # ENODEV is the result of a read whose file is removed meanwhile.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            return True

    def end(self):
        wait_until(self.is_gone, "the driver releases it")
        return "ok", now()

    def undo(self):
        wait_until(self.is_empty, "the slot is seen to be empty")
        self.stage.monitor.plug(self.device.number)
        wait_until(lambda: self.device.is_bound, "the driver takes the device")

    def is_empty(self):
        """Whether the guest has seen what is in the slot instead."""
        return self.is_gone() and (self.device.sysfs / "vendor").exists()


class Move(Removal):
    """To another network namespace, in which it is used, and back."""

    name = "move to another network namespace"
    rebinds = False

    def prepare(self):
        set_mode("exclusive")
        names_for_this()
        self.elsewhere = Worker("the other namespace", Elsewhere)
        self.elsewhere.call("ready")

    def begin(self):
        self.stage.hands.begin("run", ["rdma", "dev", "set", self.device.name, "netns", Elsewhere.NAME])

    def back(self, told):
        result, when = self.end()
        equal(result, "ok", self.name)
        self.stage.limits.check("removed", when - self.fired, REMOVED)
        took = self.elsewhere.call("use", self.device) - when
        self.stage.limits.check("usable", took, USABLE)
        self.undo()
        return now()

    def undo(self):
        self.elsewhere.call("give_back", self.device.name)

    def clean(self):
        self.elsewhere.call("leave", self.device.name)
        self.elsewhere.end()
        set_mode("shared")


class Suspend(Trigger):
    """As far as it goes. The guest's file system can't be suspended. So the suspend ends there, after the devices that are suspended
    before it. EFA devices are among them."""

    name = "suspend and resume"
    reason = "requested"
    hits_all = True

    def prepare(self):
        # One device after the other, so that the file system does not end it before.
        PM_ASYNC.write_text("0")

    def fire(self):
        self.stage.hands.begin("write", POWER_STATE, "freeze")

    def back(self, told):
        result, _ = self.stage.hands.result("suspend")
        emulator.open()
        equal(result, "EOPNOTSUPP", "suspend")
        return told

    def clean(self):
        PM_ASYNC.write_text("1")


ALL = (Fatal, Silence, NoKeepAlive, NoRegister, AllOnes, FunctionReset, AerNonFatal, AerFatal, Unbind, Unload, Unplug, Pull, Move, Suspend)
