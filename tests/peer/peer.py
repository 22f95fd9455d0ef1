#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""RDMA of another guest to and from the memory of another device, which is taken away from it in every way. Prints KTAP.

Runs in both guests of `make peer-memory`. Guest 0 has a device with memory in a BAR, which a program exports by vfio-pci and another
one, or the same, registers as a DMA buffer; guest 1 writes and reads it.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "kselftest"), str(TESTS / "interop"), str(TESTS.parent / "tools" / "guest")]

import contents  # noqa: E402
import guests  # noqa: E402
import pyverbs.enums as e  # noqa: E402
import vfio  # noqa: E402
from contents import ACCESS, KIB, MIB, Server, Side, device_name  # noqa: E402
from monitor import Monitor  # noqa: E402
from pyverbs.mr import DmaBufMR  # noqa: E402
from pyverbs.pyverbs_error import PyverbsRDMAError  # noqa: E402
from selftest import Failed, Suite, any_function, emulator, equal, errno_name, wait_until  # noqa: E402

# What the BAR is on the host.
BAR_FILE = Path("/run/efa-rs/bar")
# Seconds that a device has for a command in the tests in which it does not answer, in units of 100 ms.
ADMIN_TIMEOUT = 5
# How long a command takes while something else happens, and how much earlier that begins.
SLOW_MS, HEAD_START = 800, 0.2
# How long who waits for that has to wait then, at least; and how long it may take until a device is stopped that does not answer.
ENOUGH, STOPPED = 0.3, 5
# Seconds within which what happens at any time happens.
CHANCE = 0.05
# Of the writes that go on while memory is taken away: how long each is, how many are on the way, and how many there are after the
# first one that fails.
BLOCK, WINDOW, MORE = 64 * KIB, 16, 64
# Seconds until the first of them must have failed.
STORM_LIMIT = 20
# How often memory is taken back at a time that chance chooses.
ROUNDS, DEATHS = 20, 3
# What becomes of work requests with a key that the peer's device does not have, or our own.
REFUSED, REFUSED_LOCALLY = e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_LOC_PROT_ERR


class Remote(Side):
    """The other guest's side."""

    def transfer(self, peer, operation, length, here=0, target=0):
        """Writes or reads the peer's memory; returns the status."""
        self.send(peer, operation, [(here, length)], target=target)
        return self.statuses(1)[0]

    def statuses(self, count):
        """Waits for so many completions of sends."""
        found, deadline = [], time.monotonic() + contents.LIMIT
        while len(found) < count:
            polled, completions = self.send_cq.poll(count - len(found))
            found += [completion.status for completion in completions] if polled else []
            if not polled and time.monotonic() > deadline:
                raise Failed(f"{len(found)} of {count} completions within {contents.LIMIT} s")
            if not polled:
                time.sleep(0)
        return found

    def storm(self, peer, room):
        """Writes blocks with numbers, again and again, until that has failed, and some more; returns how many were good, and the
        statuses of the others.
        """
        good, bad, sent, deadline = 0, [], 0, time.monotonic() + STORM_LIMIT
        while len(bad) < MORE:
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
            if time.monotonic() > deadline:
                break
        bad += [status for status in self.statuses(sent - good - len(bad))]
        return {"good": good, "bad": sorted(set(bad))}

    def where(self):
        """The address of the memory."""
        return self.address


@contextlib.contextmanager
def borrowed(region):
    """Has our side use another region in place of its memory."""
    kept = side.mr, side.address
    side.mr, side.address = region, 0
    try:
        yield
    finally:
        side.mr, side.address = kept


def page_sizes():
    """The sizes of the pages of all regions, as the driver tells."""
    shown = subprocess.run(["rdma", "-jdd", "resource", "show", "mr"], capture_output=True, text=True, check=True).stdout
    return [int(region["drv_page_size"]) for region in json.loads(shown) if "drv_page_size" in region]


def bar(offset, length):
    """What is in the BAR, as the host sees it."""
    with open(BAR_FILE, "rb") as file:
        return os.pread(file.fileno(), length, offset)


class Setup:
    """Both sides, the exporter and its DMA buffer, and a region of that."""

    def __init__(self, register=True):
        self.region = None
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
        """Takes the memory back."""
        self.exporter.enable(False)

    def deregister(self):
        self.region.close()
        self.region = None

    def transfer(self, operation="write", length=BLOCK, target=0):
        """The other guest writes to or reads from the region; the status."""
        return server.transfer(peer=self.peer, operation=operation, length=length, target=target)

    def works(self):
        """What the other guest writes is in the BAR."""
        seed = random.getrandbits(32)
        server.fill(seed=seed)
        equal(self.transfer(target=4096), e.IBV_WC_SUCCESS, "status of a write")
        equal(bar(4096, BLOCK) == contents.noise(seed, contents.MEMORY)[:BLOCK], True, "that the BAR has what was written")

    def is_dead(self):
        """What others want of the region fails, and the BAR stays as it is."""
        before = bar(0, self.size)
        server.fill(seed=random.getrandbits(32))
        equal([self.transfer("write"), self.transfer("read")], [REFUSED, REFUSED], "statuses of a write and a read")
        equal(bar(0, self.size) == before, True, "that nothing is written to the BAR")

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
    """`ok`, or the name of the errno with which a verb fails."""
    try:
        action()
    except PyverbsRDMAError as error:
        return errno_name(error.error_code)
    return "ok"


def deregistrations():
    """How often the device was told to deregister a region since this was asked last."""
    return sum("DEREG_MR(" in line for line in emulator.send({"command": "trace", "device": main.number})["lines"])


def meanwhile(verb, exporter, verb_later=0, exporter_later=0):
    """Calls a verb, and has the exporter do something at the same time, each somewhat later; returns the result of the verb, and how
    many seconds each took.
    """
    receiver, sender = os.pipe()
    # A process, as what the library does keeps other threads of Python waiting. The child needs none of these.
    if not os.fork():
        with contextlib.suppress(BaseException):
            time.sleep(exporter_later)
            os.write(sender, json.dumps(timed(exporter)[1]).encode())
        os._exit(0)
    os.close(sender)
    time.sleep(verb_later)
    result, taken = timed(verb)
    with open(receiver, "rb") as stream:
        return result, taken, json.loads(stream.read() or "null")


def timed(action):
    """What it returns, and the seconds that it took."""
    begin = time.monotonic()
    result = action()
    return result, time.monotonic() - begin


def renew():
    """Opens the device again, which has lost what this program had of it."""
    global side
    side.context.close()
    main.settle()
    side = Remote()


def rebind(**limits):
    """Has the driver begin anew with a device that is good but for what it announces."""
    side.context.close()
    main.clear()
    main.set(**limits)
    main.rebind()
    main.settle()
    renew()


suite = Suite()
side = server = main = None


@suite.case("what is told of it: the file p2p, and the device of the host")
def told():
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


@suite.case("the BAR is one page for the device, and a part of it as large ones as can be")
def pages():
    with Setup() as setup:
        equal(page_sizes()[-1], setup.size, "the size of a page")
        part = DmaBufMR(side.pd, setup.size - 4096, ACCESS, dmabuf=setup.fd, offset=4096)
        equal(page_sizes()[-1], setup.size, "the size of a page of all but the first 4 KiB")
        part.close()


@suite.case("its program uses it, too, until it is taken back")
def local():
    with Setup() as setup, borrowed(setup.region):
        peer = {**server.open(), "address": 0}
        server.know(gid=side.open()["gid"])
        peer["address"] = server.where()
        setup.exporter.memory[:BLOCK] = contents.noise(7, BLOCK)
        side.send(peer, "write", [(0, BLOCK)])
        side.sent()
        equal(server.peek(offset=0, length=BLOCK), contents.noise(7, BLOCK).hex(), "what is written from the BAR")
        side.send(peer, "read", [(MIB, BLOCK)])
        side.sent()
        equal(bar(MIB, BLOCK) == contents.noise(7, BLOCK), True, "that the BAR has what is read into it")
        setup.exporter.enable(False)
        for operation in ("write", "read"):
            side.send(peer, operation, [(2 * MIB, BLOCK)])
            equal(side.statuses(1), [REFUSED_LOCALLY], f"status of a {operation} after that")


@suite.case("taken back before it is registered")
def before():
    with Setup(register=False) as setup:
        setup.exporter.enable(False)
        equal(errno_of(setup.register), "ENODEV", "registration")
        setup.exporter.enable(True)
        setup.register()
        setup.works()


@suite.case("taken back after it was registered: the key is dead, and the region can be deregistered")
def after():
    with Setup() as setup:
        setup.works()
        regions, errors = main.held()["mr"], main.counter("cmds_err")
        setup.exporter.enable(False)
        equal(main.held()["mr"], regions - 1, "regions that the device has")
        setup.is_dead()
        setup.exporter.enable(True)
        setup.is_dead()
        deregistrations()
        # It may have the old one's key.
        old = setup.region
        setup.register()
        setup.works()
        old.close()
        equal(deregistrations(), 0, "regions that the device was told to deregister")
        setup.works()
        equal(main.counter("cmds_err"), errors, "commands that have failed")


@suite.case("taken back while it is registered")
def during():
    with Setup(register=False) as setup:
        main.inject({"opcode": "REG_MR"}, {"delay_ms": SLOW_MS}, times=1)
        result, _, waited = meanwhile(lambda: errno_of(setup.register), setup.switch_off, exporter_later=HEAD_START)
        equal((result, waited > ENOUGH), ("ok", True), f"registration, and that the exporter waits, which it did for {waited:.2f} s")
        setup.is_dead()


@suite.case("taken back while it is deregistered: the device is told once")
def while_deregistered():
    with Setup() as setup:
        main.inject({"opcode": "DEREG_MR"}, {"delay_ms": SLOW_MS}, times=1)
        deregistrations()
        _, _, waited = meanwhile(setup.deregister, setup.switch_off, exporter_later=HEAD_START)
        equal((deregistrations(), waited > ENOUGH), (1, True), f"how often it is told, and that the exporter waits: {waited:.2f} s")


@suite.case("deregistered while it is taken back: the device is told once")
def while_revoked():
    with Setup() as setup:
        main.inject({"opcode": "DEREG_MR"}, {"delay_ms": SLOW_MS}, times=1)
        deregistrations()
        _, waited, _ = meanwhile(setup.deregister, setup.switch_off, verb_later=HEAD_START)
        equal((deregistrations(), waited > ENOUGH), (1, True), f"how often it is told, and that the program waits: {waited:.2f} s")


@suite.case("taken back at any time")
def any_time():
    outcomes = set()
    with Setup(register=False) as setup:
        regions = main.held()["mr"]
        for number in range(ROUNDS):
            later = {"verb_later": random.uniform(0, CHANCE), "exporter_later": random.uniform(0, CHANCE)}
            result, _, _ = meanwhile(lambda: errno_of(setup.register), setup.switch_off, **later)
            outcomes.add(result)
            if result == "ok":
                setup.is_dead()
                setup.deregister()
            equal(main.held()["mr"], regions, f"round {number}: regions that the device has")
            setup.exporter.enable(True)
    equal(outcomes, {"ok", "ENODEV"}, "how registrations end")


def taken_back_by_force(fault, reason):
    """A device that does not let go of memory is stopped before the memory goes."""
    rebind(admin_timeout=ADMIN_TIMEOUT)
    with Setup() as setup:
        resets = main.resets()
        main.inject({"opcode": "DEREG_MR"}, fault)
        server.start("storm", peer=setup.peer, room=setup.size)
        time.sleep(0.3)
        setup.exporter.enable(False)
        stays_as_it_is(setup)
        equal(main.resets(), resets | {reason: resets[reason] + 1, "all": resets["all"] + 1}, "resets")
        setup.deregister()
    rebind()


@suite.case("a device that refuses to let go of it is reset")
def refused():
    taken_back_by_force({"status": "UNKNOWN_ERROR"}, "memory_held")


@suite.case("a device that does not answer is reset")
def unanswered():
    taken_back_by_force({"silence": True}, "command_timeout")


@suite.case("taken back after a registration that was not answered")
def unknown():
    rebind(admin_timeout=ADMIN_TIMEOUT)
    with Setup(register=False) as setup:
        main.inject({"opcode": "REG_MR"}, {"silence": True}, times=1)
        result, _, waited = meanwhile(lambda: errno_of(setup.register), setup.switch_off, exporter_later=HEAD_START)
        equal((result, waited < STOPPED), ("ETIME", True), f"registration, and that the exporter goes on, after {waited:.2f} s")
        wait_until(lambda: main.status()["state"] == "up", "the device is back")
    rebind()


def stays_as_it_is(setup):
    """From here on nothing is written to the BAR, whatever is on its way; returns the statuses of writes that have failed."""
    found = bar(0, setup.size)
    result = server.result()
    equal(bar(0, setup.size) == found, True, "that nothing is written any more")
    equal((result["good"] > 0, bool(result["bad"])), (True, True), "that there were good writes, and then bad ones")
    return result["bad"]


def taken_back_under_load(action):
    with Setup() as setup:
        server.start("storm", peer=setup.peer, room=setup.size)
        time.sleep(0.3)
        action(setup.exporter)
        equal(stays_as_it_is(setup), [REFUSED], "statuses of writes that have failed")
        setup.deregister()
    equal(main.state()["protocol_errors"], 0, "protocol errors")


def unplug(_):
    """Has the slot's button pressed, whereupon Linux waits for 5 s."""
    with Monitor() as monitor:
        monitor.execute("device_del", id="memory-device")
        wait_until(lambda: not vfio.find(), "the device is gone")
        wait_until(lambda: "memory-device" not in names(monitor), "QEMU has deleted it")


def names(monitor):
    return [child["name"] for child in monitor.execute("qom-list", path="/machine/peripheral")]


for what, action in {
    "the BAR is switched off": lambda exporter: exporter.enable(False),
    "its device is reset": vfio.Exporter.reset,
    "its exporter ends": vfio.Exporter.end,
    "its device is unbound": lambda _: vfio.unbind(),
}.items():
    suite.add(f"taken back while data moves, as {what}", lambda action=action: taken_back_under_load(action))


@suite.case("taken back when the RDMA device is gone")
def without_device():
    with Setup() as setup:
        main.unbind()
        setup.exporter.enable(False)
        equal(main.bind(), "ok", "bind")
    renew()


@suite.case("taken back while the RDMA device dies")
def while_it_dies():
    for _ in range(DEATHS):
        with Setup() as setup:
            meanwhile(lambda: main.event("FATAL_ERROR"), setup.switch_off, exporter_later=random.uniform(0, HEAD_START))
            wait_until(lambda: main.status()["state"] == "up", "the device is back")
        renew()
    with Setup() as setup:
        setup.works()


# QEMU (11.1) aborts when the same memory is plugged in again.
@suite.case("taken back while data moves, as its device is unplugged")
def unplugged():
    taken_back_under_load(unplug)


@suite.case("nothing is left behind")
def left_behind():
    side.context.close()
    wait_until(lambda: not main.held(), "the device has nothing left")
    equal(main.state()["protocol_errors"], 0, "protocol errors")


def main_program():
    global side, server, main
    main = any_function()
    # That it forks while it has threads.
    warnings.simplefilter("ignore", DeprecationWarning)
    vfio.load()
    with guests.Process(1, [Path(__file__).resolve(), "serve"], contents.PORT) as serving:
        serving.await_ready()
        side, server = Remote(), Server(guests.name(1))
        suite.run()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        contents.serve(Remote())
        sys.exit()
    guests.lead(main_program)
