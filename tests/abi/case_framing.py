# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Requests with the framing of both interfaces, whether or not the driver implements them.

What the core answers before it calls a driver, such as wrong headers, is no case: it is the same with any driver.
"""

import ctypes
import os
import struct

import objects
from harness import Cases, attempt, ensure
from memory import PAGE, READ, WRITE, Area, libc
from selftest import result_of
from uverbs import DRIVER_EFA, IOCTL, Buffer

cases = Cases("write")
ROOM = 512
EXTENDED = 0x8000_0000


def plain(s, number, size, out_words=ROOM // 4):
    """Sends a command with a body of zeros."""
    buffer = Buffer(ROOM)
    head = struct.pack("<IHHQ", number, (16 + size) // 4, out_words, buffer.address)
    return attempt(lambda: os.write(s.context.fd, head + bytes(size)) and None)


# Each command number, with bodies of zeros that are empty, short and long.

cases.each("command {}", range(51), lambda s, number: [plain(s, number, size) for size in (0, 8, 64, 256)])
cases.each("command {} without room", range(51), lambda s, number: [plain(s, number, 256, words) for words in (0, 1)])


def extended(s, number, size, out=ROOM // 8):
    buffer = Buffer(ROOM)
    head = struct.pack("<IHHQHHI", EXTENDED | number, size // 8, out, buffer.address, 0, 0, 0)
    return attempt(lambda: os.write(s.context.fd, head + bytes(size)) and None)


NUMBERS = (*range(3), 9, 18, 24, 26, *range(49, 62))
cases.each("extended command {:#x}", NUMBERS, lambda s, number: [extended(s, number, size) for size in (0, 8, 64, 192)])
cases.each("extended command {:#x} without room", NUMBERS, lambda s, number: [extended(s, number, 192, out) for out in (0, 1)])


def from_memory(s, address, length):
    if libc.write(s.context.fd, ctypes.c_void_p(address), ctypes.c_size_t(length)) < 0:
        raise OSError(ctypes.get_errno(), "write")


def cut(s, number, body, readable):
    """Sends a command of which only the first bytes are readable."""
    buffer = Buffer(ROOM)
    data = struct.pack("<IHHQ", number, (16 + len(body)) // 4, ROOM // 4, buffer.address) + body
    area = s.area(Area, 2 * PAGE, prot=READ | WRITE)
    start = area.address + PAGE - readable
    ctypes.memmove(start, data, readable)
    libc.mprotect(ctypes.c_void_p(area.address + PAGE), ctypes.c_size_t(PAGE), 0)
    return from_memory(s, start, len(data))


for name, number, size in (("ALLOC_PD", 3, 8), ("CREATE_QP", 24, 80), ("CREATE_AH", 5, 56), ("REG_MR", 9, 48)):
    cases.each(
        name + " of which {} bytes are there",
        sorted({0, 4, 8, 12, 16, size + 8, size + 15}),
        lambda s, readable, number=number, size=size: cut(s, number, bytes(size), readable),
    )

cases = Cases("ioctl")


# All methods of all objects, without attributes: whether the method exists, and whether it requires attributes.

METHODS = (*range(10), *(0x1000 + number for number in range(3)), 0x2000, 0xFFFF)
OBJECTS = (*range(21), 0x1000, 0x1001, 0x2000, 0xFFFF)


cases.each("all methods of object {:#x}", OBJECTS, lambda s, number: [result_of(s.raw().ioctl, number, method) for method in METHODS])
cases.each(
    "all methods of object {:#x} with a context",
    OBJECTS,
    lambda s, number: [result_of(s.context.ioctl, number, method) for method in METHODS],
)


def created_unwritable(s, make):
    """Creates an object by a read-only request, in which the kernel can't return the handle."""

    def capture(object_id, method, *attributes, driver=DRIVER_EFA):
        data = struct.pack("<HHHHQII", 24 + 16 * len(attributes), object_id, method, len(attributes), 0, driver, 0)
        data += b"".join(attribute.pack() for attribute in attributes)
        area = s.area(Area, PAGE, prot=READ | WRITE)
        ctypes.memmove(area.address, data, len(data))
        libc.mprotect(ctypes.c_void_p(area.address), ctypes.c_size_t(PAGE), READ)
        if libc.ioctl(s.context.fd, ctypes.c_ulong(IOCTL), ctypes.c_void_p(area.address)) < 0:
            raise OSError(ctypes.get_errno(), "ioctl")
        return {0: 0}

    ensure(s.context, s.pd, s.a_cq)
    s.context.ioctl = capture
    try:
        return make()
    finally:
        del s.context.ioctl


cases.add("a CQ whose handle can't be returned", lambda s: created_unwritable(s, s.cq))
cases.add("a QP whose handle can't be returned", lambda s: created_unwritable(s, lambda: s.qp(objects.IoctlQueuePair)))
cases.add("an MR whose handle can't be returned", lambda s: created_unwritable(s, lambda: s.mr(kind=objects.IoctlMemoryRegion)))
