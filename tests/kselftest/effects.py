#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Each effect of a fault rule in a probe, in use and in a recovery, as listed in effects.md."""

import json
from typing import NamedTuple

import selftest
from recovery import Recovery
from selftest import DRIVER, FOLDER, Failed, Skipped, Suite, equal, function_with, result_of, wait_until
from uverbs import opened

# Timeouts in units of 100 ms. The former is the maximum that a device can announce.
ATTRIBUTES = {"keep_alive_ms": 0, "admin_timeout": 15, "reset_timeout": 10}

if not selftest.emulator:
    selftest.skip_all("needs the emulator")
main, newest = selftest.any_function(), function_with("profile=efa4")


class Effect(NamedTuple):
    """A row of the table. `then` is the effect of a rule; the last three fields are results."""

    name: str
    when: str
    then: dict
    probe: str
    use: str
    recovery: str

    def inject(self, device, is_use=False):
        when: dict[str, str | bool]
        skip = 0
        match self.when:
            case "command" if is_use:
                when = {"opcode": "ALLOC_PD"}
            case "command":
                when, skip = {"opcode": "ANY"}, 2
            case "register":
                when = {"register": "DEV_STS"}
            case "reset":
                when = {"reset": True}
            case _:
                raise Failed(f"effects.md: {self.name} has the unknown stage {self.when}")
        device.inject(when, self.then, skip=skip, times=1)

    def in_probe(self, device):
        equal(device.unbind(), "ok", "unbind")
        self.inject(device)
        return device.bind()

    def in_use(self, device):
        if DRIVER == "c" and self.when == "register":
            raise Skipped("the C driver reads no register while a device is in use")
        result, _, reason = self.use.partition(", ")
        recovery = reason and DRIVER == "rust" and Recovery(device, reason)
        hits = device.state()["faults_hit"]
        self.inject(device, is_use=True)
        match self.when:
            case "command":
                with opened(device) as context:
                    result = result_of(context.alloc_pd)
            case "register":
                wait_until(lambda: device.state()["faults_hit"] > hits, "a health check of the device")
            case "reset":
                result = device.unbind()
        if recovery:
            recovery.wait()
            result += f", {reason}"
        elif device.is_bound and result_of(lambda: opened(device).close()) != "ok":
            result += ", given up"
        elif device.is_bound and DRIVER == "rust":
            equal(device.resets()["all"], 0, "resets")
        return result

    def in_recovery(self, device):
        if DRIVER == "c":
            raise Skipped("the C driver resets no device that is in use")
        recovery = Recovery(device, "fatal_error")
        self.inject(device)
        device.event("FATAL_ERROR", 1)
        recovery.wait(attempts=int(self.recovery))
        return self.recovery


def effects():
    """Yields the rows of the table."""
    for line in (FOLDER / "effects.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 8 and cells[3].startswith("`"):
            _, name, when, then, probe, use, recovery, _ = cells
            yield Effect(name, when, json.loads(then.strip("`")), probe, use, recovery)


def on(run, *devices):
    """Returns a test case that runs on each device, with a new queue. The result must be the same."""

    def case():
        results = {}
        for device in filter(None, devices):
            device.clear()
            device.set(**ATTRIBUTES)
            device.rebind()
            hits = device.state()["faults_hit"]
            try:
                results[run(device)] = device
            finally:
                device.clear()
            equal(device.state()["faults_hit"] - hits, 1, "effects")
        return " or ".join(results)

    return case


suite = Suite()
for effect in effects():
    name = f"{effect.name} of a {effect.when}"
    suite.add(f"{name} in a probe", on(effect.in_probe, main), effect.probe)
    # The newest device has another format of commands, which has checksums.
    suite.add(f"{name} in use", on(effect.in_use, main, *[newest] * (effect.when == "command")), effect.use)
    suite.add(f"{name} in a recovery", on(effect.in_recovery, main), effect.recovery)
try:
    suite.run()
finally:
    for device in filter(None, (main, newest)):
        device.clear()
        device.rebind()
