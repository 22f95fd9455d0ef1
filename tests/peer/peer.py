#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""RDMA of another guest to and from the memory of a PCI device, which is revoked in every way. Prints KTAP.

usage: peer.py serve in guest 1, and then peer.py in guest 0, which has a device with memory in a BAR. A program exports the BAR through
vfio-pci, and another program, or the same, registers it as a DMA buffer. Guest 1 writes and reads it.
"""

import collections
import contextlib
import json
import os
import random
import re
import select
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "kselftest"), str(TESTS / "data"), str(TESTS.parent / "tools" / "guest")]

import contents
import pyverbs.enums as e
import vfio
from contents import ACCESS, KIB, MIB, Server, Side
from monitor import Monitor
from processes import fork
from pyverbs.mr import DmaBufMR
from pyverbs.pyverbs_error import PyverbsRDMAError
from selftest import Suite, any_function, emulator, equal, errno_name, wait_until

# File of the host that is the BAR's memory.
BAR_FILE = Path("/run/efa-rs/bar")
# Command timeouts that the device announces, in ms. The first is the longest that the driver accepts. The other is for tests in which a
# command is not answered.
USUAL, UNANSWERED = 30_000, 2_000
# The emulator's number of the other guest's device.
OTHER = 1
# Seed of random times and contents. It is printed, so that another run can use it.
SEED = int(os.environ.get("EFA_SEED") or random.SystemRandom().getrandbits(32))
chance = random.Random(SEED)
# Maximum random delay of each of two concurrent events, in seconds.
CHANCE = 0.05
# Writes during a revocation: length of each, number in flight, and number that must fail.
BLOCK, WINDOW, MORE = 64 * KIB, 16, 64
# Rounds with a revocation at a random time.
ROUNDS, DEATHS = 20, 3
# Statuses of work requests with a key that the peer's device does not have, and with one that our own device does not have.
REFUSED, REFUSED_LOCALLY = e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_LOC_PROT_ERR


class Remote(Side):
    """The other guest's side."""

    def transfer(self, peer, operation, length, here=0, target=0):
        """Writes or reads the peer's memory; returns the status."""
        self.send(peer, operation, [(here, length)], target=target)
        return self.statuses(1)[0]

    def statuses(self, count):
        """Waits for COUNT completions of sends; returns their statuses."""
        return [completion.status for completion in self.completions(self.send_cq, count)]

    def storm(self, peer, room):
        """Writes numbered blocks until MORE writes have failed. Returns the number of successful writes, and the statuses of the
        others.
        """
        good, bad, sent = 0, [], 0

        def has_failed():
            nonlocal good, sent
            while sent - good - len(bad) < WINDOW:
                slot = sent % WINDOW * BLOCK
                self.memory[slot : slot + 8] = sent.to_bytes(8, "little")
                self.send(peer, "write", [(slot, BLOCK)], target=sent * BLOCK % room)
                sent += 1
            for status in self.statuses(1):
                if status == e.IBV_WC_SUCCESS:
                    good += 1
                else:
                    bad.append(status)
            return len(bad) >= MORE

        wait_until(has_failed, f"{MORE} writes that have failed")
        bad += self.statuses(sent - good - len(bad))
        return {"good": good, "bad": sorted(set(bad))}


@contextlib.contextmanager
def borrowed(region):
    """Makes our side use another region in place of its memory."""
    kept = side.mr, side.address
    side.mr, side.address = region, 0
    try:
        yield
    finally:
        side.mr, side.address = kept


def page_sizes():
    """Returns the page sizes of all regions, as reported by the driver."""
    shown = subprocess.run(["rdma", "-jdd", "resource", "show", "mr"], capture_output=True, text=True, check=True).stdout
    return [int(region["drv_page_size"]) for region in json.loads(shown) if "drv_page_size" in region]


def bar(offset, length):
    """Returns bytes of the BAR from the host."""
    with open(BAR_FILE, "rb") as file:
        return os.pread(file.fileno(), length, offset)


class Setup:
    """Both sides, the exporter and its DMA buffer, and a memory region of the buffer."""

    def __init__(self, register=True):
        self.region: Any = None
        self.endpoint = side.open()
        side.know(server.open()["gid"])
        self.exporter = vfio.Exporter()
        self.size = self.exporter.size
        self.fd = self.exporter.export()
        try:
            if register:
                self.register()
        except BaseException:
            self.close()
            raise

    def register(self):
        self.region = DmaBufMR(side.pd, self.size, ACCESS, dmabuf=self.fd)
        self.peer = {**self.endpoint, "rkey": self.region.rkey, "address": 0}

    def switch_off(self):
        """Revokes the memory."""
        self.exporter.enable(False)

    def deregister(self):
        self.region.close()
        self.region = None

    def transfer(self, operation="write", length=BLOCK, target=0):
        """Makes the other guest write to or read from the region; returns the status."""
        return server.transfer(peer=self.peer, operation=operation, length=length, target=target)

    def works(self):
        """Checks that a write by the other guest arrives in the BAR."""
        seed = chance.getrandbits(32)
        server.fill(seed=seed)
        equal(self.transfer(target=4096), e.IBV_WC_SUCCESS, "status of a write")
        equal(bar(4096, BLOCK) == contents.noise(seed, contents.MEMORY)[:BLOCK], True, "whether the BAR has the written data")

    def is_dead(self):
        """Checks that accesses of the other guest to the region fail, and that the BAR is unchanged."""
        before = bar(0, self.size)
        server.fill(seed=chance.getrandbits(32))
        equal([self.transfer("write"), self.transfer("read")], [REFUSED, REFUSED], "statuses of a write and a read")
        equal(bar(0, self.size) == before, True, "whether the BAR is unchanged")

    def close(self):
        if self.region:
            self.region.close()
        os.close(self.fd)
        self.exporter.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def errno_of(action):
    """Calls a verb; returns `ok`, or the name of the errno with which it fails."""
    try:
        action()
    except PyverbsRDMAError as error:
        return errno_name(error.error_code)
    return "ok"


def deregistrations():
    """Returns the number of deregistrations that the device got since the last call."""
    return sum("DEREG_MR(" in line for line in main.trace())


# Matches the kernel stack of a task that waits for the driver's use of the memory, or for the lock of its DMA buffer.
WAITING = re.compile(r"\[efa\]|dma_resv|dma_buf|ww_mutex")


def waits(pid):
    """Whether a process waits in the kernel, for the driver or for a DMA buffer."""
    process = Path("/proc", str(pid))
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return state == "D" and bool(WAITING.search((process / "stack").read_text()))
    except (FileNotFoundError, ProcessLookupError):
        return False


def joined(pid):
    """Waits for the end of a process; returns its exit status."""
    ended = wait_until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG), "the end of a process")
    return ended.si_status


def hold(opcode):
    """Withholds the completion of the next command of a kind."""
    main.inject({"opcode": opcode}, {"hold": opcode}, times=1)


def await_held(opcode):
    wait_until(lambda: main.withheld().get(opcode), f"{opcode} is under way")


def exporter_meets(opcode, verb, exporter):
    """Calls a verb, and runs an action of the exporter while the verb's command is in flight.

    The command completes only once the exporter has ended or waits. Returns the result of the verb, and whether the exporter waits.
    """

    def control():
        await_held(opcode)
        other = fork(exporter)
        wait_until(lambda: waits(other) or has_ended(other), "the exporter has ended, or waits")
        was_waiting = waits(other)
        main.release(opcode)
        if joined(other) or not was_waiting:
            os._exit(1)

    hold(opcode)
    controller = fork(control)
    result = verb()
    return result, joined(controller) == 0


def verb_meets(opcode, verb, exporter):
    """Runs an action of the exporter, and calls a verb while the exporter's command is in flight.

    The command completes only once the verb has ended or waits. Returns whether the verb waits.
    """
    hold(opcode)
    other = fork(exporter)
    await_held(opcode)
    caller, ended = os.getpid(), os.eventfd(0, os.EFD_NONBLOCK)

    def control():
        wait_until(lambda: waits(caller) or select.select([ended], [], [], 0)[0], "the verb has ended, or waits")
        was_waiting = waits(caller)
        main.release(opcode)
        if not was_waiting:
            os._exit(1)

    controller = fork(control)
    verb()
    os.eventfd_write(ended, 1)
    os.close(ended)
    equal(joined(other), 0, "exit status of the exporter's process")
    return joined(controller) == 0


def has_ended(pid):
    """Whether a child of this process has ended."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def at_random(verb, exporter):
    """Calls a verb and runs an action of the exporter, each at a random time; returns the result of the verb."""
    verb_later, exporter_later = chance.uniform(0, CHANCE), chance.uniform(0, CHANCE)

    def export():
        time.sleep(exporter_later)
        exporter()

    other = fork(export)
    time.sleep(verb_later)
    result = verb()
    equal(joined(other), 0, "exit status of the exporter's process")
    return result


def renew():
    """Opens the device again, which has lost this program's objects."""
    global side
    side.context.close()
    main.settle()
    side = Remote()


def rebind(patience=USUAL):
    """Rebinds the device, without faults and with this command timeout in ms, and opens it again."""
    side.context.close()
    begin(patience)
    renew()


def begin(patience=USUAL):
    main.clear()
    main.set(admin_completion_timeout_ms=patience)
    main.rebind()
    main.settle()


suite = Suite()
side: Any = None
server: Any = None
main: Any = None


@suite.case("its description: the file p2p, and the device of the host")
def description():
    equal(((main.sysfs / "p2p").read_text(), main.state()["host_info"]["gdr"]), ("DMABUF\n", True), "p2p, and the flag GDR")


@suite.case("each byte is where it belongs")
def contents_of_bar():
    with Setup() as setup:
        server.fill(seed=1)
        for number, size in enumerate((1, 4096, 64 * KIB + 1, MIB + 5, 4 * MIB)):
            here, target = 4099 * number, MIB * number + 7
            equal(server.transfer(peer=setup.peer, operation="write", length=size, here=here, target=target), 0, "status of a write")
            wanted = bytes.fromhex(server.peek(offset=here, length=size))
            equal(bar(target, size) == wanted, True, f"{size} bytes in the BAR, on the host")
            equal(setup.exporter.memory[target : target + size] == wanted, True, f"{size} bytes in the BAR, to the exporter")
            setup.exporter.memory[target : target + size] = contents.noise(number, size)
            equal(server.transfer(peer=setup.peer, operation="read", length=size, here=here, target=target), 0, "status of a read")
            equal(server.peek(offset=here, length=size) == contents.noise(number, size).hex(), True, f"{size} bytes that were read")


@suite.case("the BAR is one page for the device, and a part of it has the largest possible pages")
def pages():
    with Setup() as setup:
        equal(page_sizes()[-1], setup.size, "the size of a page")
        part = DmaBufMR(side.pd, setup.size - 4096, ACCESS, dmabuf=setup.fd, offset=4096)
        equal(page_sizes()[-1], setup.size, "the size of a page of all but the first 4 KiB")
        part.close()


@suite.case("its program uses it, too, until it is revoked")
def local():
    with Setup() as setup, borrowed(setup.region):
        peer = server.open()
        server.know(gid=side.open()["gid"])
        setup.exporter.memory[:BLOCK] = contents.noise(7, BLOCK)
        side.send(peer, "write", [(0, BLOCK)])
        side.sent()
        equal(server.peek(offset=0, length=BLOCK), contents.noise(7, BLOCK).hex(), "data written from the BAR")
        side.send(peer, "read", [(MIB, BLOCK)])
        side.sent()
        equal(bar(MIB, BLOCK) == contents.noise(7, BLOCK), True, "whether the BAR has the data that was read")
        setup.switch_off()
        for operation in ("write", "read"):
            side.send(peer, operation, [(2 * MIB, BLOCK)])
            equal(side.statuses(1), [REFUSED_LOCALLY], f"status of a {operation} after that")


@suite.case("revoked before it is registered")
def before():
    with Setup(register=False) as setup:
        setup.switch_off()
        equal(errno_of(setup.register), "ENODEV", "registration")
        setup.exporter.enable(True)
        setup.register()
        setup.works()


@suite.case("revoked after it was registered: the key is dead, and the region can be deregistered")
def after():
    with Setup() as setup:
        setup.works()
        regions, errors = main.held()["mr"], main.counter("cmds_err")
        setup.exporter.enable(False)
        equal(main.held()["mr"], regions - 1, "regions of the device")
        setup.is_dead()
        setup.exporter.enable(True)
        setup.is_dead()
        deregistrations()
        # The new region may have the key of the old one.
        old = setup.region
        setup.register()
        setup.works()
        old.close()
        equal(deregistrations(), 0, "number of DEREG_MR commands")
        setup.works()
        equal(main.counter("cmds_err"), errors, "commands that have failed")


@suite.case("revoked while it is registered: the exporter waits")
def during():
    with Setup(register=False) as setup:
        result, waited = exporter_meets("REG_MR", lambda: errno_of(setup.register), setup.switch_off)
        equal((result, waited), ("ok", True), "registration, and whether the exporter waits")
        setup.is_dead()


def once(meet):
    """Deregisters the region and revokes its memory at the same time."""
    with Setup() as setup:
        deregistrations()
        waited = meet("DEREG_MR", setup.deregister, setup.switch_off)
        equal((deregistrations(), waited), (1, True), "number of DEREG_MR commands, and whether the other one waits")


suite.add(
    "revoked while it is deregistered: the exporter waits, and the device gets one command",
    lambda: once(lambda *actions: exporter_meets(*actions)[1]),
)
suite.add("deregistered while it is revoked: the program waits, and the device gets one command", lambda: once(verb_meets))


@suite.case("revoked at random moments")
def any_time():
    outcomes = collections.Counter()
    with Setup(register=False) as setup:
        regions = main.held()["mr"]
        for number in range(ROUNDS):
            result = at_random(lambda: errno_of(setup.register), setup.switch_off)
            outcomes[result] += 1
            if result == "ok":
                setup.is_dead()
                setup.deregister()
            equal(main.held()["mr"], regions, f"round {number}: regions of the device")
            setup.exporter.enable(True)
    print(f"# registrations that end at random moments: {dict(outcomes)}", flush=True)
    equal(set(outcomes) - {"ok", "ENODEV"}, set(), "other results of registrations")


def revoked_by_reset(fault, reason):
    """A device that does not release memory is stopped before the memory is revoked."""
    with Setup() as setup:
        resets = main.resets()
        main.inject({"opcode": "DEREG_MR"}, fault)
        start_storm(setup)
        setup.exporter.enable(False)
        check_unchanged(setup)
        equal(main.resets(), resets | {reason: resets[reason] + 1, "all": resets["all"] + 1}, "resets")
        setup.deregister()
    rebind()


suite.add("a device that refuses to release it is reset", lambda: revoked_by_reset({"status": "UNKNOWN_ERROR"}, "memory_held"))


@suite.case("a device that does not answer is reset")
def unanswered():
    rebind(UNANSWERED)
    revoked_by_reset({"silence": True}, "command_timeout")


@suite.case("revoked after a registration that was not answered")
def unknown():
    rebind(UNANSWERED)
    with Setup(register=False) as setup:
        main.inject({"opcode": "REG_MR"}, {"silence": True}, times=1)
        hits = main.state()["faults_hit"]

        def export():
            # This process shares its end of the emulator's port with the process that waits for the registration.
            wait_until(lambda: main.state()["faults_hit"] > hits, "REG_MR is under way")
            setup.switch_off()

        other = fork(export)
        equal(errno_of(setup.register), "ETIME", "registration")
        equal(joined(other), 0, "exit status of the exporter's process")
        wait_until(lambda: main.status()["state"] == "up", "the device has recovered")
    rebind()


def start_storm(setup):
    """Starts continuous writes by the other guest. Returns after some have completed."""

    def written():
        return emulator.send({"command": "counters"})["devices"][OTHER]["write_bytes"]

    before = written()
    server.start("storm", peer=setup.peer, room=setup.size)
    wait_until(lambda: written() > before + WINDOW * BLOCK, "the other guest has written")


def check_unchanged(setup):
    """Checks that the BAR is not written from here on, whatever is in flight; returns the statuses of failed writes."""
    found = bar(0, setup.size)
    result = server.result()
    equal(bar(0, setup.size) == found, True, "whether the BAR is unchanged")
    equal((result["good"] > 0, bool(result["bad"])), (True, True), "whether there were good writes, and then bad ones")
    return result["bad"]


def revoked_under_load(action):
    with Setup() as setup:
        start_storm(setup)
        action(setup.exporter)
        equal(check_unchanged(setup), [REFUSED], "statuses of writes that have failed")
        setup.deregister()
    equal(main.state()["protocol_errors"], 0, "protocol errors")


def unplug(_):
    """Presses the slot's button, upon which Linux waits for 5 s."""
    with Monitor() as monitor:
        monitor.execute("device_del", id="memory-device")
        wait_until(lambda: not vfio.find(), "the device is gone")
        wait_until(
            lambda: "memory-device" not in [child["name"] for child in monitor.execute("qom-list", path="/machine/peripheral")],
            "QEMU has deleted it",
        )


for what, action in {
    "the BAR is switched off": lambda exporter: exporter.enable(False),
    "its device is reset": vfio.Exporter.reset,
    "its exporter ends": vfio.Exporter.end,
    "its device is unbound": lambda _: vfio.unbind(),
}.items():
    suite.add(f"revoked while data moves, as {what}", lambda action=action: revoked_under_load(action))


@suite.case("revoked when the RDMA device is gone")
def without_device():
    with Setup() as setup:
        main.unbind()
        setup.exporter.enable(False)
        equal(main.bind(), "ok", "bind")
    renew()


@suite.case("revoked while the RDMA device dies")
def while_it_dies():
    for _ in range(DEATHS):
        with Setup() as setup:
            at_random(lambda: main.event("FATAL_ERROR"), setup.switch_off)
            wait_until(lambda: main.status()["state"] == "up", "the device has recovered")
        renew()
    with Setup() as setup:
        setup.works()


# QEMU (11.1) aborts when the same memory is plugged in again.
suite.add("revoked while data moves, as its device is unplugged", lambda: revoked_under_load(unplug))


@suite.case("nothing is left behind")
def left_behind():
    side.context.close()
    wait_until(lambda: not main.held(), "the device has no objects left")
    equal(main.state()["protocol_errors"], 0, "protocol errors")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        contents.serve(Remote())
        sys.exit()
    main = any_function()
    begin()
    print(f"# EFA_SEED={SEED}", flush=True)
    # Python warns of forks in a process with threads.
    warnings.simplefilter("ignore", DeprecationWarning)
    vfio.load()
    side, server = Remote(), Server("guest1")
    suite.run()
