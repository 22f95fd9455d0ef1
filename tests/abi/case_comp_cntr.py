# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Completion counters."""

import itertools
import os
import struct

import objects
from case_qp_modify import NEEDED, STATES, STEPS, mask
from harness import ONCE, Cases, attempt, attempts, in_another_context, many, pinned, twice
from memory import HUGE_PAGE, PAGE, READ, Area, Contiguous, Scattered, dmabuf, heap
from objects import BUFFER_DMABUF, BUFFER_VA, CompletionCounter, buffer_in
from uverbs import Attribute, Buffer, object_handle, pointer_in, pointer_out

cases = Cases("comp_cntr", "efa4")
COMP, ERR = CompletionCounter.COMP_BUFFER, CompletionCounter.ERR_BUFFER
MAX = (1 << 64) - 1
DEVICES = ("efa4", "efa3", "efa0")


def values(s):
    """Returns the completion and error counts in the memory of a case's counter."""
    return struct.unpack_from("<QQ", s.page.memory, 0)


# Capabilities.

for device in DEVICES:
    cases.add(f"{device}: capabilities", lambda s: CompletionCounter.caps(s.context), device)
for number, name, right in ((0, "number", 4), (1, "largest value", 8), (2, "operations", 4)):

    def caps(s, attribute=None, number=number):
        return CompletionCounter.caps(s.context, {number: attribute})

    cases.add(f"capabilities without the {name}", caps)
    cases.each(
        f"capabilities with {{}} bytes for the {name}",
        (0, 1, 3, 4, 5, 7, 8, 9, 16, 64),
        lambda s, size, caps=caps, n=number: caps(s, pointer_out(n, Buffer(size))),
    )
    cases.each(
        f"capabilities with {{}} bytes that can be written for the {name}",
        (0, right - 1),
        lambda s, accessible, caps=caps, n=number, r=right: caps(s, Attribute(n, r, Buffer(r, accessible=accessible).address)),
    )
cases.add("capabilities without a context", lambda s: CompletionCounter.caps(s.raw()))

# Addresses of the values, in scattered pages, so that the addresses in commands are known.

for device in DEVICES:
    cases.add(f"{device}: plain", lambda s: s.counter(), device)
OFFSETS = (*range(1, 10), 12, 16, 24, 64, 2048, 4080, 4084, 4088, 4089, 4092, 4095, 4096)
cases.each("completions at {}", OFFSETS, lambda s, at: s.counter(s.area(Scattered, 2).address + at))
cases.each("errors at {}", OFFSETS, lambda s, at: s.counter(None, s.area(Scattered, 2).address + at))
cases.each("both at {}", OFFSETS, lambda s, at: s.counter(s.area(Scattered, 2).address + at, s.area(Scattered, 2).address + at))
LENGTHS = (0, 1, 4, 7, 8, 9, 12, 15, 16, 64, 4095, 4096, 4097, 8192, HUGE_PAGE, 1 << 62, MAX)
cases.each("{} bytes", LENGTHS, lambda s, length: s.counter(s.area(Scattered, 4).address, length=length))

# Each value described by an attribute of its own.


def described(s, number, address, length=8, *flags, kind=BUFFER_VA, fd=0):
    return s.counter(replace={number: buffer_in(number, kind, fd, address, length, *flags)})


def cut(s, number, size, more=b""):
    """Creates a counter with SIZE bytes of the description of a value."""
    whole = struct.pack("<IiIIQQ", BUFFER_VA, 0, 0, 0, s.page.address, 8) + more
    return s.counter(replace={number: pointer_in(number, whole.ljust(size, b"\0")[:size])})


ADDRESSES = (
    ("address 0", lambda s: 0),
    ("the kernel", lambda s: 0xFFFF_8000_0000_0000),
    ("the end of the address space", lambda s: 0xFFFF_FFFF_FFFF_FFF8),
    ("not canonical", lambda s: 1 << 60),
    ("memory that can't be written", lambda s: s.area(Scattered, 1, READ).address),
    ("memory that is gone", lambda s: gone(s)),
    ("a page of a huge page", lambda s: s.area(Contiguous).address + PAGE),
)
IN_DMABUF = (0, 4, 8, 4088, 4092, 4096, 8184, 8192, MAX - 7)
for number, name in ((COMP, "completions"), (ERR, "errors")):

    def each(what, rows, function, number=number, name=name):
        cases.each(what.replace("NAME", name), rows, lambda s, *values: function(s, number, *values))

    each("{} bytes for NAME alone", (0, 1, 7, 9, 16, 8192), lambda s, n, length: described(s, n, s.page.address, length))
    each("NAME: {}", ADDRESSES, lambda s, n, _, address: described(s, n, address(s)))
    each("NAME: nothing", ONCE, lambda s, n: s.counter(replace={n: None}))
    each("NAME: memory of kind {}", (2, 3, 0xFFFF_FFFF), lambda s, n, kind: described(s, n, s.page.address, kind=kind))
    each("NAME: flags {:#x}", (1, 1 << 31), lambda s, n, flags: described(s, n, s.page.address, 8, flags))
    each("NAME: optional flags {:#x}", (1, 1 << 31), lambda s, n, flags: described(s, n, s.page.address, 8, 0, flags))
    each("NAME: a description of {} bytes", (0, 1, 8, 16, 24, 31, 33, 40, 64), cut)
    each("NAME: a description with more behind it", ONCE, lambda s, n: cut(s, n, 40, b"\1" * 8))
    each("NAME: a description that can't be read", ONCE, lambda s, n: s.counter(replace={n: Attribute(n, 32, 8)}))
    each("NAME: file {} as a DMA buffer", (-1, 0, 999), lambda s, n, fd: described(s, n, 0, kind=BUFFER_DMABUF, fd=fd))
    each("NAME: a DMA buffer at {}", IN_DMABUF, lambda s, n, at: in_dmabuf(s, n, dmabuf([0, 1], 2), at))
    each("NAME: a DMA buffer of the heap", ONCE, lambda s, n: in_dmabuf(s, n, heap(PAGE), 0))


def gone(s):
    area = Area(PAGE)
    area.close()
    return area.address


def in_dmabuf(s, number, fd, offset):
    s.stack.callback(os.close, fd)
    return described(s, number, offset, kind=BUFFER_DMABUF, fd=fd)


cases.add("one place for both", lambda s: s.counter(s.page.address, s.page.address))
cases.add("one place for two counters", lambda s: (s.counter(), s.counter()))
cases.add("overlapping", lambda s: s.counter(s.page.address, s.page.address + 4))


cases.add("memory of a region", lambda s: (s.mr(), s.counter()))


@cases.case("its memory is unmapped")
def unmapped(s):
    area = s.area(Scattered, 1)
    counter = s.counter(area.address, area.address + 8)
    area.close()
    return counter, attempt(counter.modify, 5), attempt(counter.destroy)


cases.add("more than the device has", lambda s: attempts(*[s.counter] * 5), "few-counters")
cases.add(
    "a number of counters that leaves one half", lambda s: (CompletionCounter.caps(s.context), attempts(*[s.counter] * 3)), "odd-counters"
)


cases.add(
    "many",
    lambda s: many(
        s, 200, lambda number: s.counter(s.page.address + 16 * number, s.page.address + 16 * number + 8), CompletionCounter.destroy
    ),
)


@cases.case("with an unknown attribute")
def unknown(s):
    return [attempt(s.counter, attributes=[Attribute(0x1002, 8, 0, mandatory=mandatory)]) for mandatory in (True, False)]


# Values.


def modified(s, value, entry=0, op=0, before=None):
    """Modifies a new counter; returns the result, and both values."""
    counter = s.counter()
    if before is not None:
        counter.modify(before)
    return attempt(counter.modify, value, entry, op), values(s)


cases.each(
    "entry {:#x} by operation {:#x}",
    itertools.product((0, 1, 2, 0xFFFF_FFFF, MAX), (0, 1, 2, MAX)),
    lambda s, entry, op: modified(s, 77, entry, op),
)
VALUES = (0, 1, 0xFFFF_FFFF, 1 << 32, (1 << 48) - 1, 1 << 48, (1 << 63) - 1, 1 << 63, MAX - 1, MAX)
cases.each("set to {:#x}", VALUES, lambda s, value: modified(s, value, op=objects.COMP_CNTR_SET, before=3))
cases.each("added {:#x}", VALUES, lambda s, value: modified(s, value, op=objects.COMP_CNTR_INC, before=3))


@cases.case("wraps around")
def wraps(s):
    _, largest, _ = CompletionCounter.caps(s.context)
    counter = s.counter()
    counter.modify(largest)
    before = values(s)
    counter.modify(2, op=objects.COMP_CNTR_INC)
    return before, values(s)


def modify(s, number, attribute):
    return s.counter().modify(1, replace={number: attribute})


FIELDS = (("handle", 0), ("entry", 1), ("operation", 2), ("value", 3))
cases.each("modify without the {}", FIELDS, lambda s, _, number: modify(s, number, None))
for name, number in FIELDS[1:]:
    cases.each(f"modify with a {name} of {{}} bytes", (1, 4, 7, 16), lambda s, size, n=number: modify(s, n, pointer_in(n, bytes(size))))
HANDLES = (0, 77, 0xFFFF_FFFF)
cases.each("modify counter {:#x}", HANDLES, lambda s, handle: modify(s, 0, object_handle(0, handle)))
cases.add("modify something else", lambda s: s.counter().modify(1, replace={0: object_handle(0, s.a_cq.handle)}))
cases.each("read entry {}", (0, 1, 2), lambda s, entry: s.counter().read(entry))

# Attachment to queue pairs: the operations to count.

cases.each("attach {:#x}", (*range(66), 1 << 31, 0xFFFF_FFFF), lambda s, ops: s.counter().attach(s.a_qp, ops))
for kind, name in ((objects.QPT_UD, "UD"), (objects.QPT_DRIVER, "SRD")):
    cases.each(f"attach {{:#x}} of {name}", (1, 2, 4, 8, 16, 32, 63), lambda s, ops, kind=kind: s.counter().attach(s.qp(qp_type=kind), ops))
PAIRS = list(itertools.product((1, 3, 63), (1, 2, 4, 63)))
cases.each(
    "attach {:#x} and {:#x} to one counter",
    PAIRS,
    lambda s, *both: (counter := s.counter()) and [attempt(counter.attach, s.a_qp, ops) for ops in both],
)
cases.each("attach {:#x} and {:#x} to two counters", PAIRS, lambda s, *both: [attempt(s.counter().attach, s.a_qp, ops) for ops in both])


def attach_in_state(s, state):
    pair = s.qp()
    for step in STEPS[STATES[state]]:
        pair.modify(mask(f"STATE {NEEDED.get(step, '')}"), STATES.index(step))
    return attempt(s.counter().attach, pair, 63)


cases.each("attach to a queue pair in state {}", map(STATES.index, STEPS), attach_in_state)


@cases.case("of several queue pairs")
def several(s):
    counter = s.counter()
    return [attempt(counter.attach, s.qp(), 63) for _ in range(3)], attempt(counter.destroy)


@cases.case("a queue pair is destroyed, and another one created")
def again(s):
    counter = s.counter()
    pair = s.qp()
    counter.attach(pair, 63)
    pair.destroy()
    return attempt(counter.attach, s.qp(), 63)


def attach(s, number, attribute):
    return s.counter().attach(s.a_qp, 1, {number: attribute})


ATTACHED = (("queue pair", 0), ("counter", 1))
cases.each("attach without the {}", (*ATTACHED, ("operations", 2)), lambda s, _, number: attach(s, number, None))
cases.each("attach to queue pair {:#x}", HANDLES, lambda s, handle: attach(s, 0, object_handle(0, handle)))
cases.each("attach counter {:#x}", HANDLES, lambda s, handle: attach(s, 1, object_handle(1, handle)))
cases.each(
    "attach with operations of {} bytes", (0, 1, 3, 7, 8, 16), lambda s, size: attach(s, 2, pointer_in(2, b"\1".ljust(size, b"\0")[:size]))
)
cases.add("attach to another kind of object", lambda s: s.counter().attach(s.a_qp, 1, {0: object_handle(0, s.a_cq.handle)}))
cases.add("attach another kind of object", lambda s: s.counter().attach(s.a_qp, 1, {1: object_handle(1, s.a_cq.handle)}))
cases.add("attach to a queue pair of another context", lambda s: s.counter(context=s.open()).attach(s.a_qp, 1))


@cases.case("the device refuses the second half of it, and it is tried again")
def half_attached(s):
    counter = s.counter()
    s.function.inject({"opcode": "ATTACH_EVENT_COUNTER"}, {"status": "UNKNOWN_ERROR"}, skip=1, times=1)
    return attempt(counter.attach, s.a_qp, 1), attempt(counter.attach, s.a_qp, 1), attempt(counter.destroy)


# Destruction.


cases.add("destroy", lambda s: twice(s.counter().destroy))


@cases.case("the device does not destroy it", "broken")
def refused(s):
    counter = s.counter()
    before = pinned()
    with s.refusing("DESTROY_EVENT_COUNTER"):
        result = attempt(counter.destroy)
    return result, f"{before - pinned()} KiB less are pinned"


@cases.case("destroy while it counts")
def counting(s):
    counter = s.counter()
    pair = s.qp()
    counter.attach(pair, 1)
    return attempts(counter.destroy, pair.destroy, counter.destroy)


cases.add("destroy of another context's", lambda s: in_another_context(s.counter(), s.open(), "destroy"))


@cases.case("a context closes with counters that count")
def close(s):
    context = s.open()
    pd, _ = context.alloc_pd()
    cq = s.cq(context=context)
    counter = s.counter(context=context)
    counter.attach(s.qp(context=context, pd=pd, send_cq=cq.handle), 63)
    context.close()


@cases.case("INFO_HANDLES")
def handles(s):
    made = [s.counter() for _ in range(3)]
    total = Buffer(4)
    sent = (pointer_in(0, struct.pack("<Q", objects.OBJECT_COMP_CNTR)), pointer_out(1, total))
    s.context.ioctl(objects.uverbs.OBJECT_DEVICE, 1, *sent)
    return len(made), int.from_bytes(total.bytes(), "little")
