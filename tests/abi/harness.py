# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs the cases of the differential test: each is a function of a session, and prints its result as a line `case | result`.

A result is the same text whenever the driver behaves the same. It contains errno names, fields of responses, the driver's admin
commands and error counters, and the objects that are left in the device. Numbers that the device assigns are replaced by letters in
the order of their appearance. Addresses are reduced to their offset in a page.
"""

import collections
import contextlib
import fnmatch
import functools
import os
import re
import signal
import sys
from pathlib import Path
from typing import ClassVar

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "kselftest"))

import objects
import selftest
import uverbs
from memory import PAGE
from patience import PATIENCE
from processes import children, ends, fork

COUNTERS = (
    "alloc_ucontext_err alloc_pd_err create_cq_err create_qp_err create_ah_err reg_mr_err mmap_err cmds_err no_completion_cmds"
).split()

# Kinds of numbers that the device assigns, by their names in the trace and in results.
NUMBERS = {name: name for name in ("cq", "pd", "uar", "ah", "qp_handle", "qpn", "cntr_handle", "lkey", "rkey")}
NUMBERS |= {"cq_idx": "cq", "send_cq_idx": "cq", "recv_cq_idx": "cq", "qp_num": "qpn", "l_key": "lkey", "r_key": "rkey"}
NUMBER = re.compile(rf"\b({'|'.join(NUMBERS)})=(0x[0-9a-f]+|\d+)")


# Lines of the trace that are hidden, as they do not depend on the case.
HIDDEN = re.compile(r"^aenq KEEP_ALIVE|^read |^write ")
# Suffix of a case's name in the line with the bytes of its commands, which are compared where the results are equal.
BYTES = " (bytes)"


# Input for the driver of verbs that have none: rows of name and bytes.
INPUTS = (("zeros", bytes(8)), ("a bit", b"\1" + bytes(7)), ("a late bit", bytes(63) + b"\x80"), ("64 zeros", bytes(64)))

# Rows of a single case that has no value.
ONCE = ((),)

# Kernel messages of serious problems.
TROUBLE = re.compile("BUG|WARNING|Oops|INFO")


def devices():
    """Returns the guest's devices by name, in the order of the file."""
    lines = (FOLDER / "devices").read_text().splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith("#")]
    return dict(zip(names, selftest.FUNCTIONS, strict=True))


def not_for_c():
    """Returns the cases that can't run with the C driver: differences.md has their result with it as `not run`."""
    everywhere, *others = re.split(r"^## .*?(\d+) KiB$", (FOLDER / "differences.md").read_text(), flags=re.MULTILINE)
    tables = {int(pages): text for pages, text in zip(others[::2], others[1::2], strict=True)}
    results = {}
    for line in (everywhere + tables.get(PAGE >> 10, "")).splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6:
            results[cells[1]] = cells[2]
    return {case for case, result in results.items() if result == "not run"}


class Line(str):
    """A line of the trace, and the bytes of its command without values that vary between runs."""

    bytes = ""


def trace(function, hidden=HIDDEN):
    """Returns the device's trace since the last call, without lines that match `hidden`."""
    recent = selftest.emulator.send({"command": "trace", "device": function.number})
    if recent["lost"]:
        raise selftest.Failed(f"{recent['lost']} lines of the trace are lost")
    lines = []
    for text, its_bytes in zip(recent["lines"], recent["wire"], strict=True):
        if not hidden.search(text):
            lines.append(Line(text))
            lines[-1].bytes = its_bytes
    return lines


def ensure(*_):
    """Creates the objects that the arguments name, as a session creates some objects at their first use."""


class Session:
    """The state of a case: a device, and a context with objects that are created at their first use."""

    def __init__(self, function):
        self.function = function
        self.stack = contextlib.ExitStack()
        self.memory = []
        # True shows each command, False the number of each kind, and None neither.
        self.shows_commands: bool | None = True
        # The trace to show, the trace of prepared objects, and the expected commands that undo the latter.
        self.lines = []
        self.hidden = []
        self.to_undo = collections.Counter()

    def take(self):
        """Records the device's trace since the last call."""
        self.lines += trace(self.function)

    def prepared(self, undo, make):
        """Creates an object that most cases need. Its commands are shown only if one fails."""
        self.take()
        made = make()
        lines = trace(self.function)
        if all(" = SUCCESS" in line for line in lines):
            self.to_undo[undo] += 1
            self.hidden += lines
        else:
            self.lines += lines
        return made

    @functools.cached_property
    def context(self):
        return self.prepared("DEALLOC_UAR", self.open)

    def open(self, **options):
        """Opens another context."""
        return self.stack.enter_context(uverbs.opened(self.function, **options))

    def raw(self):
        """Opens the device without creating a context."""
        return self.stack.enter_context(uverbs.Context(self.function.uverbs()))

    @functools.cached_property
    def pd(self):
        context = self.context
        return self.prepared("DEALLOC_PD", lambda: context.alloc_pd()[0])

    def gone_pd(self):
        """Returns the handle of a protection domain that is deallocated."""
        self.context.dealloc_pd(self.pd)
        return self.pd

    @functools.cached_property
    def a_cq(self):
        context = self.context
        return self.prepared("DESTROY_CQ", lambda: self.cq(context=context))

    @functools.cached_property
    def a_qp(self):
        options = {"pd": self.pd, "send_cq": self.a_cq.handle}
        return self.prepared("DESTROY_QP", lambda: self.qp(**options))

    @functools.cached_property
    def page(self):
        return self.pages(1)

    def pages(self, count, **options):
        """Allocates memory that is kept until the end of the case."""
        self.memory.append(objects.Memory(count * PAGE, **options))
        return self.memory[-1]

    def area(self, make, *arguments, **options):
        """Allocates memory of a kind of the module `memory`."""
        self.memory.append(make(*arguments, **options))
        self.stack.callback(self.memory[-1].close)
        return self.memory[-1]

    def cq(self, **options):
        return objects.CompletionQueue(options.pop("context", self.context), **options)

    def qp(self, kind=objects.QueuePair, **options):
        context = options.pop("context", None) or self.context
        pd = options.pop("pd") if "pd" in options else self.pd
        send = options.pop("send_cq") if "send_cq" in options else self.a_cq.handle
        recv = options.pop("recv_cq") if "recv_cq" in options else send
        return kind(context, pd, send, recv, **options)

    def counter(self, comp=None, err=None, **options):
        """Creates a completion counter. By default its values are at offsets 0 and 8 of a page."""
        comp = self.page.address if comp is None else comp
        err = self.page.address + 8 if err is None else err
        return objects.CompletionCounter(options.pop("context", self.context), comp, err, **options)

    def ah(self, **options):
        pd = options.pop("pd") if "pd" in options else self.pd
        return objects.AddressHandle(options.pop("context", self.context), pd, **options)

    def mr(self, start=None, length=PAGE, kind=objects.MemoryRegion, **options):
        pd = options.pop("pd") if "pd" in options else self.pd
        start = self.page.address if start is None else start
        return kind(options.pop("context", self.context), pd, start, length, **options)

    @contextlib.contextmanager
    def refusing(self, opcode):
        """Makes the device refuse these commands within the context manager."""
        self.function.inject({"opcode": opcode}, {"status": "RESOURCE_BUSY"})
        try:
            yield
        finally:
            self.function.clear()

    def close(self):
        self.stack.close()


class Worker(Session):
    """The state of a child process, which leaves the trace to its parent."""

    def prepared(self, undo, make):
        return make()


# Conversion of a case's return value to text.


def show(value):
    match value:
        case None:
            return "ok"
        case tuple() | list():
            return " ".join(map(show, value))
        case bytes():
            for byte, name in ((b"\0", "zeros"), (b"\xff", "untouched")):
                if len(value) > 3 and value == byte * len(value):
                    return f"{len(value)}B-{name}"
            return value.hex() or "empty"
        case objects.CompletionQueue(response=r):
            cqe = int.from_bytes(value.cqe.bytes(), "little")
            if value.raw and set(value.raw) == {0xFF}:
                return f"cqe={cqe} untouched"
            keys = f"ring={key(r.q_mmap_key)}/{r.q_mmap_size}B db={key(r.db_mmap_key)}"
            return f"cqe={cqe} cq={r.cq_idx} db_off@{r.db_off:#x} comp_mask={r.comp_mask:#x} {keys}"
        case objects.QueuePair(response=r):
            return (
                f"qpn={value.qpn} caps={'/'.join(map(str, value.caps))} comp_mask={r.comp_mask:#x}"
                f" sq_db@{r.sq_db_offset:#x} rq_db@{r.rq_db_offset:#x} llq@{r.llq_desc_offset:#x}"
                f" sub_cqs={r.send_sub_cq_idx}/{r.recv_sub_cq_idx}"
                f" keys={key(r.sq_db_mmap_key)},{key(r.llq_desc_mmap_key)},{key(r.rq_db_mmap_key)},{key(r.rq_mmap_key)}/{r.rq_mmap_size}B"
            )
        case objects.CompletionCounter():
            return "counter"
        case objects.MemoryRegion():
            return f"lkey={value.lkey} rkey={value.rkey}"
        case objects.AddressHandle():
            return f"ah={value.number} comp_mask={value.comp_mask:#x}"
    return str(value)


def key(offset):
    """Returns an mmap key as a number of pages. 0 is a valid key."""
    page, rest = divmod(offset, PAGE)
    return f"{page}+{rest}" if rest else page


def attempt(action, *arguments, **options):
    """Returns the text of an action's result, or the name of the errno with which it fails."""
    try:
        return show(action(*arguments, **options))
    except OSError as error:
        return selftest.errno_name(error.errno)


def attempts(*actions):
    """Returns the results of several actions, in their order."""
    return [attempt(action) for action in actions]


def twice(action):
    return attempts(action, action)


def in_another_context(thing, context, *names):
    """Calls methods of an object with another context than its own; returns the results."""
    thing.context = context
    return attempts(*[getattr(thing, name) for name in names])


def until_refused(make, count):
    """Creates a number of objects, more than the device has; returns the results, without the contents of the objects."""
    return attempts(*[lambda: make() and None] * count)


def many(s, count, make, destroy):
    """Creates many objects, and destroys every other one. Their commands are counted."""
    s.shows_commands = False
    for thing in [make(number) for number in range(count)][::2]:
        destroy(thing)


def pinned():
    """Returns the size of this process's pinned memory in KiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmPin"))


def as_another_user(actions):
    """Calls actions() in a process of user 1000; returns `ok` or the errno's name for each result of attempt()."""
    reader, writer = os.pipe()

    def work():
        os.setuid(1000)
        os.write(writer, " ".join(result.split("=")[0] for result in actions()).encode())

    ends([fork(work)])
    os.close(writer)
    result = os.read(reader, 4096).decode()
    os.close(reader)
    return result


# Conversion of the device's trace to text.

MASKS = (
    (re.compile(r"^aq \d+ "), ""),
    (re.compile(r" \[\d+ in flight\]$"), ""),
    (re.compile(r"\b(base_address|rq_base_addr|paddr)=0x[0-9a-f]*?([0-9a-f]{1,3})\b"), r"\1=\2"),
    (re.compile(r"\b(first|second|third|fourth)=0x[0-9a-f]+"), r"\1"),
    (re.compile(r"ctrl_data(, ctrl_data_indirect)?, length=\d+, address=0x[0-9a-f]+"), "list"),
    (re.compile(r"\baddress=0x[0-9a-f]+"), "address"),
    # The offsets of doorbells and of the send queue depend on the assigned numbers.
    (re.compile(r", (\w*db|llq_descriptors)_offset=0x[0-9a-f]+"), ""),
    (re.compile(r" = SUCCESS"), " ="),
    (re.compile(r" =$"), ""),
)


def command(line, memory):
    """Returns a line of the trace as a part of a result."""
    for pattern, replacement in MASKS:
        line = pattern.sub(replacement, line)
    return re.sub(r"\biova=0x([0-9a-f]+)", lambda match: f"iova={place(int(match[1], 16), memory)}", line)


def place(address, memory):
    """Returns an address relative to the memory of the case that contains it."""
    for number, one in enumerate(memory):
        if one.address <= address < one.address + one.length:
            return f"memory{number}+{address - one.address:#x}"
    return f"{address:#x}"


def offsets(text, lines):
    """Replaces offsets in a response by `whole` or `in-page` if they equal an offset of the device, whole or within a page."""
    given = collections.defaultdict(set)
    for line in lines:
        for name, value in re.findall(r"\b(sq_db|rq_db|llq|db)(?:_descriptors)?_offset=0x([0-9a-f]+)", line):
            given[name].add(int(value, 16))

    def describe(match):
        name, value = match[1], int(match[2], 16)
        whole = given["db" if name == "db_off" else name]
        if value in {one % PAGE for one in whole}:
            return f"{name}=in-page"
        return f"{name}=whole" if value in whole else f"{name}={value:#x}"

    return re.sub(r"\b(db_off|sq_db|rq_db|llq)@0x([0-9a-f]+)", describe, text)


def letters(text):
    """Replaces the numbers that the device assigned by letters."""
    seen = collections.defaultdict(dict)

    def replace(match):
        kind = seen[NUMBERS[match[1]]]
        number = kind.setdefault(int(match[2], 0), len(kind))
        return f"{match[1]}={chr(ord('A') + number)}" if number < 26 else f"{match[1]}=#{number}"

    return NUMBER.sub(replace, text)


class Cases:
    """The cases of one subject, in their order."""

    all: ClassVar = {}

    def __init__(self, subject, device="efa3"):
        self.subject = subject
        self.device = device

    def add(self, name, function, device=None):
        """Adds a case: its result is what `function` returns for a session, or the name of the errno that it raises."""
        name = f"{self.subject}: {name}"
        if name in self.all or "|" in name or "#" in name:
            raise ValueError(f"{name}: a case needs a name of its own, without | and #")
        self.all[name] = (function, device or self.device)

    def case(self, name, device=None):
        """Returns a decorator that adds a function as a case."""

        def decorator(function):
            self.add(name, function, device)
            return function

        return decorator

    def each(self, name, rows, function, device=None):
        """Adds a case for each row, which is a value or a tuple of some: they complete `name`, and follow the session as arguments."""
        for row in rows:
            values = row if isinstance(row, tuple) else (row,)
            self.add(name.format(*values), lambda s, values=values: function(s, *values), device)


class Runner:
    """Runs cases and prints their results."""

    def __init__(self):
        self.devices = devices()
        self.skipped = not_for_c() if selftest.DRIVER == "c" else set()
        self.counters = {}
        self.values = {}
        self.last_read = None
        for function in self.devices.values():
            function.clear()
            trace(function)
            self.values[function.number] = self.read_counters(function)
        self.idle = {function.number: function.state()["resources"] for function in self.devices.values()}
        self.log = selftest.KernelLog()

    def read_counters(self, function):
        """Returns the current error counters. The core caches values within a jiffy."""
        if function.number not in self.counters:
            (name,) = function.names("infiniband")
            folder = function.sysfs / "infiniband" / name / "hw_counters"
            # No cached values of earlier reads.
            (folder / "lifespan").write_text("0")
            self.counters[function.number] = [folder / name for name in COUNTERS]
        selftest.wait_until(lambda: tick() != self.last_read, "the kernel's next jiffy")
        values = [int(path.read_text()) for path in self.counters[function.number]]
        self.last_read = tick()
        return values

    def changes(self, function):
        """Returns the error counters that have changed since the last call."""
        before, now = self.values[function.number], self.read_counters(function)
        self.values[function.number] = now
        return [f"{name} +{after - value}" for name, value, after in zip(COUNTERS, before, now, strict=True) if after != value]

    def run(self, subjects):
        done = 0
        for name, (function, device) in Cases.all.items():
            if subjects and not any(name.startswith(subject) or fnmatch.fnmatchcase(name, subject) for subject in subjects):
                continue
            result, its_bytes = ("not run", "") if name in self.skipped else self.run_one(function, self.devices[device])
            print(f"{name} | {result}", f"{name}{BYTES} | {its_bytes}", sep="\n", flush=True)
            done += 2
        print(f"{done} cases have run", flush=True)

    def run_one(self, case, function):
        """Runs a case; returns its result as one line, and the bytes of its commands as another."""
        session = Session(function)
        signal.alarm(PATIENCE)
        try:
            result = attempt(case, session)
            if "\n" in result or "|" in result:
                result = repr(result)
        except Exception as error:
            result = f"BROKEN {type(error).__name__}: {error}".replace("\n", " ").replace("|", "/")
        for process in children:
            os.kill(process, signal.SIGKILL)
        ends(list(children))
        session.take()
        session.close()
        signal.alarm(0)
        closing = trace(function)

        parts = [offsets(result, session.hidden + session.lines)]
        shown = [command(line, session.memory) for line in session.lines]
        closed = [re.sub(r"\(.*?\)", "", command(line, ())) for line in closing]
        if session.shows_commands:
            parts += [", ".join(shown)] if shown else []
        elif session.shows_commands is not None:
            counts = collections.Counter(re.sub(r"\(.*?\)", "", line).split()[0] for line in shown)
            parts += [", ".join(f"{count} {line}" for line, count in sorted(counts.items()))] if counts else []
        counts = collections.Counter(closed) - session.to_undo
        if session.shows_commands is None:
            counts.clear()
        parts += ["closing: " + ", ".join(f"{line} {count}" for line, count in counts.items())] if counts else []
        parts += self.changes(function)
        resources = function.state()["resources"]
        parts += [f"left: {name} {count}" for name, count in resources.items() if count != self.idle[function.number][name]]
        self.idle[function.number] = resources
        parts += [f"kernel: {text}" for level, text in self.log.records() if level <= 4 and TROUBLE.search(text)]
        return letters("; ".join(parts)), wire(session, closing)


def wire(session, closing):
    """Returns the bytes of a case's commands: in order, each once if only numbers are shown, or none if nothing is shown."""
    found = [line.bytes for line in [*session.hidden, *session.lines, *closing] if line.bytes]
    if session.shows_commands is None:
        return "in no order"
    return " ".join(found if session.shows_commands else sorted(set(found)))


def tick():
    """Returns a time in units of 10 ms. No kernel's jiffy is longer."""
    return selftest.first_line("/proc/uptime").split()[0]


def on_alarm(number, frame):
    raise selftest.Failed(f"it took more than {PATIENCE} s")


signal.signal(signal.SIGALRM, on_alarm)
