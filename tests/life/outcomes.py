#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What becomes of a device, and of a program that has it open, for all that happens to devices: with either driver. Prints KTAP.

See cases.py for its arguments.
"""

import time

from cases import Tests  # First: it says where the others are.

import selftest
import triggers
from loads import Load
from messages import Endpoint, send
from selftest import result_of
from stage import Stage
from uverbs import opened


class Outcome:
    """One trigger, with one program."""

    def __init__(self, stage, trigger):
        self.stage, self.trigger = stage, trigger

    def run(self):
        stage, trigger = self.stage, self.trigger
        stage.begin(trigger, Load(stage))
        try:
            trigger.prepare()
            stage.attached.call("attach", stage.next_seed())
            trigger.arrange()
            fired = time.monotonic()
            trigger.fire()
            limit = trigger.detection + triggers.TOLD * stage.slow
            told = stage.attached.call("told", limit) is not None
            facts = ["told" if told else "not told"]
            if isinstance(trigger, triggers.Removal):
                facts.append(self.removal(fired))
                facts.append(f"calls: {stage.attached.call('command')}")
            else:
                facts.append(f"calls: {stage.attached.call('command')}")
                facts.append(self.rest())
            return "; ".join(facts)
        finally:
            stage.tidy()

    def removal(self, fired):
        """How the device is let go while a program has it open."""
        stage = self.stage
        if isinstance(self.trigger, triggers.Pull):
            end = fired + triggers.REMOVED * stage.slow
            while not self.trigger.is_gone() and time.monotonic() < end:
                time.sleep(0.01)
            return "let go at once" if self.trigger.is_gone() else "waits for the program"
        if not stage.hands.answers(fired + triggers.REMOVED * stage.slow - time.monotonic()):
            return "waits for the program"
        result, _ = self.trigger.end()
        if result != "ok":
            print(f"# {self.trigger.name}: {result}", flush=True)
            return "refused"
        return "let go at once"

    def rest(self):
        """What others can do with the device."""
        stage = self.stage
        if self.works(2 * triggers.USABLE * stage.slow):
            return "works"
        # A driver may wait for them.
        stage.attached.restart()
        stage.hands.restart()
        stage.victim.unbind()
        if stage.victim.bind() != "ok":
            return "can't be bound any more"
        return "works after a rebind" if self.works(triggers.USABLE * stage.slow) else "does not work any more"

    def works(self, seconds):
        end = time.monotonic() + seconds
        while (result := result_of(self.use)) != "ok":
            if time.monotonic() > end:
                print(f"# {self.trigger.name}: a new program gets {result}", flush=True)
                return False
            time.sleep(0.02)
        return True

    def use(self):
        with Endpoint(opened(self.stage.victim)) as endpoint:
            send(endpoint, endpoint, self.stage.victim.gid, self.stage.next_seed())


def add(kind):
    if issubclass(kind, triggers.Removal):
        wanted = "told; let go at once; calls: EIO"
    elif not kind.is_noticed:
        wanted = "not told; calls: ok; works"
    else:
        wanted = "told; calls: EIO; works"
    suite.add(kind.name, lambda: Outcome(stage, kind(stage)).run(), wanted)


stage = Stage() if selftest.emulator else None
suite = Tests()
for trigger in triggers.ALL:
    add(trigger)

if __name__ == "__main__":
    suite.main()
