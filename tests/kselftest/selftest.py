# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What the test programs written in Python share: KTAP output, EFA devices in sysfs, the kernel's log, the emulator."""

import contextlib
import errno
import fnmatch
import json
import mmap
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from patience import PATIENCE, SLOW, Failed, wait_until  # noqa: F401

FOLDER = Path(__file__).resolve().parent
PROGRAM = Path(sys.argv[0]).stem
SYSFS_DRIVER = Path("/sys/bus/pci/drivers/efa")
CONTROL_PORT = os.environ.get("EFA_CONTROL_PORT", "/dev/virtio-ports/efa-emu.control")
DEBUGFS = Path("/sys/kernel/debug/efa")

# Which test cases to run: a pattern as of file names.
CASES = os.environ.get("EFA_CASES") or "*"

# What all random choices follow from, which every program prints.
SEED = os.environ.get("EFA_SEED") or "1"

# Exit codes are those of the kernel's selftests.
KSFT_PASS, KSFT_FAIL, KSFT_SKIP = 0, 1, 4

LOG_ERROR = 3

# The number of write() in /proc/PID/syscall.
SYSCALL_WRITE = "1" if os.uname().machine == "x86_64" else "64"

# Why the driver resets a device that is in use.
REASONS = ("fatal_error", "command_timeout", "keep_alive", "register_timeout", "requested", "memory_held")
# The statuses with which a device can refuse a command, and what they mean to a process.
STATUSES = {
    "RESOURCE_ALLOCATION_FAILURE": "ENOMEM",
    "BAD_OPCODE": "EINVAL",
    "UNSUPPORTED_OPCODE": "EOPNOTSUPP",
    "MALFORMED_REQUEST": "EINVAL",
    "ILLEGAL_PARAMETER": "EINVAL",
    "UNKNOWN_ERROR": "EINVAL",
    "RESOURCE_BUSY": "EINVAL",
    200: "EINVAL",
}


class Skipped(Exception):
    """A test case can't run here; says why."""


def udev_settles():
    """Waits until udev has handled all events. udevadm fails if udev closes its connection before it has written to it."""
    wait_until(lambda: not subprocess.run(["udevadm", "settle"], check=False).returncode, "udev has handled all events")


def name_of_driver():
    """`rust`, or `c` for any other EFA driver."""
    name = os.environ.get("EFA_DRIVER")
    if not name:
        command = ["modinfo", "-F", "author", os.environ.get("EFA_KO") or "efa"]
        try:
            author = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except FileNotFoundError:
            author = ""
        name = "rust" if "efa-rs" in author else "c"
    return name


DRIVER = name_of_driver()


class Suite:
    """The test cases of a program, in their order."""

    def __init__(self):
        self.cases = []
        self.differences = dict(self.read_differences())

    @staticmethod
    def read_differences():
        """From differences.md: the test cases of this program with the driver's own results."""
        for line in (FOLDER / "differences.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) == 7 and cells[1] == PROGRAM:
                yield cells[2], cells[4 if DRIVER == "rust" else 3]

    def add(self, name, function, wanted="", needs_emulator=True):
        """Adds a test case. It passes if `function` returns what is wanted, as text; nothing is the empty text."""
        self.cases.append((name, function, self.differences.pop(name, wanted), needs_emulator))

    def add_for(self, spec, name, function, wanted="", needs_emulator=True):
        """Adds a test case of the device that has this line in the file `devices`; `function` gets that."""
        device = function_with(spec)

        def run():
            if not device:
                raise Skipped("there is no such device")
            if needs_emulator and not emulator:
                raise Skipped("needs the emulator")
            return function(device)

        self.add(f"{spec.removeprefix('profile=')}: {name}", run, wanted, needs_emulator=False)

    def case(self, name, wanted="", needs_emulator=True):
        """Makes a test case of a function."""

        def decorator(function):
            self.add(name, function, wanted, needs_emulator)
            return function

        return decorator

    def run(self, before=None, after=None):
        """Runs all test cases, or those that EFA_CASES names, and ends the program. `before` and `after` are called around each."""
        counts = {"pass": 0, "fail": 0, "skip": 0}
        cases = [case for case in self.cases if fnmatch.fnmatchcase(case[0], CASES)]
        if not cases:
            skip_all(f"no test case is named {CASES}")
        print(f"KTAP version 1\n1..{len(cases)}\n# EFA_SEED={SEED}", flush=True)
        for number, (name, function, wanted, needs_emulator) in enumerate(cases, 1):
            try:
                if needs_emulator and not emulator:
                    raise Skipped("needs the emulator")
                result = self.attempt(function, before, after)
                if result != wanted:
                    raise Failed(f"got '{result}', wanted '{wanted}'")
                counts["pass"] += 1
                line = f"ok {number} {name}"
            except Skipped as why:
                counts["skip"] += 1
                line = f"ok {number} {name} # SKIP {why}"
            except Exception as error:
                counts["fail"] += 1
                what = error if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
                print(f"# {name}: {what}".replace("\n", "\n# "))
                line = f"not ok {number} {name}"
            print(line, flush=True)
        print("# Totals: " + " ".join(f"{name}:{count}" for name, count in counts.items()))
        for name in self.differences:
            print(f"# differences.md has '{name}', which is no test case")
        if counts["fail"] or self.differences:
            sys.exit(KSFT_FAIL)
        sys.exit(KSFT_SKIP if counts["skip"] == len(cases) else KSFT_PASS)

    @staticmethod
    def attempt(function, before, after):
        if before:
            before()
        try:
            result = function()
            return "" if result is None else str(result)
        finally:
            if after:
                after()


def skip_all(why) -> NoReturn:
    """Ends a program none of whose test cases can run."""
    print(f"KTAP version 1\n1..0 # SKIP {why}")
    sys.exit(KSFT_SKIP)


def equal(got, wanted, what):
    """Fails if the two differ."""
    if got != wanted:
        raise Failed(f"{what}: got {got}, wanted {wanted}")


def errno_name(number):
    """The name of an errno; where there are two, the one that the kernel uses."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode[number]


def first_line(file):
    """The first line of a file; nothing if it can't be read."""
    try:
        with open(file) as lines:
            return lines.readline().rstrip("\n")
    except OSError:
        return ""


def result_of(action, *arguments):
    """`ok`, or the name of the errno with which the action fails."""
    try:
        action(*arguments)
    except OSError as error:
        return errno_name(error.errno)
    return "ok"


def free_memory():
    """Memory that the kernel does not need for itself, in KiB. That includes pages that wait in a CPU's own list: up to tens of
    MiB."""
    with open("/proc/meminfo") as file:
        fields = {name: int(value) for name, value, *_ in map(str.split, file)}
    with open("/proc/zoneinfo") as file:
        listed = sum(int(line.split()[1]) for line in file if line.split()[:1] == ["count:"])
    free = sum(fields[name] for name in ("MemFree:", "Cached:", "Buffers:", "SReclaimable:", "AnonPages:"))
    return free - fields["Shmem:"] + listed * mmap.PAGESIZE // 1024


def chance(name):
    """Makes random choices, the same ones each time for this name and EFA_SEED."""
    return random.Random(f"{SEED} {name}")


def blocked(thread):
    """Whether the kernel has a thread of this process wait in write()."""
    return first_line(f"/proc/self/task/{thread.native_id}/syscall").partition(" ")[0] == SYSCALL_WRITE


class Emulator:
    """The control port of the emulator."""

    def __init__(self, port):
        self.port = port
        self.fd: Any = None
        self.open()
        lines = (FOLDER / "devices").read_text().splitlines()
        self.specs = [line for line in lines if line and not line.startswith("#")]

    def open(self):
        """Opens the port, again if it is open: a suspend of the guest closes it at the other end."""
        self.close()
        self.fd = os.open(self.port, os.O_RDWR | os.O_CLOEXEC)

    def close(self):
        """Lets others open it: one process can have it open, and what that has started."""
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None

    def ask(self, request):
        """Sends the text of a request and returns that of the reply, without the ends of the lines."""
        os.write(self.fd, request.encode() + b"\n")
        reply = b""
        while not reply.endswith(b"\n"):
            reply += os.read(self.fd, 4096)
        return reply.decode().removesuffix("\n")

    def send(self, request):
        """Sends a request and returns what is in the reply; fails if that is an error."""
        reply = json.loads(self.ask(json.dumps(request)))
        if "ok" not in reply:
            raise Failed(f"the emulator replies {reply} to {request}")
        return reply["ok"]


emulator: Any = Emulator(CONTROL_PORT) if os.path.exists(CONTROL_PORT) else None


# Seconds that are more than the longest tick of a kernel, of 100 Hz.
TICK = 0.011

# A reset by the driver in the emulator's trace, with its reason.
RESET = re.compile("reset ([A-Z_]+)$")


class Function:
    """A PCI function that is an EFA device. `number` is the emulator's number of it."""

    def __init__(self, address, number=None):
        self.address = address
        self.number = number
        self.sysfs = Path("/sys/bus/pci/devices") / address
        self.old_protocol_errors = 0

    @property
    def generation(self):
        """Such as `efa2`, which is what its PCI device id looks like."""
        return first_line(self.sysfs / "device").removeprefix("0x")

    @property
    def is_bound(self):
        return (SYSFS_DRIVER / self.address).exists()

    def bind(self):
        """Binds it to the driver and returns `ok` or the name of the errno."""
        return result_of(self.write, "bind")

    def unbind(self):
        """Unbinds it and returns `ok` or the name of the errno."""
        return result_of(self.write, "unbind")

    def write(self, file):
        fd = os.open(SYSFS_DRIVER / file, os.O_WRONLY)
        try:
            os.write(fd, self.address.encode())
        finally:
            os.close(fd)

    def rebind(self):
        """Unbinds it if it is bound, then binds it; fails if that fails."""
        if self.is_bound:
            equal(self.unbind(), "ok", "unbind")
        equal(self.bind(), "ok", "bind")

    def names(self, kind):
        """The names of its devices of a class, such as `infiniband`."""
        try:
            return os.listdir(self.sysfs / kind)
        except FileNotFoundError:
            return []

    @property
    def rdma(self):
        """The folder of its RDMA device. udev may change the name shortly after a bind."""
        names = self.names("infiniband")
        equal(len(names), 1, f"RDMA devices of {self.address}")
        return self.sysfs / "infiniband" / names[0]

    @property
    def port(self):
        """The folder of its port."""
        return self.rdma / "ports/1"

    def interrupts(self):
        """The number of each of its interrupts, and the name without the part that all have, in their order."""
        with open("/proc/interrupts") as file:
            found = [line.split() for line in file if line.rstrip().endswith("@pci:" + self.address)]
        return [(int(words[0].rstrip(":")), words[-1].partition("@")[0]) for words in found]

    def bars(self):
        """Where each of its BARs is, and whether the driver has reserved it."""
        found, name = [], None
        with open("/proc/iomem") as file:
            for line in file:
                before = name
                place, _, name = line.strip().partition(" : ")
                if name == self.address:
                    found.append((place, False))
                elif name == "efa" and before == self.address:
                    found[-1] = (found[-1][0], True)
        return found

    def uverbs(self):
        """The path of its device node; waits until udev has made it."""
        (name,) = self.names("infiniband_verbs")
        path = f"/dev/infiniband/{name}"
        wait_until(lambda: os.path.exists(path), path)
        return path

    def settle(self):
        """Waits until it can be opened, and udev has given it its name."""
        wait_until(lambda: self.names("infiniband") and self.names("infiniband_verbs"), f"the RDMA device of {self.address}")
        if shutil.which("udevadm"):
            udev_settles()
        self.uverbs()

    def counter(self, name, port=False):
        """A hardware counter as it is now, or the name of the errno with which reading it fails."""
        folder = "ports/1/hw_counters" if port else "hw_counters"

        def read():
            for ib_device in self.names("infiniband"):
                counters = self.sysfs / "infiniband" / ib_device / folder
                try:
                    # Nothing read before is to be shown again, which what was read in this tick would be.
                    usual = (counters / "lifespan").read_text()
                    (counters / "lifespan").write_text("0")
                    time.sleep(TICK)
                    try:
                        return [int((counters / name).read_text())]
                    finally:
                        # The device may have gone, of which the read has the reason.
                        with contextlib.suppress(OSError):
                            (counters / "lifespan").write_text(usual)
                except FileNotFoundError:
                    # udev has changed the name.
                    continue
                except OSError as error:
                    return [errno_name(error.errno)]

        return wait_until(read, f"there is a counter {name}")[0]

    def resets(self):
        """How often the driver has reset it in use, for each reason and in all."""
        counts = {reason: self.counter(f"resets_{reason}") for reason in REASONS}
        return counts | {"all": self.counter("resets")}

    def status(self):
        """What the driver shows of it, as texts by name."""
        lines = (DEBUGFS / self.address / "state").read_text().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    def die(self, **how):
        """It dies, until it is reset."""
        emulator.send({"command": "die", "device": self.number, **how})

    def die_and_recover(self):
        """It dies, and the driver has it back."""
        before = self.status()["session"]

        def is_back():
            status = self.status()
            return status["state"] == "up" and status["session"] != before

        self.die()
        wait_until(is_back, "the device is back")

    def leftovers(self):
        """What the driver should not have any more once the device is unbound."""
        found = [f"{kind} {name}" for kind in ("infiniband", "infiniband_verbs", "msi_irqs") for name in self.names(kind)]
        found += [f"interrupt {name}" for _, name in self.interrupts()]
        found += [f"BAR {place}" for place, is_reserved in self.bars() if is_reserved]
        if (self.sysfs / "enable").read_text().strip() != "0":
            found.append("the PCI function is enabled")
        return found

    # What the emulator knows of it and can do to it.

    def state(self):
        return emulator.send({"command": "state", "device": self.number})

    def forget_protocol_errors(self):
        """Does not count those up to now, which other programs may have provoked."""
        self.old_protocol_errors = self.state()["protocol_errors"]

    def protocol_errors(self):
        """How often the driver has broken the rules of the interface since this program chose the device."""
        return self.state()["protocol_errors"] - self.old_protocol_errors

    def trace(self):
        """What it did since this was called before."""
        return emulator.send({"command": "trace", "device": self.number})["lines"]

    @contextlib.contextmanager
    def resets_meanwhile(self):
        """Gives a list that has, after the block, the reasons of the driver's resets in it."""
        found = []
        self.trace()
        yield found
        found += [match[1] for line in self.trace() if (match := RESET.match(line))]

    def withheld(self):
        """How many completions it holds, by name."""
        return self.state()["held"]

    def release(self, name, **count):
        """Has it complete what it holds under a name: all, or the COUNT oldest ones."""
        emulator.send({"command": "release", "device": self.number, "name": name, **count})

    def held(self):
        """What programs have of it, as the device knows."""
        return {name: count for name, count in self.state()["resources"].items() if count and name != "eq"}

    def inject(self, when, then, **how_often):
        emulator.send({"command": "inject", "device": self.number, "rule": {"when": when, "then": then, **how_often}})

    def set(self, **values):
        emulator.send({"command": "set", "device": self.number, "set": values})

    def event(self, group, syndrome=0, **how):
        emulator.send({"command": "event", "device": self.number, "group": group, "syndrome": syndrome, **how})

    def peek(self, queue, offset, length):
        """What the device sees in a queue, such as {"cq": 1}."""
        request = {"command": "peek", "device": self.number, "queue": queue, "offset": offset, "length": length}
        return bytes(emulator.send(request)["data"])

    def poke(self, queue, offset, data):
        emulator.send({"command": "poke", "device": self.number, "queue": queue, "offset": offset, "data": list(data)})

    def notify(self, cq, **event_queue):
        """Has the device say that a completion queue has something new."""
        emulator.send({"command": "notify", "device": self.number, "cq": cq, **event_queue})

    def clear(self):
        emulator.send({"command": "clear", "device": self.number})


def functions():
    """All EFA devices, in the order of their addresses, which is that of the emulator's devices."""
    number = 0
    for sysfs in sorted(Path("/sys/bus/pci/devices").iterdir()):
        if (sysfs / "vendor").read_text() == "0x1d0f\n" and (sysfs / "device").read_text().startswith("0xefa"):
            yield Function(sysfs.name, number if emulator else None)
            number += 1


FUNCTIONS = list(functions())


def any_function():
    """The device that most tests use: the first one of the emulator, or the first one that is bound.

    The former does not misbehave from here on, whatever an earlier program has left behind.
    """
    found = FUNCTIONS[:1] if emulator else [function for function in FUNCTIONS if function.is_bound][:1]
    if not found:
        skip_all("there is no EFA device that is bound to the driver")
    if emulator:
        found[0].clear()
        found[0].forget_protocol_errors()
    return found[0]


def function_with(spec):
    """The emulated device that has this line in the file `devices`, or nothing. Of others, the first one of the generation that a
    line names which says no more than that.
    """
    if not emulator:
        return next((function for function in FUNCTIONS if f"profile={function.generation}" == spec), None)
    if spec not in emulator.specs:
        return None
    index = emulator.specs.index(spec)
    if index >= len(FUNCTIONS):
        return None
    FUNCTIONS[index].forget_protocol_errors()
    return FUNCTIONS[index]


class KernelLog:
    """What the kernel logs from now on."""

    def __init__(self):
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self.fd, 0, os.SEEK_END)

    def records(self):
        """Yields level and text of what is new."""
        for level, _, text in self.timed_records():
            yield level, text

    def timed_records(self):
        """Yields level, time in seconds and text of what is new."""
        while True:
            try:
                record = os.read(self.fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:
                # Some were overwritten before they were read.
                continue
            head, _, text = record.partition(";")
            level, _, microseconds, *_ = head.split(",")
            yield int(level) & 7, int(microseconds) / 1e6, text.split("\n")[0]

    def driver_errors(self, function):
        """The new errors of the driver about a device."""
        # The driver core adds a line of its own to each failed probe.
        return [
            text for level, text in self.records() if level <= LOG_ERROR and function.address in text and "probe with driver" not in text
        ]
