# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Memory regions."""

import functools
import itertools
import os
import resource
import struct

import objects
from harness import INPUTS, ONCE, Cases, as_another_user, attempt, attempts, in_another_context, many, twice, until_refused
from memory import EXEC, HUGE_PAGE, PAGE, READ, WRITE, Area, Contiguous, Mapped, Scattered, dmabuf, heap, scattered_dmabuf
from objects import IoctlMemoryRegion, object_handle
from processes import ends, fork
from uverbs import UHW_IN, Attribute, Buffer, pointer_in, pointer_out

cases = Cases("mr")
LOCAL_WRITE, REMOTE_READ = objects.ACCESS_LOCAL_WRITE, 4
KINDS = {"": objects.MemoryRegion, " by ioctl": IoctlMemoryRegion}


def both(name, rows, function):
    """Adds a case of each row for each of the two ways to create a region."""
    for suffix, kind in KINDS.items():
        cases.each(name + suffix, rows, lambda s, *values, kind=kind: function(s, kind, *values))


def iova(kind, value):
    return {"iova": value} if kind is IoctlMemoryRegion else {"hca_va": value}


# Access.

FLAGS = (*range(8), *(1 << bit for bit in range(3, 32)), 0x1F, 0x3FF, 0x3FF0_0001, 0xFFFF_FFFF)
both("access {:#x}", FLAGS, lambda s, kind, access: s.mr(kind=kind, access=access))
for device in ("efa0", "efa2"):
    cases.each(device + ": access {:#x}", range(8), lambda s, access: s.mr(access=access), device)
    # The devices do not offer it. So all drivers ignore the flag, also those since Linux 7.4, which pass it to a device that does.
    cases.add(f"{device}: relaxed ordering", lambda s: s.mr(access=1 | 1 << 20), device)

# Length and address. The pages are scattered, so that the number of pages in commands is known.

LENGTHS = (0, 1, 2, 63, 64, 4095, 4096, 4097, 8191, 8192, 8193, 3 * PAGE, 4 * PAGE, 4 * PAGE + 1, 5 * PAGE, 32 * PAGE)
both("{} bytes", LENGTHS, lambda s, kind, length: s.mr(s.area(Scattered, 32).address, length, kind))
PARTS = [(length, offset) for offset in (1, 7, 8, 64, 4095) for length in sorted({1, PAGE - offset, PAGE, 4 * PAGE})]
cases.each("{} bytes at {}", PARTS, lambda s, length, offset: s.mr(s.area(Scattered, 8).address + offset, length))
cases.each("{} scattered pages", (512, 513, 2048), lambda s, count: s.mr(s.area(Scattered, count).address, count * PAGE))
cases.each("{} pages", (8191, 8192, 8193, 16384), lambda s, count: s.mr(s.area(Scattered, count, same=2).address, count * PAGE))
PLACES = (
    ("the end of the address space", 0xFFFF_FFFF_FFFF_F000, PAGE),
    ("past the end of the address space", 0xFFFF_FFFF_FFFF_F000, 2 * PAGE),
    ("the kernel", 0xFFFF_8000_0000_0000, PAGE),
    ("the first page", 0, PAGE),
    ("nothing at 0", 0, 0),
    ("not canonical", 1 << 60, PAGE),
    ("the whole address space", 0, 0xFFFF_FFFF_FFFF_FFFF),
)
both("memory: {}", PLACES, lambda s, kind, _, start, length: s.mr(start, length, kind))
HUGE = (*(1 << bit for bit in (31, 32, 33, 40, 47, 62, 63)), 0xFFFF_FFFF_FFFF_FFFF)
cases.each("length {:#x}", HUGE, lambda s, length: s.mr(s.page.address, length))
cases.add("more than a region has", lambda s: s.mr(s.area(Scattered, 17).address, 17 * PAGE), "small")
cases.add("as much as a region has", lambda s: s.mr(s.area(Scattered, 16).address, 16 * PAGE), "small")


@cases.case("more than all regions have", "small")
def all_pages(s):
    start = s.area(Scattered, 16).address
    return until_refused(lambda: s.mr(start, 16 * PAGE), 3)


cases.add("more regions than the device has", lambda s: until_refused(s.mr, 6), "small")

# The IOVA, which work requests use as the address.

IOVAS = (
    ("0", 0),
    ("1", 1),
    ("4096", 4096),
    ("the last page", 0xFFFF_FFFF_FFFF_F000),
    ("2 MiB", HUGE_PAGE),
    ("not canonical", 1 << 60),
)
both("iova {}", IOVAS, lambda s, kind, _, value: s.mr(s.area(Scattered, 4).address, 4 * PAGE, kind, **iova(kind, value)))
cases.each(
    "iova {} + 8 of a page's 8", IOVAS, lambda s, _, value: s.mr(s.area(Scattered, 4).address + 8, PAGE, hca_va=(value + 8) % (1 << 64))
)

# Kinds of memory.

for name, prot in (("nothing", 0), ("reading", READ), ("writing", WRITE), ("executing", READ | EXEC), ("all", READ | WRITE | EXEC)):
    cases.each(
        f"memory for {name}, access {{}}",
        (0, LOCAL_WRITE, REMOTE_READ),
        lambda s, access, prot=prot: s.mr(s.area(Area, PAGE, prot=prot).address, PAGE, access=access),
    )


@cases.case("a hole")
def hole(s):
    area = s.area(Scattered, 3)
    Mapped(area.address + PAGE, PAGE).close()
    return [attempt(s.mr, area.address + PAGE * first, PAGE * count) for first, count in ((0, 3), (0, 1), (2, 1))]


@cases.case("unmapped while it is registered")
def unmapped_later(s):
    area = Area(PAGE)
    s.memory.append(area)
    region = s.mr(area.address, PAGE)
    area.close()
    return attempt(region.dereg)


def of_file(s, path, prot, flags, access):
    fd = os.open(path, os.O_RDWR if prot & WRITE else os.O_RDONLY)
    area = s.area(Area, PAGE, prot=prot, flags=flags, fd=fd)
    os.close(fd)
    return s.mr(area.address, PAGE, access=access)


MAPPINGS = list(itertools.product((0, LOCAL_WRITE), (("shared", 1), ("private", 2))))
for access, (kind, flags) in MAPPINGS:
    cases.add(f"a {kind} file, access {access}", functools.partial(of_file, path="/etc/passwd", prot=READ, flags=flags, access=access))
    cases.add(f"{kind} zeros, access {access}", functools.partial(of_file, path="/dev/zero", prot=READ | WRITE, flags=flags, access=access))


@cases.case("the device's memory")
def of_device(s):
    key = s.a_qp.response.sq_db_mmap_key
    return s.mr(s.area(Area, PAGE, prot=WRITE, flags=1, fd=s.context.fd, offset=key).address, PAGE)


@cases.case("a completion queue's ring")
def of_ring(s):
    key = s.a_cq.response.q_mmap_key
    return s.mr(s.area(Area, PAGE, prot=READ | WRITE, flags=1, fd=s.context.fd, offset=key).address, PAGE)


# Contiguous memory.

CONTIGUOUS = (
    *((length, 0) for length in (PAGE, 2 * PAGE, 5 * PAGE, 1 << 20, HUGE_PAGE)),
    *((length, PAGE) for length in (3 * PAGE, 4 * PAGE, HUGE_PAGE)),
    *((1 << 20, 1 << 20), (HUGE_PAGE - 8, 8), (HUGE_PAGE - 16, 8), (2 * PAGE, HUGE_PAGE - PAGE)),
)
cases.each("{} contiguous bytes at {}", CONTIGUOUS, lambda s, length, offset: s.mr(s.area(Contiguous, 2).address + offset, length))
IOVAS_OF_HUGE = (0, PAGE, 64 << 10, 1 << 20, HUGE_PAGE, (1 << 40) + PAGE)
cases.each("a huge page at iova {:#x}", IOVAS_OF_HUGE, lambda s, value: s.mr(s.area(Contiguous).address, HUGE_PAGE, hca_va=value))

# Limits of the process.


@cases.case("more than may be locked")
def locked(s):
    """Runs in another user's process, because the limit does not apply with CAP_IPC_LOCK."""
    pd = s.pd

    def register():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (2 * PAGE, 2 * PAGE))
        area = Scattered(4)
        return [attempt(IoctlMemoryRegion, s.context, pd, area.address, count * PAGE, iova=0) for count in (3, 2, 1)]

    return as_another_user(register)


@cases.case("of a child")
def of_child(s):
    s.mr()
    ends([fork(lambda: None)])


# Input and output.


def by_ioctl(s, *attributes, **options):
    return s.mr(kind=IoctlMemoryRegion, attributes=attributes, **options)


cases.each("input for the driver: {}", INPUTS, lambda s, _, data: s.mr(driver_data=data))
cases.each("input for the driver by ioctl: {}", INPUTS, lambda s, _, data: by_ioctl(s, pointer_in(UHW_IN, data)))
cases.each("output of {} bytes", (4, 8, 64), lambda s, size: s.mr(out_size=size))
cases.each("response to nowhere after {} bytes", (0, 4, 11), lambda s, accessible: s.mr(buffer=Buffer(12, accessible=accessible)))
cases.each("by ioctl without attribute {}", (0, 1, 3, 4, 5, 6, 9, 10), lambda s, number: by_ioctl(s, replace={number: None}))
cases.each("by ioctl: attribute {} to nowhere", (9, 10), lambda s, n: by_ioctl(s, replace={n: Attribute(n, 4, 4096)}))
ATTRIBUTES = (
    ("hints", Attribute(2, 0, 1)),
    ("hints that do not exist", Attribute(2, 0, 77)),
    ("an offset but no file", Attribute(8, 8, 0)),
    ("a file as well", Attribute(7, 0, 0)),
    ("an unknown attribute", Attribute(11, 8, 0)),
    ("an unknown optional attribute", Attribute(11, 8, 0, mandatory=False)),
    ("an unknown attribute of the driver", Attribute(0x1002, 8, 0)),
)
cases.each("by ioctl: {}", ATTRIBUTES, lambda s, _, attribute: by_ioctl(s, attribute))
both("protection domain {:#x}", (77, 0xFFFF_FFFF), lambda s, kind, handle: s.mr(pd=handle, kind=kind))
both("protection domain is gone", ONCE, lambda s, kind: s.mr(pd=s.gone_pd(), kind=kind))
both("protection domain of another context", ONCE, lambda s, kind: s.mr(context=s.open(), pd=s.pd, kind=kind))
both("another kind of object as a protection domain", ONCE, lambda s, kind: s.mr(pd=s.a_cq.handle, kind=kind))


# Deregistration.

cases.add("dereg by write", lambda s: twice(s.mr().dereg))
cases.add("dereg by ioctl", lambda s: twice(s.mr().dereg_by_ioctl))
cases.add("dereg of another context's", lambda s: in_another_context(s.mr(), s.open(), "dereg", "dereg_by_ioctl"))
HANDLES = (0, 77, 0xFFFF_FFFF)
cases.each("dereg of handle {:#x}", HANDLES, lambda s, handle: s.context.send(objects.DEREG_MR, struct.pack("<I", handle)))


cases.add("the same memory many times", lambda s: many(s, 200, lambda number: s.mr(access=number & 5 | 1), objects.MemoryRegion.dereg))

# Queries.

cases = Cases("query_mr")


def region_fields(s, **options):
    region = s.mr(s.area(Scattered, 4).address + 8, 2 * PAGE, **options)
    lkey, rkey, length, address = region.query()
    return f"lkey={lkey} rkey={rkey}", length, address & 4095


cases.add("fields", region_fields)
cases.add("fields with an iova", lambda s: s.mr(hca_va=0x1000).query()[2:])
cases.add("fields by ioctl", lambda s: s.mr(kind=IoctlMemoryRegion).query()[2])
cases.add("EFA's fields", lambda s: s.mr().efa_query())
cases.add("EFA's fields by ioctl", lambda s: s.mr(kind=IoctlMemoryRegion).efa_query())
for device in ("efa3", "efa4", "efa0"):
    cases.each(device + ": EFA's fields, access {}", range(8), lambda s, access: s.mr(access=access).efa_query(), device)

OUTPUTS = (0x1001, 0x1002, 0x1003, 0x1004)


def efa_query(s, handle=None, replace=None, attributes=(), driver=17):
    """Sends EFA's query with wrong attributes; returns its result and the contents of the output buffers."""
    region = s.mr() if handle is None else None
    buffers = {number: Buffer(2) for number in OUTPUTS}
    sent = {0x1000: object_handle(0x1000, region.handle if region else handle)}
    sent |= {number: pointer_out(number, buffer) for number, buffer in buffers.items()} | (replace or {})
    action = [attribute for attribute in (*sent.values(), *attributes) if attribute]
    result = attempt(lambda: s.context.ioctl(objects.OBJECT_MR, objects.METHOD_EFA_MR_QUERY, *action, driver=driver) and None)
    return result, [buffer.bytes() for buffer in buffers.values()]


cases.each("EFA's without attribute {:#x}", (0x1000, *OUTPUTS), lambda s, number: efa_query(s, replace={number: None}))
cases.each("EFA's attribute {:#x} to nowhere", OUTPUTS, lambda s, number: efa_query(s, replace={number: Attribute(number, 2, 4096)}))
cases.each(
    "EFA's attribute {:#x} of {} bytes",
    itertools.product(OUTPUTS, (0, 1, 4, 8)),
    lambda s, number, size: efa_query(s, replace={number: pointer_out(number, Buffer(size))}),
)
cases.add("EFA's with an unknown attribute", lambda s: efa_query(s, attributes=(Attribute(0x1005, 8, 0),)))
cases.add("EFA's with an unknown optional attribute", lambda s: efa_query(s, attributes=(Attribute(0x1005, 8, 0, mandatory=False),)))
cases.add("EFA's with an attribute of the core", lambda s: efa_query(s, attributes=(Attribute(0, 8, 0),)))
cases.add("EFA's with an attribute twice", lambda s: efa_query(s, attributes=(pointer_out(0x1001, Buffer(2)),)))
cases.add("EFA's of another driver", lambda s: efa_query(s, driver=1))
cases.each("EFA's of handle {:#x}", (77, 0xFFFF_FFFF, 1 << 40, 1 << 63), efa_query)
cases.add("EFA's of another kind of object", lambda s: efa_query(s, s.pd))


@cases.case("EFA's of a region that is gone")
def efa_gone(s):
    region = s.mr()
    region.dereg()
    return attempts(region.efa_query, region.query)


cases.add("EFA's of another context's", lambda s: in_another_context(s.mr(), s.open(), "efa_query", "query"))
cases.add("an unknown method of the driver", lambda s: s.context.ioctl(objects.OBJECT_MR, 0x1001))
cases.add("an unknown method", lambda s: s.context.ioctl(objects.OBJECT_MR, 6))

# DMA buffers.

cases = Cases("dmabuf")


def dma(s, make, start=0, length=PAGE, **options):
    fd = make()
    s.stack.callback(os.close, fd)
    return s.mr(start, length, IoctlMemoryRegion, fd=fd, **options)


def one():
    return dmabuf([0])


FLAGS = (*range(9), 1 << 5, 1 << 6, 1 << 20, 1 << 21, 1 << 31)
cases.each("access {:#x}", FLAGS, lambda s, access: dma(s, one, access=access))
LAST = (1 << 64) - 1
PARTS = [(0, 0), (1, 0), (16, 8), (4095, 1), (PAGE, 1), (PAGE, PAGE), (2 * PAGE, 0), (LAST, 0), (PAGE, LAST - PAGE + 1)]
cases.each("{} bytes at {}", PARTS, lambda s, length, start: dma(s, one, start, length))
cases.each("{} scattered pages", (2, 4, 5, 64, 513), lambda s, count: dma(s, lambda: scattered_dmabuf(count), 0, count * PAGE))
cases.add("a part of it", lambda s: dma(s, lambda: scattered_dmabuf(8), 2 * PAGE, 3 * PAGE))
cases.add("a part of it, unaligned", lambda s: dma(s, lambda: scattered_dmabuf(8), 2 * PAGE + 8, 3 * PAGE))
cases.each("iova {:#x}", (0, 8, PAGE, 1 << 60), lambda s, value: dma(s, one, iova=value))
cases.add("of the system's heap", lambda s: dma(s, lambda: heap(PAGE)))


@cases.case("closed while it is registered")
def closed(s):
    fd = heap(PAGE)
    region = s.mr(0, PAGE, IoctlMemoryRegion, fd=fd)
    os.close(fd)
    return attempt(region.dereg)


cases.each("file {}", (-1, 0, 9999, 0x7FFF_FFFF), lambda s, fd: s.mr(0, PAGE, IoctlMemoryRegion, fd=fd))
cases.add("the device as a file", lambda s: s.mr(0, PAGE, IoctlMemoryRegion, fd=s.context.fd))
cases.each("without attribute {}", range(9), lambda s, number: dma(s, one, replace={number: None}))
cases.add("protection domain that does not exist", lambda s: dma(s, one, pd=77))


def dma_by_reg_mr(s, access=1, change=None):
    """Sends REG_MR with a dma-buf's file in place of an address."""
    fd = one()
    s.stack.callback(os.close, fd)
    added = {7: Attribute(7, 0, fd), 8: pointer_in(8, bytes(8))} | (change or {})
    attributes = [attribute for attribute in added.values() if attribute]
    return s.mr(0, PAGE, IoctlMemoryRegion, access=access, replace={4: None}, attributes=attributes)


cases.add("by REG_MR", dma_by_reg_mr)
cases.add("by REG_MR without an offset", lambda s: dma_by_reg_mr(s, change={8: None}))
cases.add("by REG_MR with an address as well", lambda s: dma_by_reg_mr(s, change={4: pointer_in(4, bytes(8))}))
cases.add("by REG_MR, offset that the iova lacks", lambda s: dma_by_reg_mr(s, change={8: pointer_in(8, struct.pack("<Q", 8))}))
cases.add("by REG_MR, access 0x10", lambda s: dma_by_reg_mr(s, access=0x10))
cases.add("by REG_MR with a length of the file", lambda s: dma_by_reg_mr(s, change={7: Attribute(7, 4, 0)}))
cases.add("by REG_MR with a file that is too large", lambda s: dma_by_reg_mr(s, change={7: Attribute(7, 0, 1 << 40)}))
