#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Outcomes of each trigger for a device, and for a program that has it open, with either driver. Prints KTAP."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[2] / folder) for folder in ("tests/kselftest", "tools/guest")]

import triggers
from device import SILENT_ATTRIBUTES
from loads import Load
from messages import Endpoint, send
from selftest import DRIVER, Suite, result_of, wait_until
from stage import stage
from uverbs import opened
from workers import waits_for_programs


class Outcome:
    """One trigger, with one program."""

    def __init__(self, trigger):
        self.trigger = trigger

    def run(self):
        trigger = self.trigger
        stage.begin(trigger, Load(stage))
        if DRIVER == "c" and trigger.silences:
            # With the C driver, programs wait until a command times out.
            self.announce(**SILENT_ATTRIBUTES)
        try:
            trigger.prepare()
            stage.attached.call("attach", stage.next_seed(), False)
            trigger.arrange()
            session = stage.victim.status().get("session")
            list(stage.log.records())
            trigger.fire()
            is_removal = isinstance(trigger, triggers.Removal)
            how = self.removal() if is_removal else self.settle(session)
            notified = "event" if stage.attached.call("was_notified") else "no event"
            calls = f"calls: {stage.attached.call('command')}"
            return "; ".join([notified, how, calls] if is_removal else [notified, calls, self.rest()])
        finally:
            stage.tidy()
            if DRIVER == "c" and trigger.silences:
                self.announce()

    def announce(self, **attributes):
        """Rebinds the device with other attributes."""
        stage.victim.reset_attributes(**attributes)
        stage.victim.rebind()

    def removal(self):
        """Returns the outcome of a removal of the device while a program has it open."""
        trigger = self.trigger
        has_ended = trigger.is_gone if isinstance(trigger, triggers.Pull) else stage.hands.answers
        wait_until(lambda: has_ended() or waits_for_programs(), f"{trigger.name} ends, or waits for the program")
        if not has_ended():
            return "waits for the program"
        result = trigger.end()
        if result != "ok":
            print(f"# {trigger.name}: {result}", flush=True)
            return "refused"
        return "removed at once"

    def settle(self, session):
        """Waits until the automatic reactions have ended. SESSION is the driver's session before the trigger."""
        trigger, victim = self.trigger, stage.victim
        trigger.back()
        if isinstance(trigger, triggers.Aer):
            log = stage.log
            wait_until(lambda: any("device recovery" in text for _, text in log.records()), "the kernel's recovery of the device")
        if DRIVER == "rust" and trigger.is_noticed:
            wait_until(lambda: victim.status()["session"] != session, "the next session")
            victim.await_status("up", "failed")

    def rest(self):
        """Returns whether other programs can use the device."""
        if self.works():
            return "works"
        # A driver may wait for the end of these processes.
        stage.attached.restart()
        stage.hands.restart()
        stage.victim.unbind()
        if stage.victim.bind() != "ok":
            return "can't be bound any more"
        wait_until(stage.victim.has_file, "the device's file")
        return "works after a rebind" if self.works() else "does not work any more"

    def works(self):
        result = result_of(self.use)
        if result != "ok":
            print(f"# {self.trigger.name}: a new program gets {result}", flush=True)
        return result == "ok"

    def use(self):
        with Endpoint(opened(stage.victim)) as endpoint:
            send(endpoint, endpoint, stage.victim.gid, stage.next_seed())


suite = Suite()
for kind in triggers.ALL:
    if issubclass(kind, triggers.Removal):
        wanted = "event; removed at once; calls: EIO"
    elif not kind.is_noticed:
        wanted = "no event; calls: ok; works"
    else:
        wanted = "event; calls: EIO; works"
    suite.add(kind.name, lambda kind=kind: Outcome(kind(stage)).run(), wanted)
suite.run()
