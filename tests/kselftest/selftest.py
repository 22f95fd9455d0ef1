# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Common code of the test programs in Python: KTAP output, EFA devices in sysfs, the kernel's log, the emulator."""

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

# Test cases to run: a pattern like those of file names.
CASES = os.environ.get("EFA_CASES") or "*"

# Seed of all random choices. Every program prints it.
SEED = os.environ.get("EFA_SEED") or "1"

# Exit codes are those of the kernel's selftests.
KSFT_PASS, KSFT_FAIL, KSFT_SKIP = 0, 1, 4

LOG_ERROR = 3

# The number of write() in /proc/PID/syscall.
SYSCALL_WRITE = "1" if os.uname().machine == "x86_64" else "64"

# Reasons for which the driver resets a device in use.
REASONS = ("fatal_error", "command_timeout", "keep_alive", "register_timeout", "requested", "memory_held")


class Skipped(Exception):
    """Reason for which a test case can't run here."""


def udev_settles():
    """Waits until udev has handled all events. udevadm is repeated, as it fails if udev closes the connection before its write."""
    wait_until(lambda: not subprocess.run(["udevadm", "settle"], check=False).returncode, "udev has handled all events")


def name_of_driver():
    """`rust`, or `c` for any other EFA driver."""
    name = os.environ.get("EFA_DRIVER")
    if not name:
        command = ["modinfo", "-F", "author", os.environ.get("EFA_KO") or "efa"]
        try:
            author = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except OSError:
            # There is no modinfo, or a folder of PATH can't be read.
            author = ""
        name = "rust" if "efa-rs" in author else "c"
    return name


DRIVER = name_of_driver()


class Suite:
    """The test cases of a program, in order."""

    def __init__(self):
        self.cases = []
        self.differences = dict(self.read_differences())

    @staticmethod
    def read_differences():
        """Yields the test cases of this program in differences.md, with the driver's results."""
        for line in (FOLDER / "differences.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) == 7 and cells[1] == PROGRAM:
                yield cells[2], cells[4 if DRIVER == "rust" else 3]

    def add(self, name, function, wanted="", needs_emulator=True):
        """Adds a test case. It passes if `function` returns the text `wanted`. None equals the empty text."""
        self.cases.append((name, function, self.differences.pop(name, wanted), needs_emulator))

    def add_for(self, spec, name, function, wanted="", needs_emulator=True):
        """Adds a test case for the device with this line in the file `devices`, which is the argument of `function`."""
        device = function_with(spec)

        def run():
            if not device:
                raise Skipped("there is no such device")
            if needs_emulator and not emulator:
                raise Skipped("needs the emulator")
            return function(device)

        self.add(f"{spec.removeprefix('profile=')}: {name}", run, wanted, needs_emulator=False)

    def case(self, name, wanted="", needs_emulator=True):
        """Decorator that adds a function as a test case."""

        def decorator(function):
            self.add(name, function, wanted, needs_emulator)
            return function

        return decorator

    def run(self, before=None, after=None):
        """Runs all test cases, or those that match EFA_CASES, and ends the program. `before` and `after` are called around each."""
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
            print(f"# differences.md has the unknown test case '{name}'")
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
    """Ends a program that has no test case that can run here."""
    print(f"KTAP version 1\n1..0 # SKIP {why}")
    sys.exit(KSFT_SKIP)


def equal(got, wanted, what):
    """Fails if the two differ."""
    if got != wanted:
        raise Failed(f"{what}: got {got}, wanted {wanted}")


def errno_name(number):
    """Returns the name of an errno. If there are two names, this is the name that the kernel uses."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode[number]


def first_line(file):
    """Returns the first line of a file, or an empty text if it can't be read."""
    try:
        with open(file) as lines:
            return lines.readline().rstrip("\n")
    except OSError:
        return ""


def result_of(action, *arguments):
    """Runs an action; returns `ok`, or the name of the errno with which it fails."""
    try:
        action(*arguments)
    except OSError as error:
        return errno_name(error.errno)
    return "ok"


def output_of(*command):
    """Runs a program and returns its output; skips the test case if there is no such program, and fails with its error output."""
    if not shutil.which(command[0]):
        raise Skipped(f"needs the program {command[0]}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def forked(action, *arguments):
    """Runs an action in a new process, which then ends; returns the process id. The exit status is 1 if the action fails."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        action(*arguments)
        status = 0
    except BaseException as error:
        print(f"# {type(error).__name__}: {error}", flush=True)
    os._exit(status)


def free_memory():
    """Returns the memory that the kernel does not use itself, in KiB. Includes free pages in the lists of each CPU: up to tens of
    MiB."""
    with open("/proc/meminfo") as file:
        fields = {name: int(value) for name, value, *_ in map(str.split, file)}
    with open("/proc/zoneinfo") as file:
        listed = sum(int(line.split()[1]) for line in file if line.split()[:1] == ["count:"])
    free = sum(fields[name] for name in ("MemFree:", "Cached:", "Buffers:", "SReclaimable:", "AnonPages:"))
    return free - fields["Shmem:"] + listed * mmap.PAGESIZE // 1024


def chance(name):
    """Returns a random generator with choices that depend on this name and EFA_SEED only."""
    return random.Random(f"{SEED} {name}")


def blocked(thread):
    """Whether a thread of this process waits in write()."""
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
        """Opens the port, or reopens an open one: a suspend of the guest closes it at the other end."""
        self.close()
        self.fd = os.open(self.port, os.O_RDWR | os.O_CLOEXEC)

    def close(self):
        """Closes the port, so that others can open it. Only one process and its children can have it open."""
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None

    def ask(self, request):
        """Sends the text of a request and returns the text of the reply, both without a newline."""
        os.write(self.fd, request.encode() + b"\n")
        reply = b""
        while not reply.endswith(b"\n"):
            reply += os.read(self.fd, 4096)
        return reply.decode().removesuffix("\n")

    def send(self, request):
        """Sends a request and returns the contents of the reply; fails if the reply is an error."""
        reply = json.loads(self.ask(json.dumps(request)))
        if "ok" not in reply:
            raise Failed(f"the emulator replies {reply} to {request}")
        return reply["ok"]


emulator: Any = Emulator(CONTROL_PORT) if os.path.exists(CONTROL_PORT) else None


# Seconds: longer than the longest tick of a kernel, that of 100 Hz.
TICK = 0.011

# A reset by the driver in the emulator's trace, with its reason.
RESET = re.compile("reset ([A-Z_]+)$")


class Function:
    """A PCI function that is an EFA device. `number` is its number in the emulator."""

    def __init__(self, address, number=None):
        self.address = address
        self.number = number
        self.sysfs = Path("/sys/bus/pci/devices") / address
        self.old_protocol_errors = 0

    @property
    def generation(self):
        """Generation of the device, such as `efa2`: its PCI device id in hexadecimal."""
        return first_line(self.sysfs / "device").removeprefix("0x")

    @property
    def is_bound(self):
        return (SYSFS_DRIVER / self.address).exists()

    def bind(self):
        """Binds the device to the driver and returns `ok` or the name of the errno."""
        return result_of(self.write, "bind")

    def unbind(self):
        """Unbinds the device and returns `ok` or the name of the errno."""
        return result_of(self.write, "unbind")

    def write(self, file):
        fd = os.open(SYSFS_DRIVER / file, os.O_WRONLY)
        try:
            os.write(fd, self.address.encode())
        finally:
            os.close(fd)

    def rebind(self):
        """Unbinds the device if it is bound, then binds it; fails if either fails."""
        if self.is_bound:
            equal(self.unbind(), "ok", "unbind")
        equal(self.bind(), "ok", "bind")

    def names(self, kind):
        """Returns the names of its devices of a class, such as `infiniband`."""
        try:
            return os.listdir(self.sysfs / kind)
        except FileNotFoundError:
            return []

    @property
    def rdma(self):
        """Folder of its RDMA device in sysfs. udev may rename the device shortly after a bind."""
        names = self.names("infiniband")
        equal(len(names), 1, f"RDMA devices of {self.address}")
        return self.sysfs / "infiniband" / names[0]

    @property
    def port(self):
        """Folder of its port in sysfs."""
        return self.rdma / "ports/1"

    def read_gid(self):
        """Returns its GID as bytes."""
        return bytes.fromhex((self.port / "gids/0").read_text().strip().replace(":", ""))

    def interrupts(self):
        """Returns the number of each of its interrupts, and the name without the common part, in order."""
        with open("/proc/interrupts") as file:
            found = [line.split() for line in file if line.rstrip().endswith("@pci:" + self.address)]
        return [(int(words[0].rstrip(":")), words[-1].partition("@")[0]) for words in found]

    def bars(self):
        """Returns the addresses of each of its BARs, and whether the driver has reserved it."""
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
        """Waits until it is registered and udev has created its device node; returns the path."""

        def found():
            return [path for name in self.names("infiniband_verbs") if os.path.exists(path := f"/dev/infiniband/{name}")]

        return wait_until(found, f"the device node of {self.address}")[0]

    def settle(self):
        """Waits until the device can be opened, and udev has renamed it."""
        self.uverbs()
        if shutil.which("udevadm"):
            udev_settles()
        self.uverbs()

    def counter(self, name, port=False):
        """Returns the current value of a hardware counter, or the name of the errno with which the read fails."""
        folder = "ports/1/hw_counters" if port else "hw_counters"

        def read():
            for ib_device in self.names("infiniband"):
                counters = self.sysfs / "infiniband" / ib_device / folder
                try:
                    # Avoids cached values. Without a wait, values that were read in this tick would still be cached.
                    usual = (counters / "lifespan").read_text()
                    (counters / "lifespan").write_text("0")
                    time.sleep(TICK)
                    try:
                        return [int((counters / name).read_text())]
                    finally:
                        # The device may have been removed. The read reports the reason.
                        with contextlib.suppress(OSError):
                            (counters / "lifespan").write_text(usual)
                except FileNotFoundError:
                    # udev has renamed the device.
                    continue
                except OSError as error:
                    return [errno_name(error.errno)]

        return wait_until(read, f"there is a counter {name}")[0]

    def resets(self):
        """Returns how often the driver has reset the device in use, for each reason and in total."""
        counts = {reason: self.counter(f"resets_{reason}") for reason in REASONS}
        return counts | {"all": self.counter("resets")}

    def status(self):
        """Returns the driver's state of the device in debugfs, as texts by name."""
        lines = (DEBUGFS / self.address / "state").read_text().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    def die(self, **how):
        """Makes the device fail until it is reset."""
        emulator.send({"command": "die", "device": self.number, **how})

    def has_recovered(self, session):
        """Whether it is up again after a session."""
        status = self.status()
        return status.get("state") == "up" and status["session"] != session

    def die_and_recover(self):
        """Makes the device fail, and waits until the driver has recovered it."""
        session = self.status()["session"]
        self.die()
        wait_until(lambda: self.has_recovered(session), "the device has recovered")

    def leftovers(self):
        """Returns resources that the driver should have released once the device is unbound."""
        found = [f"{kind} {name}" for kind in ("infiniband", "infiniband_verbs", "msi_irqs") for name in self.names(kind)]
        found += [f"interrupt {name}" for _, name in self.interrupts()]
        found += [f"BAR {place}" for place, is_reserved in self.bars() if is_reserved]
        if (self.sysfs / "enable").read_text().strip() != "0":
            found.append("the PCI function is enabled")
        return found

    # State and faults of the device in the emulator.

    def state(self):
        return emulator.send({"command": "state", "device": self.number})

    def forget_protocol_errors(self):
        """Excludes protocol errors up to now, which other programs may have caused."""
        self.old_protocol_errors = self.state()["protocol_errors"]

    def protocol_errors(self):
        """Returns the number of protocol errors of the driver since this program chose the device."""
        return self.state()["protocol_errors"] - self.old_protocol_errors

    def trace(self):
        """Returns the lines of the emulator's trace since the last call. The first call starts it."""
        trace = emulator.send({"command": "trace", "device": self.number})
        equal(trace["lost"], 0, "lost lines of the emulator's trace")
        return trace["lines"]

    @contextlib.contextmanager
    def resets_meanwhile(self):
        """Yields a list that has, after the block, the reasons of the driver's resets in the block."""
        found = []
        self.trace()
        yield found
        found += [match[1] for line in self.trace() if (match := RESET.match(line))]

    def withheld(self):
        """Returns the number of withheld completions by name."""
        return self.state()["held"]

    def release(self, name, **count):
        """Releases completions that are withheld under a name: all, or the COUNT oldest ones."""
        emulator.send({"command": "release", "device": self.number, "name": name, **count})

    def held(self):
        """Returns the number of programs' objects in the device, by kind."""
        return {name: count for name, count in self.state()["resources"].items() if count and name != "eq"}

    def inject(self, when, then, **how_often):
        emulator.send({"command": "inject", "device": self.number, "rule": {"when": when, "then": then, **how_often}})

    def set(self, **values):
        emulator.send({"command": "set", "device": self.number, "set": values})

    def event(self, group, syndrome=0, **how):
        emulator.send({"command": "event", "device": self.number, "group": group, "syndrome": syndrome, **how})

    def peek(self, queue, offset, length):
        """Returns bytes of a queue, such as {"cq": 1}, as read by the device."""
        request = {"command": "peek", "device": self.number, "queue": queue, "offset": offset, "length": length}
        return bytes(emulator.send(request)["data"])

    def poke(self, queue, offset, data):
        emulator.send({"command": "poke", "device": self.number, "queue": queue, "offset": offset, "data": list(data)})

    def notify(self, cq, **event_queue):
        """Makes the device raise an event for a completion queue."""
        emulator.send({"command": "notify", "device": self.number, "cq": cq, **event_queue})

    def clear(self):
        emulator.send({"command": "clear", "device": self.number})


def functions():
    """Yields all EFA devices, in the order of their addresses, which is that of the emulator's devices."""
    number = 0
    for sysfs in sorted(Path("/sys/bus/pci/devices").glob("*")):
        if (sysfs / "vendor").read_text() == "0x1d0f\n" and (sysfs / "device").read_text().startswith("0xefa"):
            yield Function(sysfs.name, number if emulator else None)
            number += 1


FUNCTIONS = list(functions())


def any_function():
    """Returns the device that most tests use: the first one of the emulator, or the first one that is bound.

    Clears faults of an emulated device that an earlier program has left behind.
    """
    found = FUNCTIONS[:1] if emulator else [function for function in FUNCTIONS if function.is_bound][:1]
    if not found:
        skip_all("there is no EFA device that is bound to the driver")
    if emulator:
        found[0].clear()
        found[0].forget_protocol_errors()
    return found[0]


def function_with(spec):
    """Returns the emulated device with this line in the file `devices`, or None. Without the emulator, only lines without further
    attributes have a device: the first one of their generation.
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
    """The kernel's log from now on."""

    def __init__(self):
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self.fd, 0, os.SEEK_END)

    def records(self):
        """Yields level and text of new lines."""
        while True:
            try:
                record = os.read(self.fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:
                # Some lines were overwritten before they were read.
                continue
            head, _, text = record.partition(";")
            yield int(head.split(",")[0]) & 7, text.split("\n")[0]

    def driver_errors(self, function):
        """Returns the driver's new error messages about a device."""
        # The driver core adds its own line for each failed probe.
        return [
            text for level, text in self.records() if level <= LOG_ERROR and function.address in text and "probe with driver" not in text
        ]
