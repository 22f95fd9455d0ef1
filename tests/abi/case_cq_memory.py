# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Completion queues in memory that the process provides."""

import os
import struct

from harness import Cases, attempt
from memory import HUGE_PAGE, PAGE, READ, Area, Contiguous, Scattered, dmabuf, heap
from objects import BUFFER_DMABUF, BUFFER_VA, CQ_WITH_COMPLETION_CHANNEL
from uverbs import UHW_OUT, Attribute, Buffer, pointer_in

cases = Cases("cq_memory")
VA, LENGTH, FD, OFFSET, UMEM = 8, 9, 10, 11, 12


def umem(address, length, kind=BUFFER_VA, fd=0, flags=(0, 0)):
    return {"buffer": (kind, fd, address, length, *flags)}


def legacy_va(address, length):
    return {"legacy_buffer": ((VA, address), (LENGTH, length))}


WAYS = {"": umem, " (old attributes)": legacy_va}
for suffix, way in WAYS.items():
    for name, offset, length, options in (
        ("a page", 0, PAGE, {}),
        ("more than is needed", 0, 64 * PAGE, {}),
        ("a huge page", 0, HUGE_PAGE, {}),
        ("a byte less", 0, PAGE - 1, {}),
        ("as much as entries take", 0, 512, {}),
        ("nothing", 0, 0, {}),
        ("1 MiB for 32768 entries", 0, 1 << 20, {"cqe": 32768}),
        ("1 MiB less a byte for 32768 entries", 0, (1 << 20) - 1, {"cqe": 32768}),
        ("at 8", 8, PAGE, {}),
        ("at 16", 16, PAGE, {}),
        ("at 32", 32, PAGE, {}),
        ("at 64", 64, PAGE, {}),
        ("at 2048, across pages", 2048, PAGE, {}),
        ("at 1", 1, PAGE, {}),
        ("with events", 0, PAGE, {"flags": CQ_WITH_COMPLETION_CHANNEL}),
        ("entries of 16 bytes", 0, PAGE, {"cq_entry_size": 16}),
    ):

        def contiguous(s, way=way, offset=offset, length=length, options=options):
            return s.cq(**way(s.area(Contiguous).address + offset, length), **options)

        cases.add(f"contiguous: {name}{suffix}", contiguous)
    for count, cqe in ((1, 16), (1, 128), (2, 16), (2, 128), (2, 256), (256, 128), (256, 32768)):
        cases.add(
            f"{count} scattered pages for {cqe} entries{suffix}",
            lambda s, way=way, count=count, cqe=cqe: s.cq(**way(s.area(Scattered, count).address, count * PAGE), cqe=cqe),
        )
    for name, address, length in (
        ("address 0", 0, PAGE),
        ("the kernel", 0xFFFF_8000_0000_0000, PAGE),
        ("past the end", 0xFFFF_FFFF_FFFF_F000, 2 * PAGE),
        ("the whole address space", 0, (1 << 64) - 1),
    ):
        cases.add(f"{name}{suffix}", lambda s, way=way, address=address, length=length: s.cq(**way(address, length)))
    cases.add(f"read-only memory{suffix}", lambda s, way=way: s.cq(**way(s.area(Area, PAGE, prot=READ).address, PAGE)))
    cases.add(f"no access to the memory{suffix}", lambda s, way=way: s.cq(**way(s.area(Area, PAGE, prot=0).address, PAGE)))
    cases.add(f"a region in the same memory{suffix}", lambda s, way=way: (s.mr(s.page.address, PAGE), s.cq(**way(s.page.address, PAGE))))

    @cases.case(f"destroyed{suffix}")
    def destroyed(s, way=way):
        cq = s.cq(**way(s.page.address, PAGE))
        return attempt(cq.destroy), attempt(cq.destroy)

    @cases.case(f"in use{suffix}")
    def in_use(s, way=way):
        cq = s.cq(**way(s.page.address, PAGE))
        qp = s.qp(send_cq=cq.handle)
        return attempt(cq.destroy), attempt(qp.destroy), attempt(cq.destroy)

    @cases.case(f"a response to nowhere{suffix}")
    def nowhere(s, way=way):
        buffer = Buffer(40, accessible=8)
        return s.cq(replace={UHW_OUT: Attribute(UHW_OUT, 40, buffer.address, keep=buffer)}, **way(s.page.address, PAGE))

    @cases.case(f"refused by the device{suffix}")
    def refused(s, way=way):
        return s.cq(cqe=3, **way(s.page.address, PAGE))

    @cases.case(f"unmapped while it is in use{suffix}")
    def unmapped(s, way=way):
        area = Area(PAGE)
        cq = s.cq(**way(area.address, PAGE))
        area.close()
        return attempt(cq.destroy)


# The descriptor.

for kind in (2, 3, 0xFFFF_FFFF):
    cases.add(f"kind of memory {kind}", lambda s, kind=kind: s.cq(**umem(s.page.address, PAGE, kind)))
for flags in ((1, 0), (1 << 31, 0), (0, 1), (0, 0xFFFF_FFFF)):
    cases.add(f"flags {flags[0]:#x}, optional {flags[1]:#x}", lambda s, flags=flags: s.cq(**umem(s.page.address, PAGE, flags=flags)))
cases.add("an unused file", lambda s: s.cq(**umem(s.page.address, PAGE, fd=-1)))
for size in (0, 8, 24, 31, 33, 40, 64):

    def descriptor(s, size=size):
        value = struct.pack("<IiIIQQ", BUFFER_VA, 0, 0, 0, s.page.address, PAGE).ljust(size, b"\0")[:size]
        return s.cq(attributes=(pointer_in(UMEM, value),))

    cases.add(f"descriptor of {size} bytes", descriptor)
cases.add(
    "descriptor with a dirty end",
    lambda s: s.cq(attributes=(pointer_in(UMEM, struct.pack("<IiIIQQQ", BUFFER_VA, 0, 0, 0, s.page.address, PAGE, 1)),)),
)
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


for old in (False, True):
    suffix = " (old attributes)" * old
    for name, make, offset, length in (
        ("a page", lambda: dmabuf([0]), 0, PAGE),
        ("two scattered pages", lambda: dmabuf([0, 0]), 0, 2 * PAGE),
        ("one of two pages", lambda: dmabuf([0, 0]), PAGE, PAGE),
        ("a byte less", lambda: dmabuf([0]), 0, PAGE - 1),
        ("more than it has", lambda: dmabuf([0]), 0, 2 * PAGE),
        ("past its end", lambda: dmabuf([0]), PAGE, PAGE),
        ("at 64, across pages", lambda: dmabuf([0, 0]), 64, PAGE),
        ("an offset that wraps", lambda: dmabuf([0]), (1 << 64) - PAGE, PAGE),
        ("of the system's heap", lambda: heap(PAGE), 0, PAGE),
    ):
        cases.add(
            f"dmabuf: {name}{suffix}",
            lambda s, make=make, offset=offset, length=length, old=old: of_dmabuf(s, make, offset, length, old),
        )
    for fd in (-1, 0, 9999):
        options = {"attributes": old_dmabuf(fd, 0, PAGE)} if old else umem(0, PAGE, BUFFER_DMABUF, fd)
        cases.add(f"dmabuf: file {fd}{suffix}", lambda s, options=options: s.cq(**options))


@cases.case("dmabuf: closed while it is in use")
def closed(s):
    fd = dmabuf([0])
    cq = s.cq(**umem(0, PAGE, BUFFER_DMABUF, fd))
    os.close(fd)
    return attempt(cq.destroy)


# Every combination of the attributes, old and new.

for chosen in range(1, 32):
    numbers = [number for bit, number in enumerate((VA, LENGTH, FD, OFFSET, UMEM)) if chosen >> bit & 1]

    def combination(s, numbers=numbers):
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
        return s.cq(attributes=[values[number] for number in numbers])

    cases.add(f"attributes {' '.join(map(str, numbers))}", combination)
for number in (VA, LENGTH, OFFSET):
    short = (pointer_in(number, bytes(4)), *(pointer_in(LENGTH, bytes(8)),) * (number != LENGTH))
    cases.add(f"attribute {number} of 4 bytes", lambda s, short=short: s.cq(attributes=short))
