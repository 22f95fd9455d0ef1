# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The uverbs interface without any library, so that tests set each byte. Names are those of <rdma/ib_user_verbs.h>."""

import ctypes
import fcntl
import mmap
import os
import struct
from typing import Any

GET_CONTEXT = 0
QUERY_DEVICE = 1
QUERY_PORT = 2
ALLOC_PD = 3
DEALLOC_PD = 4

DRIVER_EFA = 17

# Value of enum ib_event_type.
EVENT_DEVICE_FATAL = 8

# Features that a library supports, in struct efa_ibv_alloc_ucontext_cmd.
TX_BATCH, MIN_SQ_WR = 1, 2

# Size and layout of the core's part of the response to EX_QUERY_DEVICE. The driver's part follows it.
QUERY_DEVICE_SIZE = 512
QUERY_DEVICE_LIMITS = struct.Struct("<5Q3I29IHBB")

IOCTL = 0xC0181B01
OBJECT_DEVICE = 0
METHOD_QUERY_PORT_SPEED = 7

# Attributes with the driver's part of a request and of a response.
UHW_IN, UHW_OUT = 0x1000, 0x1001
ATTRIBUTE_MANDATORY = 1


class Buffer:
    """Memory for a response, optionally with inaccessible memory behind it."""

    def __init__(self, size, fill=0xFF, accessible=None):
        """`accessible` is the number of bytes that can be written; by default all."""
        self.size = size
        self.memory = mmap.mmap(-1, max(size, mmap.PAGESIZE) + mmap.PAGESIZE)
        self.start = 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if accessible is not None:
            self.start = mmap.PAGESIZE - accessible
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
            self.size = accessible
        self.address = address + self.start
        self.memory[self.start : self.start + self.size] = bytes([fill]) * self.size

    def bytes(self):
        return self.memory[self.start : self.start + self.size]


class Attribute:
    """An attribute of an ioctl."""

    def __init__(self, number, length, data, mandatory=True, keep=None, reserved=0):
        self.number = number
        self.length = length
        self.data = data
        self.reserved = reserved
        self.flags = ATTRIBUTE_MANDATORY if mandatory else 0
        # Memory that `data` points to, which must live as long.
        self.keep = keep

    def pack(self):
        return struct.pack("<HHHHQ", self.number, self.length, self.flags, self.reserved, self.data & 0xFFFFFFFFFFFFFFFF)


def pointer_in(number, value, mandatory=True):
    """Returns an attribute with bytes for the kernel, inline if they fit."""
    if len(value) <= 8:
        return Attribute(number, len(value), int.from_bytes(value, "little"), mandatory)
    memory = ctypes.create_string_buffer(value, len(value))
    return Attribute(number, len(value), ctypes.addressof(memory), mandatory, memory)


def pointer_out(number, buffer, mandatory=True):
    """Returns an attribute with a buffer that the kernel writes to."""
    return Attribute(number, buffer.size, buffer.address, mandatory, buffer)


def new_handle(number):
    """Returns an attribute that gets the handle of a new object."""
    return Attribute(number, 0, 0)


def object_handle(number, handle):
    return Attribute(number, 0, handle)


def fd_in(number, fd):
    return Attribute(number, 0, fd)


def replaced(attributes, replace=None):
    """Returns the attributes, of which some are replaced by number, or left out if their replacement is None."""
    chosen = [(replace or {}).get(attribute.number, attribute) for attribute in attributes]
    return [attribute for attribute in chosen if attribute]


class Context:
    """An open device. Closed by `close`, at the end of a `with` block, or when the process ends."""

    def __init__(self, path):
        self.fd: Any = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.async_fd: Any = None
        self.num_comp_vectors = None

    def command(self, number, body, out_size=None, buffer=None):
        """Sends a command with a request that starts with the address for the response; returns the response."""
        buffer = buffer or Buffer(out_size)
        words = (out_size if out_size is not None else buffer.size) // 4
        request = struct.pack("<QQ", 0, buffer.address)[8:] + body
        os.write(self.fd, struct.pack("<IHH", number, (8 + len(request)) // 4, words) + request)
        return buffer.bytes()

    def send(self, number, body):
        """Sends a command that has no response."""
        os.write(self.fd, struct.pack("<IHH", number, (8 + len(body)) // 4, 0) + body)

    def extended(self, number, core, out_size=0, driver=b"", driver_out=0, buffer=None, comp_mask=None):
        """Sends an extended command: the core's part of the request, then the driver's; returns the response.

        `comp_mask` is that of the header of extended commands, which is reserved.
        """
        buffer = buffer or Buffer(out_size + driver_out)
        address = buffer.address if out_size or driver_out else 0
        head = struct.pack("<IHH", 0x80000000 | number, len(core) // 8, out_size // 8)
        head += struct.pack("<QHHI", address, len(driver) // 8, driver_out // 8, comp_mask or 0)
        os.write(self.fd, head + core + driver)
        return buffer.bytes()

    def get_context(self, supported_caps=TX_BATCH | MIN_SQ_WR, request=None, out_size=24, buffer=None):
        """Makes the device usable; returns the driver's part of the response."""
        if request is None:
            request = struct.pack("<I4x", supported_caps)
        response = self.command(GET_CONTEXT, request, 8 + out_size, buffer)
        self.async_fd, self.num_comp_vectors = struct.unpack_from("<II", response)
        return response[8:]

    def event(self):
        """Returns the type of the next asynchronous event; fails with EAGAIN if there is none yet, and with EIO if there will be none."""
        os.set_blocking(self.async_fd, False)
        # element, event_type
        return struct.unpack("<QI4x", os.read(self.async_fd, 16))[1]

    def alloc_pd(self, request=b"", out_size=8, buffer=None):
        """Returns the handle and the driver's part of the response."""
        response = self.command(ALLOC_PD, request, 4 + out_size, buffer)
        return struct.unpack_from("<I", response)[0], response[4:]

    def dealloc_pd(self, handle):
        self.send(DEALLOC_PD, struct.pack("<I", handle))

    def query_device(self, request=b"", out_size=24):
        """Returns the core's limits and the driver's part of the response."""
        response = self.extended(QUERY_DEVICE, bytes(8), QUERY_DEVICE_SIZE, request, out_size)
        return QUERY_DEVICE_LIMITS.unpack_from(response), response[QUERY_DEVICE_SIZE:]

    def query_port(self, port):
        """Returns the response as bytes."""
        return self.command(QUERY_PORT, struct.pack("<B7x", port), 40)

    def ioctl(self, object_id, method, *attributes, driver=DRIVER_EFA):
        """Calls a method; returns each attribute's data as the kernel leaves it, by number."""
        size = 24 + 16 * len(attributes)
        request = bytearray(struct.pack("<HHHHQII", size, object_id, method, len(attributes), 0, driver, 0))
        for attribute in attributes:
            request += attribute.pack()
        fcntl.ioctl(self.fd, IOCTL, request)
        return {attribute.number: struct.unpack_from("<Q", request, 24 + 16 * index + 8)[0] for index, attribute in enumerate(attributes)}

    def query_port_speed(self, port, driver=DRIVER_EFA):
        """Returns the speed in units of 100 Mbit/s."""
        speed = Buffer(8)
        port = pointer_in(0, struct.pack("<Q", port))
        self.ioctl(OBJECT_DEVICE, METHOD_QUERY_PORT_SPEED, port, pointer_out(1, speed), driver=driver)
        return struct.unpack("<Q", speed.bytes())[0]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Closes the device. May be called again."""
        for fd in (self.async_fd, self.fd):
            if fd is not None:
                os.close(fd)
        self.async_fd = self.fd = None


def opened(function, **options):
    """Opens a device and makes it usable; returns the context."""
    context = Context(function.uverbs())
    try:
        context.get_context(**options)
    except BaseException:
        os.close(context.fd)
        raise
    return context
