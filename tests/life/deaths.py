#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Recoveries that need a real kernel: several devices, namespaces, slots, the module, threads, and memory of others. Prints KTAP.

All other tests of recoveries are in host/driver/tests/driver/recovery.rs.

See cases.py for its arguments.
"""

import contextlib
import grp
import itertools
import mmap
import os
import re
from pathlib import Path
from typing import Any

import cases
import aer
import namespaces
import selftest
from device import ATTRIBUTES, SILENT_ATTRIBUTES, Device
from loads import Load
from modules import load_module, remove_module
from recovery import BACKOFF
from selftest import Failed, Skipped, equal, wait_until
from stage import Stage
from triggers import Move, Pull, Trigger
from uverbs import opened
from workers import repeated

# Number of rounds of tests whose rounds differ. More rounds find nothing new.
ROUNDS = min(cases.rounds(3), 25)
IS_SHORT = ROUNDS < 10
# Number of short rounds.
TIMES = ROUNDS if IS_SHORT else 4 * ROUNDS

# Timeouts that the device announces in tests in which it is silent, in units of 100 ms: short, so that failures take little time.
LIMITS = {"reset_timeout": 10, **SILENT_ATTRIBUTES}
# Bytes that a dead device with DMA writes, see Documentation/emulator-control.md, and size of the memory that is searched for them.
STRAY = bytes.fromhex("efa0deadefa0dead")
WATCHED = 64 << 20
# A name that no device has.
UNUSED = "efa_moved"
# The guide whose rule for udev is tested, the rule's place, and a group in place of the rule's.
GUIDE = cases.FOLDER.parents[1] / "Documentation/operating.md"
RULES, OTHERS = Path("/run/udev/rules.d/99-efa.rules"), "users"

suite = cases.Tests()
stage: Any = Stage() if selftest.emulator else None
main = stage and stage.victim


def works():
    with stage.open(main) as fresh:
        stage.exchange(fresh)


class Case:
    """Common part of all test cases: a program that gets an event for each death, and a check for leaks."""

    def __init__(self, attributes):
        self.attributes = attributes
        stage.begin(Trigger(stage), Load(stage))
        main.reset_attributes(**attributes)
        main.rebind()
        wait_until(main.has_name, "udev's name of the device")
        stage.attach(stage.peer)
        stage.attached.call("attach", stage.next_seed())
        self.start = self.driver()

    def driver(self):
        """Starts a round; returns the driver's counters of resets and its session."""
        list(stage.uevents.read())
        list(stage.log.records())
        return {"resets": main.resets(), "session": int(main.status()["session"])}

    def renew(self):
        """Prepares the next death."""
        stage.attached.call("attach", stage.next_seed())
        self.start = self.driver()

    def notified(self, but=()):
        """Waits for the program's event, and checks the program's results after it, except those in BUT."""
        stage.attached.call("await_event")
        stage.aftermath(stage.attached, but)

    def back(self, deaths=1):
        """Waits until the device can be used again; fails unless the driver has counted between 1 and DEATHS resets."""
        main.await_status("up")
        works()
        stage.bystander.call("works", stage.next_seed())
        resets = main.resets()
        counted = resets["all"] - self.start["resets"]["all"]
        if not 1 <= counted <= deaths:
            raise Failed(f"{counted} resets are counted, which may be 1 to {deaths}: {resets}")
        equal(sum(count for reason, count in resets.items() if reason != "all"), resets["all"], "the sum of the reasons")
        self.nothing_left()

    def nothing_left(self):
        stage.await_nothing_held()
        stage.look_at_errors()

    def failed(self):
        """Waits until the driver has given the device up; fails unless it logs once what the operator can do."""
        main.await_status("failed")
        lines = []

        def advice():
            lines.extend(line for line in stage.log.driver_errors(main) if "reset" in line and "sysfs" in line)
            return lines

        wait_until(advice, "an error message with advice")
        equal(len(lines), 1, f"error messages with advice: {lines}")
        equal(main.names("infiniband"), [], "RDMA devices")
        equal(main.is_bound, True, "bound")

    def repair(self):
        """Follows the driver's advice: resets the device, which works again."""
        main.reset_attributes(**self.attributes)
        equal(stage.hands.call("write", main.sysfs / "reset", "1"), "ok", "a write to reset")
        self.back(deaths=len(BACKOFF) + 2)


@contextlib.contextmanager
def case(attributes):
    try:
        yield Case(attributes)
    finally:
        stage.tidy()


def add(name, attributes=LIMITS):
    """Decorator that adds a function of a Case as a test case, with a device that has these ATTRIBUTES."""

    def decorator(function):
        def run():
            with case(attributes) as this:
                function(this)

        suite.add(name, run)
        return function

    return decorator


def settings(device):
    """Returns what an operator may have changed of a device."""
    file = device.uverbs()
    of_file, of_function = os.stat(file), device.sysfs / "driver_override"
    return {
        "name": device.name * device.has_name(),
        "device file": file,
        "mode": oct(of_file.st_mode & 0o777),
        "group": of_file.st_gid,
        "link": os.path.realpath(f"/dev/infiniband/pci-{device.address}"),
        "file of the function": of_function.read_text(),
        "affinity": {name: Path(f"/proc/irq/{number}/smp_affinity_list").read_text() for number, name in device.interrupts()},
        "lifespan": (device.rdma / "hw_counters/lifespan").read_text(),
    }


def change(device, name):
    """Changes all settings; returns those that the guide promises for the next session."""
    before = settings(device)
    namespaces.run("rdma", "dev", "set", device.name, "name", name)
    device.name = name
    os.chmod(device.uverbs(), 0o600)
    (device.sysfs / "driver_override").write_text("efa\n")
    for number, _ in device.interrupts():
        Path(f"/proc/irq/{number}/smp_affinity_list").write_text("0")
    (device.rdma / "hw_counters/lifespan").write_text("7000")
    after = settings(device)
    kept = {name: after[name] for name in ("name", "device file", "file of the function")}
    by_rule = {"mode": "0o660", "group": grp.getgrnam(OTHERS).gr_gid, "link": device.uverbs()}
    return before | kept | by_rule


@contextlib.contextmanager
def changed():
    """Changes the settings of all devices, and installs the guide's rule for udev. Yields what the guide promises for each device."""
    names = [device.name for device in stage.devices]
    (rule,) = re.findall(r'^SUBSYSTEM=="infiniband_verbs".*$', GUIDE.read_text(), re.MULTILINE)
    RULES.parent.mkdir(exist_ok=True)
    RULES.write_text(rule.replace('GROUP="efa"', f'GROUP="{OTHERS}"') + "\n")
    try:
        namespaces.run("udevadm", "control", "--reload")
        yield {device: change(device, f"efa_{number}") for number, device in enumerate(stage.devices)}
    finally:
        RULES.unlink()
        namespaces.run("udevadm", "control", "--reload")
        for device, name in zip(stage.devices, names, strict=True):
            (device.sysfs / "driver_override").write_text("\n")
            namespaces.run("rdma", "dev", "set", device.names("infiniband")[0], "name", name)
            device.name = name
            device.reset_attributes()


@add("both devices are reset at once, and keep what the guide says", ATTRIBUTES)
def both(this):
    # The driver can register the other device first, which must not get the number of this one.
    min(stage.devices, key=Device.uverbs).inject({"opcode": "CREATE_EQ"}, {"delay_ms": 1000})
    with changed() as promised:
        for _ in range(ROUNDS):
            for device in stage.devices:
                device.die()
            this.notified()
            stage.bystander.call("await_event")
            stage.aftermath(stage.bystander)
            stage.far.close()
            stage.far = stage.open(stage.peer)
            stage.bystander.call("attach", stage.next_seed())
            this.back()
            for device, wanted in promised.items():
                device.settle()
                equal(settings(device), wanted, device.address)
            this.renew()


# Names, which are unique in a network namespace. What the core refuses has no effect.


@contextlib.contextmanager
def held():
    """Keeps the device in a reset, without an RDMA device, until the end of the block."""
    main.inject({"opcode": "CREATE_EQ"}, {"hold": "reset"}, times=1)
    main.die()
    wait_until(main.withheld, "the device is being reset")
    yield
    main.release("reset")
    main.await_status("up")


def reset_while(action):
    """Resets the device, and repeats an action meanwhile; returns its results."""
    session, results = main.status()["session"], set()

    def is_over():
        results.add(action())
        status = main.status()
        return status.get("state") == "up" and status["session"] != session

    main.die()
    wait_until(is_over, "a reset")
    return results


def restore_names():
    def has_name(device):
        for name in device.names("infiniband"):
            namespaces.change(name, device.name)
        return device.has_name()

    # The other device may have the name of this one.
    for device in (stage.peer, main):
        wait_until(lambda device=device: has_name(device), "the device has its name")


@contextlib.contextmanager
def away(this, name):
    """Moves the device to another network namespace, where it gets a NAME; yields a process there. Then it comes back with its name."""
    move = Move(stage)
    move.prepare()
    try:
        equal(namespaces.change(main.name, name, namespaces.Elsewhere.NAME), "ok", "a move with another name")
        this.notified()
        move.elsewhere.call("use", main)
        yield move.elsewhere
    finally:
        move.clean()
        restore_names()
    works()
    this.renew()


@add("names that are in use at a rename are refused", ATTRIBUTES)
def renamed(this):
    def rename():
        return namespaces.change(main.name, stage.peer.name)

    for _ in range(ROUNDS):
        equal(rename(), "EEXIST", "a rename to the other device's name")
        stage.attached.call("works", stage.next_seed())
        equal(reset_while(rename) - {"EEXIST", "ENODEV"}, set(), "results during a reset")
        this.notified()
        this.back()
        equal(main.names("infiniband"), [main.name], "the device's name")
        this.renew()


@add("names that are in use at a move are refused, and a device recovers where it is", ATTRIBUTES)
def moved(this):
    with away(this, stage.peer.name) as there:
        for _ in range(ROUNDS):

            def back():
                return there.call("change", stage.peer.name, "", namespaces.HERE)

            equal(back(), "EEXIST", "a move to a namespace with a device of this name")
            there.call("use", main)
            equal(reset_while(back) - {"EEXIST", "ENODEV"}, set(), "results during a reset")
            there.call("use", main)


@add("names that a move requests", ATTRIBUTES)
def moved_and_renamed(this):
    for _ in range(ROUNDS):
        with away(this, UNUSED) as there:

            def back():
                return there.call("change", UNUSED, main.name, namespaces.HERE)

            equal(there.call("change", UNUSED, stage.peer.name, namespaces.HERE), "EEXIST", "a request for the other device's name")
            there.call("use", main)
            results = reset_while(back)
            equal(results - {"ok", "ENODEV"}, set(), "results during a reset")
            equal("ok" in results or back() == "ok", True, "that the device is moved")
            equal(main.names("infiniband"), [main.name], "the device's name")


@add("names that are taken during a reset are replaced", ATTRIBUTES)
def taken(this):
    for _ in range(ROUNDS):
        with held():
            this.notified()
            equal(namespaces.change(stage.peer.name, main.name), "ok", "a rename to the name of a device that is being reset")
        equal([name for name in main.names("infiniband") if not re.fullmatch(r"efa_\d+", name)], [], "names of another form")
        this.back()
        restore_names()
        this.renew()


@add("names that are in use in the first namespace when the other one ends, also during a reset", ATTRIBUTES)
def namespace_ends(this):
    for name, resets in itertools.product((UNUSED, stage.peer.name), (False, True)):
        with away(this, name) as there:
            if resets:
                with held():
                    there.call("end_namespace")
                    # The mode can be set once the namespace has ended.
                    namespaces.set_mode("shared")
                # udev renames a device that has a name of the pattern.
                equal(main.names("infiniband") == [name], name == UNUSED, f"whether it is still {name}")
            else:
                there.call("end_namespace", main)
                wait_until(lambda: main.names("infiniband"), "the device in the first namespace")
                equal(main.names("infiniband") == [stage.peer.name], False, "whether two devices have one name")
            works()


@add("an unplugged device is then removed at once")
def removed_after_event(this):
    if not stage.monitor:
        raise Skipped("needs slots that devices can be pulled out of")
    pull = Pull(stage)
    main.pull_out()
    this.notified()
    stage.monitor.pull(main.number)
    try:
        pull.end()
    finally:
        pull.undo()
    works()


# Actions of other programs at the same time.


@add("the module is removed while a device keeps failing")
def unload_meanwhile(this):
    main.die(resets=1 << 20)
    this.notified()
    stage.close_far()
    remove_module()
    main.clear()
    load_module()
    with stage.open(main):
        pass


@add("programs open the device all the time", ATTRIBUTES)
def openers(this):
    with repeated(lambda: opened(main).close(), 4) as results:
        for _ in range(TIMES):
            main.die()
            this.notified()
            main.await_status("up")
            works()
            this.renew()
    equal(set(results) - {"ok", "EIO", "ENOENT", "ENXIO", "ENODEV"}, set(), "results of opening it")
    stage.attached.call("detach")
    this.nothing_left()


@add("its counters are read all the time")
def readers(this):
    def read():
        for name in main.names("infiniband"):
            folder = main.sysfs / "infiniband" / name
            for file in ("hw_counters/resets", "hw_counters/submitted_cmds", "ports/1/hw_counters/tx_bytes"):
                (folder / file).read_text()
        main.status()

    with repeated(read) as results:
        for number in range(TIMES):
            main.die(silent=bool(number & 1))
            this.notified()
            this.back()
            this.renew()
    equal(set(results) - {"ok", "EIO", "ENOENT", "ENODEV", "ETIME"}, set(), "results of reading")


# Actions of the device.


@add("a dead device that continues DMA does not write to memory of others")
def strays(this):
    """Each page that is allocated after the programs' event is zeroed then, so any other content was written later."""
    # DMA ends with the device's own reset, with the one after the bus reset, or with a later attempt of the driver.
    for resets in (1, 3, 4):
        before = main.state()["stray_writes"]
        main.die(dma=True, resets=resets)
        # Until its reset, the device may write to all its queues.
        this.notified(but=("memory of queues",))
        with mmap.mmap(-1, WATCHED) as memory:
            for page in range(0, WATCHED, mmap.PAGESIZE):
                memory[page] = 1
            main.await_status("up")
            # Errors that the device counted after resets without effect are ignored: its DMA was to its own memory.
            stage.errors[main] = main.errors()
            this.back()
            place = memory.find(STRAY)
        equal(place, -1, "offset of stray writes in memory of others")
        equal(main.state()["stray_writes"] > before, True, "whether the device has continued DMA")
        this.renew()


@add("a non-fatal error of PCI Express has no effect", ATTRIBUTES)
def nonfatal(this):
    before = aer.aer_count(main.address, "nonfatal")
    for number in range(ROUNDS):
        aer.inject(main.address, "nonfatal")
        wait_until(lambda number=number: aer.aer_count(main.address, "nonfatal") > before + number, "the error is counted")
        stage.attached.call("works", stage.next_seed())
    equal(main.resets(), this.start["resets"], "resets")


# No automatic recovery.


@add("with recovery=0 a device is reset only on request", ATTRIBUTES)
def not_automatic(this):
    stage.close_far()
    for worker in (stage.attached, stage.bystander):
        worker.restart()
    remove_module()
    load_module("recovery=0")
    try:
        wait_until(main.has_name, "udev's name of the device")
        stage.attach(stage.peer)
        this.renew()
        main.die()
        this.notified()
        this.failed()
        equal(stage.uevents.of_driver(main), [("reset", "fatal_error"), ("failed", "fatal_error")], "uevents")
        this.repair()
    finally:
        stage.close_far()
        remove_module()
        load_module()


if __name__ == "__main__":
    suite.main()
