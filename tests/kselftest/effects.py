#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Each effect of a fault rule in a probe, in use and in a recovery, as listed in effects.md."""

import json
from typing import NamedTuple

import selftest
from admin_cases import Bench
from recovery import Recovery
from selftest import DRIVER, FOLDER, Failed, Skipped, Suite, equal, result_of, wait_until
from uverbs import opened

# In units of 100 ms. The former is the maximum that a device can announce.
ADMIN_TIMEOUT, RESET_TIMEOUT = 15, 10

if not selftest.emulator:
    selftest.skip_all("needs the emulator")

bench = Bench(admin_timeout=ADMIN_TIMEOUT, reset_timeout=RESET_TIMEOUT)


class Effect(NamedTuple):
    """A row of the table. `then` is the effect of a rule; the last three fields are results."""

    name: str
    when: str
    then: dict
    probe: str
    use: str
    recovery: str

    def inject(self, is_use=False):
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
        bench.device.inject(when, self.then, skip=skip, times=1)

    def in_probe(self):
        device = bench.device
        equal(device.unbind(), "ok", "unbind")
        hits = device.state()["faults_hit"]
        self.inject()
        result = device.bind()
        equal(device.state()["faults_hit"] - hits, 1, "effects")
        return result

    def in_use(self):
        device = bench.device
        if DRIVER == "c" and self.when == "register":
            raise Skipped("the C driver reads no register while a device is in use")
        result, _, reason = self.use.partition(", ")
        recovery = reason and DRIVER == "rust" and Recovery(device, reason)
        hits = device.state()["faults_hit"]
        self.inject(is_use=True)
        match self.when:
            case "command":
                with opened(device) as context:
                    result = result_of(context.alloc_pd)
            case "register":
                wait_until(lambda: device.state()["faults_hit"] > hits, "a health check of the device")
            case "reset":
                result = device.unbind()
        equal(device.state()["faults_hit"] - hits, 1, "effects")
        if recovery:
            recovery.wait()
            result += f", {reason}"
        elif device.is_bound and result_of(lambda: opened(device).close()) != "ok":
            result += ", given up"
        elif device.is_bound and DRIVER == "rust":
            equal(device.resets()["all"], 0, "resets")
        return result

    def in_recovery(self):
        if DRIVER == "c":
            raise Skipped("the C driver resets no device that is in use")
        device = bench.device
        recovery = Recovery(device, "fatal_error")
        hits = device.state()["faults_hit"]
        self.inject()
        device.event("FATAL_ERROR", 1)
        recovery.wait(attempts=int(self.recovery))
        equal(device.state()["faults_hit"] - hits, 1, "effects")
        return self.recovery


def effects():
    """Yields the rows of the table."""
    for line in (FOLDER / "effects.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 8 and cells[3].startswith("`"):
            _, name, when, then, probe, use, recovery, _ = cells
            yield Effect(name, when, json.loads(then.strip("`")), probe, use, recovery)


suite = Suite()
for effect in effects():
    name = f"{effect.name} of a {effect.when}"
    suite.add(f"{name} in a probe", effect.in_probe, effect.probe)
    suite.add(f"{name} in use", effect.in_use, effect.use)
    suite.add(f"{name} in a recovery", effect.in_recovery, effect.recovery)
    if effect.when == "command":
        suite.add(f"efa4: {name} in use", bench.on_newest(effect.in_use), effect.use)
bench.run(suite)
