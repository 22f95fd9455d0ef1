# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Memory regions."""

import os
import resource
import struct

import objects
from harness import Cases, as_another_user, attempt
from memory import EXEC, HUGE_PAGE, PAGE, READ, WRITE, Area, Contiguous, Irregular, Mapped, Scattered, dmabuf, heap, scattered_dmabuf
from objects import IoctlMemoryRegion, object_handle
from uverbs import UHW_IN, Attribute, Buffer, pointer_in, pointer_out

cases = Cases("mr")
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
KINDS = {"": objects.MemoryRegion, " by ioctl": IoctlMemoryRegion}


def both(name, function, device=None):
    """Adds a case for each of the two ways to create a region."""
    for suffix, kind in KINDS.items():
        cases.add(name + suffix, lambda s, kind=kind: function(s, kind), device)


def iova(kind, value):
    return {"iova": value} if kind is IoctlMemoryRegion else {"hca_va": value}


# Access.

for access in [0, *range(1, 8), *(1 << bit for bit in range(3, 32)), 0x1F, 0x3FF, 0x3FF0_0001, 0xFFFF_FFFF]:
    both(f"access {access:#x}", lambda s, kind, access=access: s.mr(kind=kind, access=access))
for device in ("efa0", "efa2"):
    for access in range(8):
        cases.add(f"{device}: access {access:#x}", lambda s, access=access: s.mr(access=access), device)
    # The devices do not offer it. So all drivers ignore the flag, also those since Linux 7.4, which pass it to a device that does.
    cases.add(f"{device}: relaxed ordering", lambda s: s.mr(access=1 | 1 << 20), device)

# Length and address. The pages are scattered, so that the number of pages in commands is known.

for length in (0, 1, 2, 63, 64, 4095, 4096, 4097, 8191, 8192, 8193, 3 * PAGE, 4 * PAGE, 4 * PAGE + 1, 5 * PAGE, 32 * PAGE):
    both(f"{length} bytes", lambda s, kind, length=length: s.mr(s.area(Scattered, 32).address, length, kind))
for offset in (1, 7, 8, 64, 4095):
    for length in sorted({1, PAGE - offset, PAGE, 4 * PAGE}):
        cases.add(
            f"{length} bytes at {offset}",
            lambda s, offset=offset, length=length: s.mr(s.area(Scattered, 8).address + offset, length),
        )
for count in (512, 513, 2048):
    cases.add(f"{count} scattered pages", lambda s, count=count: s.mr(s.area(Scattered, count).address, count * PAGE))
for count in (8191, 8192, 8193, 16384):
    cases.add(f"{count} pages", lambda s, count=count: s.mr(s.area(Irregular, count).address, count * PAGE))
for name, start, length in (
    ("the end of the address space", 0xFFFF_FFFF_FFFF_F000, PAGE),
    ("past the end of the address space", 0xFFFF_FFFF_FFFF_F000, 2 * PAGE),
    ("the kernel", 0xFFFF_8000_0000_0000, PAGE),
    ("the first page", 0, PAGE),
    ("nothing at 0", 0, 0),
    ("not canonical", 1 << 60, PAGE),
    ("the whole address space", 0, 0xFFFF_FFFF_FFFF_FFFF),
):
    both(f"memory: {name}", lambda s, kind, start=start, length=length: s.mr(start, length, kind))
for bit in (31, 32, 33, 40, 47, 62, 63):
    cases.add(f"length {1 << bit:#x}", lambda s, bit=bit: s.mr(s.page.address, 1 << bit))
cases.add("length 0xffffffffffffffff", lambda s: s.mr(s.page.address, 0xFFFF_FFFF_FFFF_FFFF))
cases.add("more than a region has", lambda s: s.mr(s.area(Scattered, 17).address, 17 * PAGE), "small")
cases.add("as much as a region has", lambda s: s.mr(s.area(Scattered, 16).address, 16 * PAGE), "small")


@cases.case("more than all regions have", "small")
def all_pages(s):
    start = s.area(Scattered, 16).address
    return [attempt(lambda: s.mr(start, 16 * PAGE) and None) for _ in range(3)]


@cases.case("more regions than the device has", "small")
def all_regions(s):
    return [attempt(lambda: s.mr() and None) for _ in range(6)]


# The IOVA, which work requests use as the address.

for name, value in (
    ("0", 0),
    ("1", 1),
    ("4096", 4096),
    ("the last page", 0xFFFF_FFFF_FFFF_F000),
    ("2 MiB", HUGE_PAGE),
    ("not canonical", 1 << 60),
):
    both(f"iova {name}", lambda s, kind, value=value: s.mr(s.area(Scattered, 4).address, 4 * PAGE, kind, **iova(kind, value)))
    cases.add(
        f"iova {name} + 8 of a page's 8",
        lambda s, value=value: s.mr(s.area(Scattered, 4).address + 8, PAGE, hca_va=(value + 8) % (1 << 64)),
    )

# Kinds of memory.

for name, prot in (("nothing", 0), ("reading", READ), ("writing", WRITE), ("executing", READ | EXEC), ("all", READ | WRITE | EXEC)):
    for access in (0, LOCAL_WRITE, REMOTE_READ):
        cases.add(
            f"memory for {name}, access {access}",
            lambda s, prot=prot, access=access: s.mr(s.area(Area, PAGE, prot=prot).address, PAGE, access=access),
        )


@cases.case("a hole")
def hole(s):
    area = s.area(Scattered, 3)
    Mapped(area.address + PAGE, PAGE).close()
    return attempt(s.mr, area.address, 3 * PAGE), attempt(s.mr, area.address, PAGE), attempt(s.mr, area.address + 2 * PAGE, PAGE)


@cases.case("unmapped while it is registered")
def unmapped_later(s):
    area = Area(PAGE)
    s.memory.append(area)
    region = s.mr(area.address, PAGE)
    area.close()
    return attempt(region.dereg)


def file_memory(path, prot, flags, access):
    def run(s):
        fd = os.open(path, os.O_RDWR if prot & WRITE else os.O_RDONLY)
        area = s.area(Area, PAGE, prot=prot, flags=flags, fd=fd)
        os.close(fd)
        return s.mr(area.address, PAGE, access=access)

    return run


for flags, kind in ((1, "shared"), (2, "private")):
    for access in (0, LOCAL_WRITE):
        cases.add(f"a {kind} file, access {access}", file_memory("/etc/passwd", READ, flags, access))
        cases.add(f"{kind} zeros, access {access}", file_memory("/dev/zero", READ | WRITE, flags, access))
cases.add("the device's memory", lambda s: mapped_device(s))


def mapped_device(s):
    qp = s.a_qp
    area = s.area(Area, PAGE, prot=WRITE, flags=1, fd=s.context.fd, offset=qp.response.sq_db_mmap_key)
    return s.mr(area.address, PAGE)


def mapped_ring(s):
    area = s.area(Area, PAGE, prot=READ | WRITE, flags=1, fd=s.context.fd, offset=s.a_cq.response.q_mmap_key)
    return s.mr(area.address, PAGE)


cases.add("a completion queue's ring", mapped_ring)

# Contiguous memory.

for offset, length in (
    (0, PAGE),
    (0, 2 * PAGE),
    (0, 5 * PAGE),
    (PAGE, 3 * PAGE),
    (PAGE, 4 * PAGE),
    (0, 1 << 20),
    (1 << 20, 1 << 20),
    (0, HUGE_PAGE),
    (8, HUGE_PAGE - 8),
    (8, HUGE_PAGE - 16),
    (HUGE_PAGE - PAGE, 2 * PAGE),
    (PAGE, HUGE_PAGE),
):

    def contiguous(s, offset=offset, length=length):
        return s.mr(s.area(Contiguous, 2).address + offset, length)

    cases.add(f"{length} contiguous bytes at {offset}", contiguous)
for value in (0, PAGE, 64 << 10, 1 << 20, HUGE_PAGE, (1 << 40) + PAGE):
    cases.add(f"a huge page at iova {value:#x}", lambda s, value=value: s.mr(s.area(Contiguous).address, HUGE_PAGE, hca_va=value))

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
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)


# Input and output.

for name, data in (("zeros", bytes(8)), ("a bit", b"\1" + bytes(7)), ("a late bit", bytes(63) + b"\x80"), ("64 zeros", bytes(64))):
    cases.add(f"input for the driver: {name}", lambda s, data=data: s.mr(driver_data=data))
    cases.add(
        f"input for the driver by ioctl: {name}",
        lambda s, data=data: s.mr(kind=IoctlMemoryRegion, attributes=(pointer_in(UHW_IN, data),)),
    )
for size in (4, 8, 64):
    cases.add(f"output of {size} bytes", lambda s, size=size: s.mr(out_size=size))
for accessible in (0, 4, 11):
    cases.add(
        f"response to nowhere after {accessible} bytes",
        lambda s, accessible=accessible: s.mr(buffer=Buffer(12, accessible=accessible)),
    )
for number in (0, 1, 3, 4, 5, 6, 9, 10):
    cases.add(f"by ioctl without attribute {number}", lambda s, number=number: s.mr(kind=IoctlMemoryRegion, replace={number: None}))
for number in (9, 10):
    cases.add(
        f"by ioctl: attribute {number} to nowhere",
        lambda s, number=number: s.mr(kind=IoctlMemoryRegion, replace={number: Attribute(number, 4, 4096)}),
    )
for name, attributes in (
    ("hints", (Attribute(2, 0, 1),)),
    ("hints that do not exist", (Attribute(2, 0, 77),)),
    ("an offset but no file", (Attribute(8, 8, 0),)),
    ("a file as well", (Attribute(7, 0, 0),)),
    ("an unknown attribute", (Attribute(11, 8, 0),)),
    ("an unknown optional attribute", (Attribute(11, 8, 0, mandatory=False),)),
    ("an unknown attribute of the driver", (Attribute(0x1002, 8, 0),)),
):
    cases.add(f"by ioctl: {name}", lambda s, attributes=attributes: s.mr(kind=IoctlMemoryRegion, attributes=attributes))
for handle in (77, 0xFFFF_FFFF):
    both(f"protection domain {handle:#x}", lambda s, kind, handle=handle: s.mr(pd=handle, kind=kind))


def pd_is_gone(s, kind):
    s.context.dealloc_pd(s.pd)
    return s.mr(kind=kind)


both("protection domain is gone", pd_is_gone)
both("protection domain of another context", lambda s, kind: s.mr(context=s.open(), pd=s.pd, kind=kind))
both("another kind of object as a protection domain", lambda s, kind: s.mr(pd=s.a_cq.handle, kind=kind))

# Deregistration.


@cases.case("dereg by write")
def dereg(s):
    region = s.mr()
    return attempt(region.dereg), attempt(region.dereg)


@cases.case("dereg by ioctl")
def dereg_by_ioctl(s):
    region = s.mr()
    return attempt(region.dereg_by_ioctl), attempt(region.dereg_by_ioctl)


@cases.case("dereg of another context's")
def dereg_other(s):
    region = s.mr()
    region.context = s.open()
    return attempt(region.dereg), attempt(region.dereg_by_ioctl)


for handle in (0, 77, 0xFFFF_FFFF):
    cases.add(f"dereg of handle {handle:#x}", lambda s, handle=handle: s.context.send(objects.DEREG_MR, struct.pack("<I", handle)))


@cases.case("the same memory many times")
def same(s):
    s.shows_commands = False
    regions = [s.mr(access=index & 5 | 1) for index in range(200)]
    for region in regions[::2]:
        region.dereg()


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
for access in range(8):
    for device in ("efa3", "efa4", "efa0"):
        cases.add(f"{device}: EFA's fields, access {access}", lambda s, access=access: s.mr(access=access).efa_query(), device)

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


for number in (0x1000, *OUTPUTS):
    cases.add(f"EFA's without attribute {number:#x}", lambda s, number=number: efa_query(s, replace={number: None}))
for number in OUTPUTS:
    cases.add(
        f"EFA's attribute {number:#x} to nowhere",
        lambda s, number=number: efa_query(s, replace={number: Attribute(number, 2, 4096)}),
    )
    for size in (0, 1, 4, 8):
        cases.add(
            f"EFA's attribute {number:#x} of {size} bytes",
            lambda s, number=number, size=size: efa_query(s, replace={number: pointer_out(number, Buffer(size))}),
        )
cases.add("EFA's with an unknown attribute", lambda s: efa_query(s, attributes=(Attribute(0x1005, 8, 0),)))
cases.add("EFA's with an unknown optional attribute", lambda s: efa_query(s, attributes=(Attribute(0x1005, 8, 0, mandatory=False),)))
cases.add("EFA's with an attribute of the core", lambda s: efa_query(s, attributes=(Attribute(0, 8, 0),)))
cases.add("EFA's with an attribute twice", lambda s: efa_query(s, attributes=(pointer_out(0x1001, Buffer(2)),)))
cases.add("EFA's of another driver", lambda s: efa_query(s, driver=1))
for handle in (77, 0xFFFF_FFFF, 1 << 40, 1 << 63):
    cases.add(f"EFA's of handle {handle:#x}", lambda s, handle=handle: efa_query(s, handle))
cases.add("EFA's of another kind of object", lambda s: efa_query(s, s.pd))


@cases.case("EFA's of a region that is gone")
def efa_gone(s):
    region = s.mr()
    region.dereg()
    return attempt(region.efa_query), attempt(region.query)


@cases.case("EFA's of another context's")
def efa_other(s):
    region = s.mr()
    region.context = s.open()
    return attempt(region.efa_query), attempt(region.query)


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


for access in (*range(8), 8, 1 << 5, 1 << 6, 1 << 20, 1 << 21, 1 << 31):
    cases.add(f"access {access:#x}", lambda s, access=access: dma(s, one, access=access))
LAST = (1 << 64) - 1
PARTS = ((0, 0), (0, 1), (8, 16), (1, 4095), (1, PAGE), (PAGE, PAGE), (0, 2 * PAGE), (0, LAST), (LAST - PAGE + 1, PAGE))
for start, length in PARTS:
    cases.add(f"{length} bytes at {start}", lambda s, start=start, length=length: dma(s, one, start, length))
for count in (2, 4, 5, 64, 513):
    cases.add(f"{count} scattered pages", lambda s, count=count: dma(s, lambda: scattered_dmabuf(count), 0, count * PAGE))
cases.add("a part of it", lambda s: dma(s, lambda: scattered_dmabuf(8), 2 * PAGE, 3 * PAGE))
cases.add("a part of it, unaligned", lambda s: dma(s, lambda: scattered_dmabuf(8), 2 * PAGE + 8, 3 * PAGE))
for value in (0, 8, PAGE, 1 << 60):
    cases.add(f"iova {value:#x}", lambda s, value=value: dma(s, one, iova=value))
cases.add("of the system's heap", lambda s: dma(s, lambda: heap(PAGE)))


@cases.case("closed while it is registered")
def closed(s):
    fd = heap(PAGE)
    region = s.mr(0, PAGE, IoctlMemoryRegion, fd=fd)
    os.close(fd)
    return attempt(region.dereg)


for fd in (-1, 0, 9999, 0x7FFF_FFFF):
    cases.add(f"file {fd}", lambda s, fd=fd: s.mr(0, PAGE, IoctlMemoryRegion, fd=fd))
cases.add("the device as a file", lambda s: s.mr(0, PAGE, IoctlMemoryRegion, fd=s.context.fd))
for number in range(9):
    cases.add(f"without attribute {number}", lambda s, number=number: dma(s, one, replace={number: None}))
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
