# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Framing of requests, and requests that the driver doesn't implement."""

import ctypes
import fcntl
import os
import struct

import objects
from harness import Cases, as_another_user, attempt, ensure
from memory import PAGE, READ, WRITE, Area, libc
from uverbs import DRIVER_EFA, IOCTL, Attribute, Buffer, pointer_in

cases = Cases("write")
ROOM = 512
EXTENDED = 0x8000_0000


def write(s, data, context=None):
    return os.write((context or s.context).fd, data)


def plain(s, number, body, in_words=None, out_words=ROOM // 4, response=None):
    """Sends a command with a header that may be wrong.

    The buffer has the length that the header claims, because the kernel zeroes the part that it doesn't fill.
    """
    buffer = Buffer(max(ROOM, 4 * out_words))
    body = struct.pack("<Q", buffer.address if response is None else response) + body
    in_words = (8 + len(body)) // 4 if in_words is None else in_words
    return attempt(lambda: write(s, struct.pack("<IHH", number, in_words, out_words) + body) and None)


# Each command number, with bodies of zeros that are empty, short and long.

cases.each("command {}", range(51), lambda s, number: [plain(s, number, bytes(size)) for size in (0, 8, 64, 256)])
cases.each("command {} without room", range(51), lambda s, number: [plain(s, number, bytes(256), out_words=words) for words in (0, 1)])
NUMBERS = (51, 58, 64, 127, 128, 254, 255, 256, 0xFFFF, 0x0100_0003, 0x4000_0003, 0x7FFF_FFFF)
cases.each("command {:#x}", NUMBERS, lambda s, number: plain(s, number, bytes(64)))


def extended(s, number, core=64, out=ROOM // 8, driver=0, driver_out=0, response=None, reserved=0, in_words=None):
    buffer = Buffer(ROOM)
    in_words = core // 8 if in_words is None else in_words
    head = struct.pack("<IHH", EXTENDED | number, in_words, out)
    head += struct.pack("<QHHI", buffer.address if response is None else response, driver // 8, driver_out // 8, reserved)
    return attempt(lambda: write(s, head + bytes(core + driver)) and None)


NUMBERS = (*range(3), 9, 18, 24, 26, *range(49, 62), 255, 256, 0x0100_0001, 0x4000_0001)
cases.each("extended command {:#x}", NUMBERS, lambda s, number: [extended(s, number, size) for size in (0, 8, 64, 192)])
cases.each("extended command {:#x} without room", NUMBERS, lambda s, number: [extended(s, number, 192, out=out) for out in (0, 1)])
QUERIES = (
    ("no response, room for one", {"response": 0}),
    ("no response, room for the driver's", {"response": 0, "out": 0, "driver_out": 8}),
    ("a response without room", {"out": 0}),
    ("a response in the kernel", {"response": 0xFFFF_8000_0000_0000}),
    ("a response at 4096", {"response": 4096}),
    ("reserved", {"reserved": 1}),
    ("reserved, all", {"reserved": 0xFFFF_FFFF}),
    ("more words than bytes", {"in_words": 9}),
    ("fewer words than bytes", {"in_words": 7}),
    ("more words of the driver than bytes", {"in_words": 8, "driver": 8}),
)
cases.each("extended query: {}", QUERIES, lambda s, _, options: extended(s, 1, **options))

# The header.

PD = struct.pack("<IHH", 3, 4, 3)
WORDS = (0, 1, 2, 3, 0xFFFF)
RESPONSES = (("0", 0), ("4096", 4096), ("the kernel", 0xFFFF_8000_0000_0000), ("the last byte", (1 << 64) - 1))
cases.each("{} bytes", range(16), lambda s, size: write(s, (PD + bytes(8))[:size]))
cases.each("ALLOC_PD of {} words", (*WORDS, 5), lambda s, words: plain(s, 3, b"", in_words=words))
cases.each("ALLOC_PD with room for {} words", WORDS, lambda s, words: plain(s, 3, b"", out_words=words))
cases.each("ALLOC_PD with a response at {}", RESPONSES, lambda s, _, response: plain(s, 3, b"", response=response))
cases.each("ALLOC_PD with a short response at {}", RESPONSES, lambda s, _, response: plain(s, 3, b"", response=response, out_words=1))


def from_memory(s, address, length):
    if libc.write(s.context.fd, ctypes.c_void_p(address), ctypes.c_size_t(length)) < 0:
        raise OSError(ctypes.get_errno(), "write")


cases.each("a command at {}", RESPONSES[:3], lambda s, _, address: from_memory(s, address, 16))


def cut(s, number, body, readable):
    """Sends a command of which only the first bytes are readable."""
    buffer = Buffer(ROOM)
    data = struct.pack("<IHHQ", number, (16 + len(body)) // 4, ROOM // 4, buffer.address) + body
    return from_memory(s, at_the_end(s, data[:readable]), len(data))


def at_the_end(s, data):
    """Returns the address of a copy of the bytes, behind which no memory is accessible."""
    area = s.area(Area, 2 * PAGE, prot=READ | WRITE)
    start = area.address + PAGE - len(data)
    ctypes.memmove(start, data, len(data))
    libc.mprotect(ctypes.c_void_p(area.address + PAGE), ctypes.c_size_t(PAGE), 0)
    return start


for name, number, size in (("ALLOC_PD", 3, 8), ("CREATE_QP", 24, 80), ("CREATE_AH", 5, 56), ("REG_MR", 9, 48)):
    cases.each(
        name + " of which {} bytes are there",
        sorted({0, 4, 8, 12, 16, size + 8, size + 15}),
        lambda s, readable, number=number, size=size: cut(s, number, bytes(size), readable),
    )
cases.add("by writev", lambda s: os.writev(s.context.fd, [PD, struct.pack("<Q", Buffer(ROOM).address)]))
cases.add("by pwrite", lambda s: os.pwrite(s.context.fd, PD + bytes(8), 0))
cases.add("two commands at once", lambda s: write(s, (PD + bytes(8)) * 2))

cases = Cases("ioctl")


def ioctl(s, object_id, method, attributes=(), driver=DRIVER_EFA, length=None, count=None, reserved=(0, 0), context=None):
    """Sends an ioctl with a header that may be wrong."""
    count = len(attributes) if count is None else count
    length = 24 + 16 * count if length is None else length
    request = bytearray(struct.pack("<HHHHQII", length, object_id, method, count, reserved[0], driver, reserved[1]))
    for attribute in attributes:
        request += attribute.pack()
    fcntl.ioctl((context or s.context).fd, IOCTL, request.ljust(4096, b"\0"))


# All methods of all objects, without attributes: whether the method exists, and whether it requires attributes.

METHODS = (*range(10), *(0x1000 + number for number in range(3)), 0x2000, 0xFFFF)
OBJECTS = (*range(21), 0x1000, 0x1001, 0x2000, 0xFFFF)


def methods(s, object_id, context=None):
    return [attempt(ioctl, s, object_id, method, context=context and context()) for method in METHODS]


cases.each("all methods of object {:#x}", OBJECTS, lambda s, object_id: methods(s, object_id, s.raw))
cases.each("all methods of object {:#x} with a context", OBJECTS, methods)
cases.each("driver {:#x}", (0, 1, 16, 18, 0xFFFF_FFFF), lambda s, driver: ioctl(s, 0, 4, driver=driver))
cases.each("reserved {:#x} {:#x}", ((1, 0), (1 << 63, 0), (0, 1), (0, 1 << 31)), lambda s, *reserved: ioctl(s, 0, 4, reserved=reserved))
cases.each("length {}", (0, 8, 23, 24, 25, 40, 4096, 0xFFFF), lambda s, length: ioctl(s, 0, 4, length=length))
COUNTS = (1, 2, 254, 255, 4095, 0xFFFF)
cases.each("{} attributes", COUNTS, lambda s, count: ioctl(s, 0, 4, count=count, length=24 + 16 * count & 0xFFFF))
OPTIONAL = Attribute(99, 0, 0, mandatory=False)
cases.add("many unknown attributes", lambda s: ioctl(s, 0, 4, [OPTIONAL] * 200))
cases.add("a mandatory one last", lambda s: ioctl(s, 0, 4, [*[OPTIONAL] * 20, Attribute(98, 0, 0)]))


def flags(s, value):
    attribute = pointer_in(0, bytes(8))
    attribute.flags = value
    return ioctl(s, 0, 7, (attribute,))


cases.each("attribute flags {:#x}", (0, 2, 3, 0x8000, 0xFFFF), flags)
cases.each(
    "request {:#x}",
    (0, 1, 0xC018_1B02, 0xC018_1B00, 0x4018_1B01, 0xC020_1B01, 0x5401),
    lambda s, number: fcntl.ioctl(s.context.fd, number, bytearray(64)) and None,
)


def ioctl_at(s, address):
    if libc.ioctl(s.context.fd, ctypes.c_ulong(IOCTL), ctypes.c_void_p(address)) < 0:
        raise OSError(ctypes.get_errno(), "ioctl")


cases.each("a request at {}", RESPONSES[:3], lambda s, _, address: ioctl_at(s, address))


def cut_ioctl(s, readable, writable=True):
    """Sends a request of which only the first bytes are readable, or which is not writable."""
    data = struct.pack("<HHHHQII", 40, objects.OBJECT_MR, objects.METHOD_MR_DESTROY, 1, 0, DRIVER_EFA, 0)
    data += objects.object_handle(0, 77).pack()
    start = at_the_end(s, data[:readable])
    if not writable:
        libc.mprotect(ctypes.c_void_p(start & -PAGE), ctypes.c_size_t(PAGE), READ)
    ioctl_at(s, start)


cases.each("a request of which {} bytes are there", (0, 1, 23, 24, 32, 39, 40), cut_ioctl)
cases.add("a request that can't be written", lambda s: cut_ioctl(s, 40, writable=False))


def created_unwritable(s, make):
    """Creates an object by a read-only request, in which the kernel can't return the handle."""

    def capture(object_id, method, *attributes, driver=DRIVER_EFA):
        data = struct.pack("<HHHHQII", 24 + 16 * len(attributes), object_id, method, len(attributes), 0, driver, 0)
        data += b"".join(attribute.pack() for attribute in attributes)
        area = s.area(Area, PAGE, prot=READ | WRITE)
        ctypes.memmove(area.address, data, len(data))
        libc.mprotect(ctypes.c_void_p(area.address), ctypes.c_size_t(PAGE), READ)
        ioctl_at(s, area.address)
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

# Files.

cases = Cases("file")


@cases.case("opened for reading only")
def read_only(s):
    fd = os.open(s.function.uverbs(), os.O_RDONLY)
    s.stack.callback(os.close, fd)
    return attempt(os.write, fd, PD + bytes(8)), attempt(fcntl.ioctl, fd, IOCTL, bytearray(64))


cases.add("lseek", lambda s: os.lseek(s.context.fd, 0, os.SEEK_END))


@cases.case("fcntl")
def flags_of_file(s):
    fcntl.fcntl(s.context.fd, fcntl.F_SETFL, os.O_NONBLOCK)
    return s.context.alloc_pd()[1][:4]


@cases.case("another user's process writes")
def other_user(s):
    pd = s.pd
    return as_another_user(lambda: (attempt(s.context.dealloc_pd, pd), attempt(s.cq), attempt(s.context.alloc_pd)))


@cases.case("nothing waits on the asynchronous file")
def asynchronous(s):
    os.set_blocking(s.context.async_fd, False)
    return attempt(os.read, s.context.async_fd, 64), attempt(os.write, s.context.async_fd, b"x"), attempt(s.a_qp.destroy)


@cases.case("completion channels")
def channels(s):
    channel = objects.CompletionChannel(s.context)
    os.set_blocking(channel.fd, False)
    results = attempt(os.read, channel.fd, 64), attempt(os.read, channel.fd, 4), attempt(os.write, channel.fd, b"x")
    channel.close()
    return results


cases.add("a completion channel by ioctl", lambda s: os.close(s.context.ioctl(objects.OBJECT_COMP_CHANNEL, 0, objects.new_handle(0))[0]))
cases.add("an asynchronous file by ioctl", lambda s: os.close(s.context.ioctl(objects.OBJECT_ASYNC_EVENT, 0, objects.new_handle(0))[0]))
