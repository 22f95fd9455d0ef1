# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Completion queues in memory that the process provides."""

import os
import struct

from harness import ONCE, Cases, attempt, attempts, twice
from memory import HUGE_PAGE, PAGE, READ, Area, Contiguous, Scattered, dmabuf, heap
from objects import BUFFER_DMABUF, BUFFER_VA, CQ_WITH_COMPLETION_CHANNEL
from uverbs import UHW_OUT, Attribute, Buffer, pointer_in

cases = Cases("cq_memory")
VA, LENGTH, FD, OFFSET, UMEM = 8, 9, 10, 11, 12


def umem(address, length, kind=BUFFER_VA, fd=0, flags=(0, 0)):
    return {"buffer": (kind, fd, address, length, *flags)}


def legacy_va(address, length):
    return {"legacy_buffer": ((VA, address), (LENGTH, length))}


CONTIGUOUS = (
    ("a page", 0, PAGE, {}),
    ("more than is needed", 0, 64 * PAGE, {}),
    ("a huge page", 0, HUGE_PAGE, {}),
    ("a byte less", 0, PAGE - 1, {}),
    ("as much as entries take", 0, 512, {}),
    ("nothing", 0, 0, {}),
    ("1 MiB for 32768 entries", 0, 1 << 20, {"cqe": 32768}),
    ("1 MiB less a byte for 32768 entries", 0, (1 << 20) - 1, {"cqe": 32768}),
    *((f"at {offset}", offset, PAGE, {}) for offset in (1, 8, 16, 32, 64)),
    ("at 2048, across pages", 2048, PAGE, {}),
    ("with events", 0, PAGE, {"flags": CQ_WITH_COMPLETION_CHANNEL}),
    ("entries of 16 bytes", 0, PAGE, {"cq_entry_size": 16}),
)
SCATTERED = ((1, 16), (1, 128), (2, 16), (2, 128), (2, 256), (256, 128), (256, 32768))
PLACES = (
    ("address 0", 0, PAGE),
    ("the kernel", 0xFFFF_8000_0000_0000, PAGE),
    ("past the end", 0xFFFF_FFFF_FFFF_F000, 2 * PAGE),
    ("the whole address space", 0, (1 << 64) - 1),
)


def both(name, rows, function):
    """Adds a case of each row for each of the two ways to pass memory; the function's second argument is `umem` or `legacy_va`."""
    for suffix, way in (("", umem), (" (old attributes)", legacy_va)):
        cases.each(name + suffix, rows, lambda s, *values, way=way: function(s, way, *values))


both(
    "contiguous: {}",
    CONTIGUOUS,
    lambda s, way, _, offset, length, options: s.cq(**way(s.area(Contiguous).address + offset, length), **options),
)
both(
    "{} scattered pages for {} entries",
    SCATTERED,
    lambda s, way, count, cqe: s.cq(**way(s.area(Scattered, count).address, count * PAGE), cqe=cqe),
)
both("{}", PLACES, lambda s, way, _, address, length: s.cq(**way(address, length)))
both("read-only memory", ONCE, lambda s, way: s.cq(**way(s.area(Area, PAGE, prot=READ).address, PAGE)))
both("no access to the memory", ONCE, lambda s, way: s.cq(**way(s.area(Area, PAGE, prot=0).address, PAGE)))
both("a region in the same memory", ONCE, lambda s, way: (s.mr(s.page.address, PAGE), s.cq(**way(s.page.address, PAGE))))
both("destroyed", ONCE, lambda s, way: twice(s.cq(**way(s.page.address, PAGE)).destroy))
both("refused by the device", ONCE, lambda s, way: s.cq(cqe=3, **way(s.page.address, PAGE)))


def in_use(s, way):
    cq = s.cq(**way(s.page.address, PAGE))
    qp = s.qp(send_cq=cq.handle)
    return attempts(cq.destroy, qp.destroy, cq.destroy)


def nowhere(s, way):
    buffer = Buffer(40, accessible=8)
    return s.cq(replace={UHW_OUT: Attribute(UHW_OUT, 40, buffer.address, keep=buffer)}, **way(s.page.address, PAGE))


def unmapped(s, way):
    area = Area(PAGE)
    cq = s.cq(**way(area.address, PAGE))
    area.close()
    return attempt(cq.destroy)


both("in use", ONCE, in_use)
both("a response to nowhere", ONCE, nowhere)
both("unmapped while it is in use", ONCE, unmapped)

# The descriptor.


def described(s, size, more=b""):
    value = struct.pack("<IiIIQQ", BUFFER_VA, 0, 0, 0, s.page.address, PAGE) + more
    return s.cq(attributes=(pointer_in(UMEM, value.ljust(size, b"\0")[:size]),))


cases.each("kind of memory {}", (2, 3, 0xFFFF_FFFF), lambda s, kind: s.cq(**umem(s.page.address, PAGE, kind)))
FLAGS = ((1, 0), (1 << 31, 0), (0, 1), (0, 0xFFFF_FFFF))
cases.each("flags {:#x}, optional {:#x}", FLAGS, lambda s, *flags: s.cq(**umem(s.page.address, PAGE, flags=flags)))
cases.add("an unused file", lambda s: s.cq(**umem(s.page.address, PAGE, fd=-1)))
cases.each("descriptor of {} bytes", (0, 8, 24, 31, 33, 40, 64), described)
cases.add("descriptor with a dirty end", lambda s: described(s, 40, b"\1"))
cases.add("descriptor to nowhere", lambda s: s.cq(attributes=(Attribute(UMEM, 32, 4096),)))

# DMA buffers.


def old_dmabuf(fd, offset, length):
    return Attribute(FD, 0, fd), pointer_in(OFFSET, struct.pack("<Q", offset)), pointer_in(LENGTH, struct.pack("<Q", length))


def of_dmabuf(s, make, offset=0, length=PAGE, old=False, **options):
    fd = make()
    s.stack.callback(os.close, fd)
    if old:
        return s.cq(attributes=old_dmabuf(fd, offset, length), **options)
    return s.cq(**umem(offset, length, BUFFER_DMABUF, fd), **options)


DMABUFS = (
    ("a page", lambda: dmabuf([0]), 0, PAGE),
    ("two scattered pages", lambda: dmabuf([0, 0]), 0, 2 * PAGE),
    ("one of two pages", lambda: dmabuf([0, 0]), PAGE, PAGE),
    ("a byte less", lambda: dmabuf([0]), 0, PAGE - 1),
    ("more than it has", lambda: dmabuf([0]), 0, 2 * PAGE),
    ("past its end", lambda: dmabuf([0]), PAGE, PAGE),
    ("at 64, across pages", lambda: dmabuf([0, 0]), 64, PAGE),
    ("an offset that wraps", lambda: dmabuf([0]), (1 << 64) - PAGE, PAGE),
    ("of the system's heap", lambda: heap(PAGE), 0, PAGE),
)
FILES = (-1, 0, 9999)
cases.each("dmabuf: {}", DMABUFS, lambda s, _, make, at, size: of_dmabuf(s, make, at, size))
cases.each("dmabuf: {} (old attributes)", DMABUFS, lambda s, _, make, at, size: of_dmabuf(s, make, at, size, old=True))
cases.each("dmabuf: file {}", FILES, lambda s, fd: s.cq(**umem(0, PAGE, BUFFER_DMABUF, fd)))
cases.each("dmabuf: file {} (old attributes)", FILES, lambda s, fd: s.cq(attributes=old_dmabuf(fd, 0, PAGE)))


@cases.case("dmabuf: closed while it is in use")
def closed(s):
    fd = dmabuf([0])
    cq = s.cq(**umem(0, PAGE, BUFFER_DMABUF, fd))
    os.close(fd)
    return attempt(cq.destroy)


# Every combination of the attributes, old and new.


def combination(s, names):
    fd = dmabuf([0])
    s.stack.callback(os.close, fd)
    address = s.page.address
    values = {
        VA: pointer_in(VA, struct.pack("<Q", address)),
        LENGTH: pointer_in(LENGTH, struct.pack("<Q", PAGE)),
        FD: Attribute(FD, 0, fd),
        OFFSET: pointer_in(OFFSET, bytes(8)),
        UMEM: pointer_in(UMEM, struct.pack("<IiIIQQ", BUFFER_VA, 0, 0, 0, address, PAGE)),
    }
    return s.cq(attributes=[values[int(name)] for name in names.split()])


EACH = [" ".join(str(number) for bit, number in enumerate((VA, LENGTH, FD, OFFSET, UMEM)) if chosen >> bit & 1) for chosen in range(1, 32)]
cases.each("attributes {}", EACH, combination)
cases.each(
    "attribute {} of 4 bytes",
    (VA, LENGTH, OFFSET),
    lambda s, number: s.cq(attributes=(pointer_in(number, bytes(4)), *[pointer_in(LENGTH, bytes(8))] * (number != LENGTH))),
)
