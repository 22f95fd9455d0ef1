# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A round: programs use a device, a trigger hits it, the programs get their event, and the device can be used again."""

import contextlib
import re
from pathlib import Path
from typing import Any

from device import Device
from messages import Endpoint, send
from monitor import PORT, Monitor
from programs import AFTERMATH, Attached, Hands
from selftest import FUNCTIONS, REASONS, Failed, KernelLog, Skipped, emulator, equal, free_memory, wait_until
from tracing import recording
from uevents import Uevents
from uverbs import EVENT_DEVICE_FATAL, opened
from workers import Worker

# Memory in KiB that may be missing after all rounds of a test, rounds until the caches are filled, and minimum rounds for the check.
# In so many rounds, a leak per round adds up to more than the memory that other processes allocate.
TOLERANCE, WARM, MANY = 12_000, 2, 10


# A reaction of the driver to a failure, or the core's event for a program, which does not name a device.
REACTION = re.compile(r": (?:efa_(?P<kind>reset|state): (?P<address>\S+) (?P<what>.*)|probe: .*)$", re.MULTILINE)
# A recovery: programs get one event for this failure, before the driver tries to restart the device. The restart may be delayed.
RECOVERY = re.compile(r"reset \w+( state resetting)+( notified)+( state resetting)*( state up)?")
# The same if the bus resets the device. The driver announces the end of that reset 10 s after its begin at the latest, also if some
# programs have no event yet. It restarts the device after the last event.
BUS_RESET = re.compile(r"reset requested state resetting( notified)+ state resetting( notified)+( state resetting)*( state up)?")


@contextlib.contextmanager
def reactions(device):
    """Yields a function that returns the reactions to failures of the device since its last call, in their order, as text."""
    # In the debug kernel the core is built in.
    module = "ib_uverbs:" if Path("/sys/module/ib_uverbs/initstate").exists() else ""
    probe = f"{module}ib_uverbs_async_handler event=$arg3:u64"
    with recording("efa/efa_reset", "efa/efa_state", probe=probe, only=f"event == {EVENT_DEVICE_FATAL}") as trace:
        seen = 0

        def new():
            nonlocal seen
            matches = list(REACTION.finditer(trace()))
            found = [match for match in matches[seen:] if match["address"] in (None, device.address)]
            seen = len(matches)
            return " ".join(f"{match['kind']} {match['what']}" if match["kind"] else "notified" for match in found)

        yield new


class Stage:
    """The devices and the programs that take part in all tests."""

    def __init__(self):
        self.devices = [Device(function) for function in FUNCTIONS[:2]]
        self.victim, self.peer = self.devices
        # Devices with programs that ring doorbells of destroyed queues.
        self.late = []
        for device in self.devices:
            device.reset_attributes()
            device.rebind()
        self.attached = Worker("the program", Attached, self.victim, self.victim.gid)
        # Uses the other device, and must not be affected.
        self.bystander = Worker("the other device's program", Attached, self.peer, self.peer.gid)
        self.hands = Worker("trigger", Hands)
        self.monitor = Monitor() if PORT.exists() else None
        self.uevents = Uevents()
        self.log = KernelLog()
        self.far: Any = None
        self.seed = 0
        self.trigger: Any = None

    def next_seed(self):
        self.seed += 1
        return self.seed

    def begin(self, trigger, load):
        """Sets the current trigger and load, until `tidy`."""
        self.trigger, self.load = trigger, load
        self.errors = {device: device.errors() for device in self.devices}
        self.late = [device for device in self.devices if trigger.leaves_doorbells and (trigger.hits_all or device == self.victim)]
        for device in self.late:
            device.trace()

    def rounds(self, trigger, load, count):
        """Runs the rounds of a test; fails with the number of the round that fails."""
        self.begin(trigger, load)
        number, memory = 0, None
        try:
            trigger.prepare()
            # The trigger may have rebound the device. Third-party programs find it by the name from udev.
            wait_until(self.victim.has_name, "udev's name of the device")
            self.attach_peer()
            with reactions(self.victim) as self.reactions:
                for number in range(1, count + 1):
                    self.round(number)
                    if number == WARM:
                        memory = free_memory()
            if count >= MANY and (missing := memory - free_memory()) > TOLERANCE:
                raise Failed(f"{missing} KiB of memory are missing")
        except Skipped:
            raise
        except Exception as error:
            what = error if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            raise Failed(f"round {number}: {what}") from error
        finally:
            self.tidy()

    def attach_peer(self):
        """Makes programs use the other device, by messages to itself and to the victim."""
        self.bystander.call("attach", self.next_seed())
        self.far = Endpoint(opened(self.peer))

    def close_far(self):
        """Closes the endpoint of the peer that attach_peer() has opened, if any."""
        if self.far:
            self.far.close()
        self.far = None

    def round(self, number):
        trigger, load = self.trigger, self.load
        self.attached.call("attach", self.next_seed())
        load.start(number)
        trigger.arrange()
        self.uevents.of_driver(self.victim)
        before = self.victim.resets(), int(self.victim.status()["session"])
        self.reactions()
        self.attached.begin("await_event")
        trigger.fire()
        self.attached.result("the wait for the event")
        # No program closes the device before it is up again.
        trigger.back()
        self.use_again()
        self.look_at(before)
        if trigger.hits_all:
            self.bystander.call("attach", self.next_seed())

    def use_again(self):
        """Uses the device as soon as possible, and then checks the results of its earlier programs, which the load ends.
        These still have it open, and closing it must not destroy objects of others.
        """
        if self.trigger.hits_all:
            self.aftermath(self.bystander)
            self.far.close()
            self.far = self.open(self.peer)
        with self.open(self.victim) as fresh:
            self.exchange(fresh)
            held = self.victim.held()
            self.aftermath(self.attached)
            self.load.finish()
            equal(self.victim.held(), held, "objects of the new program after the old one has ended")
            self.exchange(fresh)
        if not self.trigger.hits_all:
            self.bystander.call("works", self.next_seed())
        self.await_nothing_held()

    def await_nothing_held(self):
        """Waits until the device has no objects of programs."""
        wait_until(lambda: not self.victim.held(), "the device has no objects of programs")

    def open(self, device):
        """Opens a device as soon as that is possible."""

        def opens():
            try:
                return Endpoint(opened(device))
            except OSError:
                return None

        return wait_until(opens, f"a program can use {device.address}")

    def exchange(self, fresh):
        """Sends a message in each direction."""
        send(fresh, self.far, self.peer.gid, self.next_seed())
        send(self.far, fresh, self.victim.gid, self.next_seed())

    def aftermath(self, worker):
        """Checks the results of a program after its device has failed, and closes the device."""
        found = worker.call("aftermath")
        wrong = [f"{what}: {result}" for what, result in found.items() if result != AFTERMATH[what]]
        if wrong:
            raise Failed(f"{worker.name}: {'; '.join(wrong)}")
        worker.call("detach")

    def look_at(self, before):
        """Checks the driver's uevents, state and counters after a round."""
        reason = self.trigger.reason
        if reason:
            events = self.uevents.await_driver(self.victim, ("recovered", "failed"))
            equal(events, [("reset", reason), ("recovered", reason)], "uevents")
            order = self.reactions()
            if not (self.trigger.hits_all or RECOVERY.fullmatch(order) or BUS_RESET.fullmatch(order)):
                raise Failed(f"programs do not get their event before anything else happens: {order}")
        elif self.trigger.has_uevents:
            equal(self.uevents.of_driver(self.victim), [], "uevents")
        wait_until(self.victim.has_name, "udev's name of the device")
        status = self.victim.status()
        equal(status.get("state"), "up", "the state")
        wanted, session = before
        if reason:
            wanted = {**wanted, reason: wanted[reason] + 1, "all": wanted["all"] + 1}
            equal(status.get("last_reset"), reason, "last_reset")
            equal(int(status["session"]) > session, True, f"that session {status['session']} comes after {session}")
        elif self.trigger.rebinds:
            wanted = dict.fromkeys((*REASONS, "all"), 0)
        equal(self.victim.resets(), wanted, "counters of resets")
        self.look_at_errors()

    def look_at_errors(self):
        """Fails if the devices saw errors of the driver."""
        for device in self.late:
            self.errors[device]["protocol_errors"] += device.late_doorbells()
        for device in self.devices:
            equal(device.errors(), self.errors[device], f"errors of the driver that device {device.number} has detected")

    def tidy(self):
        """Restores the initial state, whatever has failed."""
        self.load.end()
        # Threads that wait for events of a working device keep its files open until they end.
        for worker in (self.attached, self.bystander, *[self.hands] * bool(self.hands.busy)):
            worker.restart()
        self.close_far()
        self.trigger.clean()
        for device in self.devices:
            device.reset_attributes()
            if not device.is_bound or device.status().get("state", "up") != "up":
                device.bring_back()
            wait_until(device.has_name, "udev's name of the device")


stage: Any = Stage() if emulator else None
