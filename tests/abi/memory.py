# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Memory whose pages are known to be scattered or contiguous, and dma-bufs of it."""

import ctypes
import fcntl
import mmap
import os
import struct
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
READ, WRITE, EXEC = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC
MAP_FIXED, MAP_NORESERVE, MAP_HUGETLB = 0x10, 0x4000, 0x40000

UDMABUF_CREATE_LIST = 0x40087543
UDMABUF_CLOEXEC = 1
DMA_HEAP_ALLOC = 0xC0184800


def map_memory(length, prot=READ | WRITE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, fd=-1, offset=0, address=None):
    """Calls mmap(2), with MAP_FIXED if the caller passes an address."""
    got = libc.mmap(address, length, prot, flags | (MAP_FIXED if address else 0), fd, offset)
    if got == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return got


class Area:
    """A memory mapping."""

    def __init__(self, length, **options):
        self.length = length
        self.address = map_memory(length, **options)

    def close(self):
        libc.munmap(self.address, self.length)


class Mapped(Area):
    """A mapping that the caller has created."""

    def __init__(self, address, length):
        self.address, self.length = address, length


class Scattered(Area):
    """Pages of which no two are contiguous for a device: all of them map the same page.

    With SAME, only the first ones do, so that no larger page size fits. This is fast for any number of pages.
    """

    def __init__(self, count, prot=READ | WRITE, same=None):
        super().__init__(count * PAGE, prot=prot if same else 0)
        fd = os.memfd_create("scattered")
        os.ftruncate(fd, PAGE)
        for page in range(same or count):
            map_memory(PAGE, prot, mmap.MAP_SHARED, fd, address=self.address + page * PAGE)
        os.close(fd)


class Contiguous(Area):
    """Huge pages, each contiguous in itself. All of them map the same page, so that no two are contiguous with each other."""

    def __init__(self, count=1):
        want_huge_pages()
        # One huge page more, to align the address.
        self.reserved = Area((count + 1) * HUGE_PAGE, prot=0, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        self.length = count * HUGE_PAGE
        self.address = -(-self.reserved.address // HUGE_PAGE) * HUGE_PAGE
        fd = os.memfd_create("huge", os.MFD_HUGETLB | os.MFD_HUGE_2MB)
        os.ftruncate(fd, HUGE_PAGE)
        for page in range(count):
            map_memory(HUGE_PAGE, READ | WRITE, mmap.MAP_SHARED | MAP_HUGETLB, fd, address=self.address + page * HUGE_PAGE)
        os.close(fd)
        ctypes.memset(self.address, 1, 1)

    def close(self):
        self.reserved.close()


def want_huge_pages(count=8):
    """Ensures that the guest has at least `count` huge pages."""
    # Of 2 MiB, which need not be the kernel's default size.
    path = Path(f"/sys/kernel/mm/hugepages/hugepages-{HUGE_PAGE >> 10}kB/nr_hugepages")
    if int(path.read_text()) < count:
        path.write_text(str(count))
    if int(path.read_text()) < count:
        raise RuntimeError("the guest has no huge pages")


def ioctl(path, number, request):
    """Sends a request to a device that is open only for it; returns the result, and the request as the kernel leaves it."""
    device, request = os.open(path, os.O_RDWR), bytearray(request)
    try:
        return fcntl.ioctl(device, number, request), request
    finally:
        os.close(device)


def dmabuf(pages, size=1):
    """Creates a dma-buf of the pages with these numbers, in a new file of `size` pages."""
    file = os.memfd_create("dmabuf", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size * PAGE)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    parts = b"".join(struct.pack("<IIQQ", file, 0, page * PAGE, PAGE) for page in pages)
    try:
        return ioctl("/dev/udmabuf", UDMABUF_CREATE_LIST, struct.pack("<II", UDMABUF_CLOEXEC, len(pages)) + parts)[0]
    finally:
        os.close(file)


# Limit on simultaneous mappings of a page: DMA-API debugging warns of more than 7.
MAPPINGS = 7


def scattered_dmabuf(count):
    """Creates a dma-buf in which most adjacent pages are not contiguous."""
    return dmabuf([page // MAPPINGS for page in range(count)], count)


def heap(length):
    """Creates a dma-buf of the system's heap."""
    request = struct.pack("<QIIQ", length, 0, os.O_RDWR | os.O_CLOEXEC, 0)
    return struct.unpack_from("<I", ioctl("/dev/dma_heap/system", DMA_HEAP_ALLOC, request)[1], 8)[0]
