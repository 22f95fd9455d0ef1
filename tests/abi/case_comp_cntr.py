# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Completion counters."""

import os
import struct

import objects
from harness import Cases, attempt
from memory import HUGE_PAGE, PAGE, READ, Area, Contiguous, Scattered, dmabuf, heap
from objects import (
    BUFFER_DMABUF,
    BUFFER_VA,
    QP_PKEY_INDEX,
    QP_PORT,
    QP_QKEY,
    QP_SQ_PSN,
    QP_STATE,
    QPS_ERR,
    QPS_INIT,
    QPS_RESET,
    QPS_RTR,
    QPS_RTS,
    QPS_SQD,
    CompletionCounter,
    buffer_in,
)
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
    cases.add(f"capabilities without the {name}", lambda s, n=number: CompletionCounter.caps(s.context, {n: None}))
    for size in (0, 1, 3, 4, 5, 7, 8, 9, 16, 64):
        cases.add(
            f"capabilities with {size} bytes for the {name}",
            lambda s, n=number, size=size: CompletionCounter.caps(s.context, {n: pointer_out(n, Buffer(size))}),
        )
    for accessible in (0, right - 1):
        cases.add(
            f"capabilities with {accessible} bytes that can be written for the {name}",
            lambda s, n=number, r=right, a=accessible: CompletionCounter.caps(
                s.context, {n: Attribute(n, r, Buffer(r, accessible=a).address)}
            ),
        )
cases.add("capabilities without a context", lambda s: CompletionCounter.caps(s.raw()))

# Addresses of the values, in scattered pages, so that the addresses in commands are known.

for device in DEVICES:
    cases.add(f"{device}: plain", lambda s: s.counter(), device)
for offset in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 64, 2048, 4080, 4084, 4088, 4089, 4092, 4095, 4096):
    cases.add(f"completions at {offset}", lambda s, o=offset: s.counter(s.area(Scattered, 2).address + o))
    cases.add(f"errors at {offset}", lambda s, o=offset: s.counter(None, s.area(Scattered, 2).address + o))
    cases.add(f"both at {offset}", lambda s, o=offset: s.counter(s.area(Scattered, 2).address + o, s.area(Scattered, 2).address + o))
for length in (0, 1, 4, 7, 8, 9, 12, 15, 16, 64, 4095, 4096, 4097, 8192, HUGE_PAGE, 1 << 62, MAX):
    cases.add(f"{length} bytes", lambda s, n=length: s.counter(s.area(Scattered, 4).address, length=n))
for number, name in ((COMP, "completions"), (ERR, "errors")):
    for length in (0, 1, 7, 9, 16, 8192):
        cases.add(
            f"{length} bytes for {name} alone",
            lambda s, n=number, length=length: s.counter(replace={n: buffer_in(n, BUFFER_VA, 0, s.page.address, length)}),
        )
    for what, address in (
        ("address 0", 0),
        ("the kernel", 0xFFFF_8000_0000_0000),
        ("the end of the address space", 0xFFFF_FFFF_FFFF_FFF8),
        ("not canonical", 1 << 60),
    ):
        cases.add(f"{name}: {what}", lambda s, n=number, a=address: s.counter(replace={n: buffer_in(n, BUFFER_VA, 0, a, 8)}))
    cases.add(
        f"{name}: memory that can't be written",
        lambda s, n=number: s.counter(replace={n: buffer_in(n, BUFFER_VA, 0, s.area(Scattered, 1, READ).address, 8)}),
    )
    cases.add(
        f"{name}: memory that is gone",
        lambda s, n=number: s.counter(replace={n: buffer_in(n, BUFFER_VA, 0, gone(s), 8)}),
    )
    cases.add(f"{name}: nothing", lambda s, n=number: s.counter(replace={n: None}))
    for kind in (2, 3, 0xFFFF_FFFF):
        cases.add(
            f"{name}: memory of kind {kind}",
            lambda s, n=number, k=kind: s.counter(replace={n: buffer_in(n, k, 0, s.page.address, 8)}),
        )
    for flags in (1, 1 << 31):
        cases.add(
            f"{name}: flags {flags:#x}",
            lambda s, n=number, f=flags: s.counter(replace={n: buffer_in(n, BUFFER_VA, 0, s.page.address, 8, f)}),
        )
        cases.add(
            f"{name}: optional flags {flags:#x}",
            lambda s, n=number, f=flags: s.counter(replace={n: buffer_in(n, BUFFER_VA, 0, s.page.address, 8, 0, f)}),
        )
    for size in (0, 1, 8, 16, 24, 31, 33, 40, 64):

        def sized(s, n=number, size=size):
            whole = struct.pack("<IiIIQQ", BUFFER_VA, 0, 0, 0, s.page.address, 8)
            return s.counter(replace={n: pointer_in(n, whole.ljust(size, b"\0")[:size])})

        cases.add(f"{name}: a description of {size} bytes", sized)
    cases.add(
        f"{name}: a description with more behind it",
        lambda s, n=number: s.counter(
            replace={n: pointer_in(n, struct.pack("<IiIIQQ", BUFFER_VA, 0, 0, 0, s.page.address, 8) + b"\1" * 8)}
        ),
    )
    cases.add(f"{name}: a description that can't be read", lambda s, n=number: s.counter(replace={n: Attribute(n, 32, 8)}))
    for fd in (-1, 0, 999):
        cases.add(
            f"{name}: file {fd} as a DMA buffer",
            lambda s, n=number, fd=fd: s.counter(replace={n: buffer_in(n, BUFFER_DMABUF, fd, 0, 8)}),
        )
    for offset in (0, 4, 8, 4088, 4092, 4096, 8184, 8192, MAX - 7):
        cases.add(
            f"{name}: a DMA buffer at {offset}",
            lambda s, n=number, o=offset: s.counter(replace={n: buffer_in(n, BUFFER_DMABUF, of_dmabuf(s, dmabuf([0, 1], 2)), o, 8)}),
        )
    cases.add(
        f"{name}: a DMA buffer of the heap",
        lambda s, n=number: s.counter(replace={n: buffer_in(n, BUFFER_DMABUF, of_dmabuf(s, heap(PAGE)), 0, 8)}),
    )
    cases.add(
        f"{name}: a page of a huge page",
        lambda s, n=number: s.counter(replace={n: buffer_in(n, BUFFER_VA, 0, s.area(Contiguous).address + PAGE, 8)}),
    )


def gone(s):
    area = Area(PAGE)
    area.close()
    return area.address


def of_dmabuf(s, fd):
    s.stack.callback(os.close, fd)
    return fd


cases.add("one place for both", lambda s: s.counter(s.page.address, s.page.address))
cases.add("one place for two counters", lambda s: (s.counter(), s.counter()))
cases.add("overlapping", lambda s: s.counter(s.page.address, s.page.address + 4))


@cases.case("memory of a region")
def of_region(s):
    return s.mr(), s.counter()


@cases.case("its memory is unmapped")
def unmapped(s):
    area = s.area(Scattered, 1)
    counter = s.counter(area.address, area.address + 8)
    area.close()
    return counter, attempt(counter.modify, 5), attempt(counter.destroy)


@cases.case("more than the device has", "few-counters")
def limit(s):
    return [attempt(s.counter) for _ in range(5)]


@cases.case("a number of counters that leaves one half", "odd-counters")
def half(s):
    return CompletionCounter.caps(s.context), [attempt(s.counter) for _ in range(3)]


@cases.case("many")
def many(s):
    s.shows_commands = False
    made = [s.counter(s.page.address + 16 * number, s.page.address + 16 * number + 8) for number in range(200)]
    for counter in made[::2]:
        counter.destroy()


@cases.case("with an unknown attribute")
def unknown(s):
    return attempt(s.counter, attributes=[Attribute(0x1002, 8, 0)]), attempt(
        s.counter, attributes=[Attribute(0x1002, 8, 0, mandatory=False)]
    )


# Values.

for entry in (0, 1, 2, 0xFFFF_FFFF, MAX):
    for op in (0, 1, 2, MAX):

        def modified(s, entry=entry, op=op):
            counter = s.counter()
            return attempt(counter.modify, 77, entry, op), values(s)

        cases.add(f"entry {entry:#x} by operation {op:#x}", modified)
for value in (0, 1, 0xFFFF_FFFF, 1 << 32, (1 << 48) - 1, 1 << 48, (1 << 63) - 1, 1 << 63, MAX - 1, MAX):
    for op, name in ((0, "set to"), (1, "added")):

        def one(s, op=op, value=value):
            counter = s.counter()
            counter.modify(3)
            return attempt(counter.modify, value, 0, op), values(s)

        cases.add(f"{name} {value:#x}", one)


@cases.case("wraps around")
def wraps(s):
    _, largest, _ = CompletionCounter.caps(s.context)
    counter = s.counter()
    counter.modify(largest)
    before = values(s)
    counter.modify(2, op=objects.COMP_CNTR_INC)
    return before, values(s)


for number, name in ((0, "handle"), (1, "entry"), (2, "operation"), (3, "value")):
    cases.add(f"modify without the {name}", lambda s, n=number: s.counter().modify(1, replace={n: None}))
    for size in (1, 4, 7, 16):
        if number:
            cases.add(
                f"modify with a {name} of {size} bytes",
                lambda s, n=number, size=size: s.counter().modify(1, replace={n: pointer_in(n, bytes(size))}),
            )
for handle in (0, 77, 0xFFFF_FFFF):
    cases.add(f"modify counter {handle:#x}", lambda s, h=handle: s.counter().modify(1, replace={0: object_handle(0, h)}))
cases.add("modify something else", lambda s: s.counter().modify(1, replace={0: object_handle(0, s.a_cq.handle)}))
for entry in (0, 1, 2):
    cases.add(f"read entry {entry}", lambda s, entry=entry: s.counter().read(entry))


# Attachment to queue pairs: the operations to count.

for ops in (*range(64), 64, 65, 1 << 31, 0xFFFF_FFFF):
    cases.add(f"attach {ops:#x}", lambda s, ops=ops: s.counter().attach(s.a_qp, ops))
for kind, name in ((objects.QPT_UD, "UD"), (objects.QPT_DRIVER, "SRD")):
    for ops in (1, 2, 4, 8, 16, 32, 63):
        cases.add(f"attach {ops:#x} of {name}", lambda s, k=kind, ops=ops: s.counter().attach(s.qp(qp_type=k), ops))
for first in (1, 3, 63):
    for second in (1, 2, 4, 63):

        def twice(s, first=first, second=second):
            counter = s.counter()
            return attempt(counter.attach, s.a_qp, first), attempt(counter.attach, s.a_qp, second)

        cases.add(f"attach {first:#x} and {second:#x} to one counter", twice)

        def two(s, first=first, second=second):
            return attempt(s.counter().attach, s.a_qp, first), attempt(s.counter().attach, s.a_qp, second)

        cases.add(f"attach {first:#x} and {second:#x} to two counters", two)

# Attribute mask and state of each transition of a queue pair. PATHS has the transitions to each state.
STEPS = {
    QPS_INIT: (QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_QKEY, QPS_INIT),
    QPS_RTR: (QP_STATE, QPS_RTR),
    QPS_RTS: (QP_STATE | QP_SQ_PSN, QPS_RTS),
    QPS_SQD: (QP_STATE, QPS_SQD),
    QPS_ERR: (QP_STATE, QPS_ERR),
}
PATHS = {
    QPS_RESET: (),
    QPS_INIT: (QPS_INIT,),
    QPS_RTR: (QPS_INIT, QPS_RTR),
    QPS_RTS: (QPS_INIT, QPS_RTR, QPS_RTS),
    QPS_SQD: (QPS_INIT, QPS_RTR, QPS_RTS, QPS_SQD),
    QPS_ERR: (QPS_INIT, QPS_ERR),
}
for state, path in PATHS.items():

    def in_state(s, path=path):
        pair = s.qp()
        s.shows_commands = None
        for step in path:
            pair.modify(*STEPS[step])
        s.shows_commands = True
        return attempt(s.counter().attach, pair, 63)

    cases.add(f"attach to a queue pair in state {state}", in_state)


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


for number, name in ((0, "queue pair"), (1, "counter"), (2, "operations")):
    cases.add(f"attach without the {name}", lambda s, n=number: s.counter().attach(s.a_qp, 1, {n: None}))
for handle in (0, 77, 0xFFFF_FFFF):
    cases.add(f"attach to queue pair {handle:#x}", lambda s, h=handle: s.counter().attach(s.a_qp, 1, {0: object_handle(0, h)}))
    cases.add(f"attach counter {handle:#x}", lambda s, h=handle: s.counter().attach(s.a_qp, 1, {1: object_handle(1, h)}))
for size in (0, 1, 3, 7, 8, 16):
    cases.add(
        f"attach with operations of {size} bytes",
        lambda s, size=size: s.counter().attach(s.a_qp, 1, {2: pointer_in(2, b"\1".ljust(size, b"\0")[:size])}),
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


@cases.case("destroy")
def destroy(s):
    counter = s.counter()
    return attempt(counter.destroy), attempt(counter.destroy)


def pinned():
    """Returns the size of this process's pinned memory in KiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmPin"))


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
    return attempt(counter.destroy), attempt(pair.destroy), attempt(counter.destroy)


@cases.case("destroy of another context's")
def destroy_other(s):
    counter = s.counter()
    counter.context = s.open()
    return attempt(counter.destroy)


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
