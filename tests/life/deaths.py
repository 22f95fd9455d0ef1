#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Recoveries that need a real kernel: several devices, namespaces, slots, the module, and threads. Prints KTAP.

All other tests of recoveries are in host/driver/tests/driver/recovery.rs. EFA_ROUNDS is the number of rounds of each test.
"""

import contextlib
import grp
import itertools
import os
import re
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
sys.path += [str(CLONE / folder) for folder in ("tests/kselftest", "tools/guest")]

import namespaces
from device import ATTRIBUTES, SILENT_ATTRIBUTES, Device
from loads import Load
from modules import load_module, remove_module
from selftest import Suite, equal, output_of, wait_until
from stage import stage
from triggers import Move, Trigger
from uverbs import opened
from workers import repeated

# More rounds find nothing new.
ROUNDS = min(int(os.environ.get("EFA_ROUNDS") or 3), 25)

# Timeouts that the device announces in tests in which it is silent, in units of 100 ms: short, so that failures take little time.
LIMITS = {"reset_timeout": 10, **SILENT_ATTRIBUTES}
# A name that no device has.
UNUSED = "efa_moved"
# The guide whose rule for udev is tested, the rule's place, and a group in place of the rule's.
GUIDE = CLONE / "Documentation/operating.md"
RULES, OTHERS = Path("/run/udev/rules.d/99-efa.rules"), "users"

suite = Suite()
main = stage and stage.victim


def works():
    with stage.open(main) as fresh:
        stage.exchange(fresh)


class Case:
    """Common part of all test cases: a program that gets an event for each death, and a check for leaks."""

    def __init__(self, attributes):
        stage.begin(Trigger(stage), Load(stage))
        main.reset_attributes(**attributes)
        main.rebind()
        wait_until(main.has_name, "udev's name of the device")
        stage.attach_peer()
        stage.attached.call("attach", stage.next_seed())
        self.resets = main.resets()

    def renew(self):
        """Prepares the next death."""
        stage.attached.call("attach", stage.next_seed())
        self.resets = main.resets()

    def notified(self):
        """Waits for the program's event, and checks the program's results after it."""
        stage.attached.call("await_event")
        stage.aftermath(stage.attached)

    def back(self):
        """Waits until the device can be used again; fails unless the driver has counted one reset."""
        main.await_status("up")
        works()
        stage.bystander.call("works", stage.next_seed())
        resets = main.resets()
        equal(resets["all"] - self.resets["all"], 1, "resets")
        equal(sum(count for reason, count in resets.items() if reason != "all"), resets["all"], "the sum of the reasons")
        stage.await_nothing_held()
        stage.look_at_errors()


def add(name, attributes=LIMITS):
    """Decorator that adds a function of a Case as a test case, with a device that has these ATTRIBUTES."""

    def decorator(function):
        def run():
            try:
                function(Case(attributes))
            finally:
                stage.tidy()

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
    output_of("rdma", "dev", "set", device.name, "name", name)
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
        output_of("udevadm", "control", "--reload")
        yield {device: change(device, f"efa_{number}") for number, device in enumerate(stage.devices)}
    finally:
        RULES.unlink()
        output_of("udevadm", "control", "--reload")
        for device, name in zip(stage.devices, names, strict=True):
            (device.sysfs / "driver_override").write_text("\n")
            output_of("rdma", "dev", "set", device.names("infiniband")[0], "name", name)
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
        return main.has_recovered(session)

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
    for _ in range(ROUNDS):
        with away(this, stage.peer.name) as there:

            def back(old, new=""):
                return there.call("change", old, new, namespaces.HERE)

            equal(back(stage.peer.name), "EEXIST", "a move to a namespace with a device of this name")
            there.call("use", main)
            results = reset_while(lambda back=back: back(stage.peer.name))
            equal(results - {"EEXIST", "ENODEV"}, set(), "results during a reset")
            equal(there.call("change", stage.peer.name, UNUSED), "ok", "a rename")
            equal(back(UNUSED, stage.peer.name), "EEXIST", "a request for the other device's name")
            there.call("use", main)
            results = reset_while(lambda back=back: back(UNUSED, main.name))
            equal(results - {"ok", "ENODEV"}, set(), "results during a reset")
            equal("ok" in results or back(UNUSED, main.name) == "ok", True, "that the device is moved")
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


@add("programs open the device and read its counters all the time")
def busy(this):
    def use():
        opened(main).close()

    def read():
        for file in ("hw_counters/resets", "hw_counters/submitted_cmds", "ports/1/hw_counters/tx_bytes"):
            (main.sysfs / "infiniband" / main.name / file).read_text()
        main.status()

    with repeated(use, 4) as opens, repeated(read) as reads:
        for number in range(ROUNDS):
            main.die(silent=bool(number & 1))
            this.notified()
            main.await_status("up")
            works()
            this.renew()
    equal(set(opens) - {"ok", "EIO", "ENOENT", "ENXIO", "ENODEV", "ETIME"}, set(), "results of opening it")
    equal(set(reads) - {"ok", "EIO", "ENOENT", "ENODEV", "ETIME"}, set(), "results of reading")
    stage.attached.call("detach")
    stage.await_nothing_held()
    stage.look_at_errors()


@add("with recovery=0 a device is reset only on request", ATTRIBUTES)
def not_automatic(this):
    stage.close_far()
    for worker in (stage.attached, stage.bystander):
        worker.restart()
    remove_module()
    load_module("recovery=0")
    try:
        wait_until(main.has_name, "udev's name of the device")
        stage.attach_peer()
        this.renew()
        main.die()
        this.notified()
        main.await_status("failed")
        equal((main.names("infiniband"), main.is_bound), ([], True), "RDMA devices, and whether the function is bound")
        main.reset_attributes(**ATTRIBUTES)
        equal(stage.hands.call("write", main.sysfs / "reset", "1"), "ok", "a write to reset")
        main.await_status("up")
        works()
    finally:
        stage.close_far()
        remove_module()
        load_module()


suite.run()
