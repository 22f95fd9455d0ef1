# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Queries of a device, its port, contexts and handles."""

import itertools
import struct

import uverbs
from harness import INPUTS, Cases, attempt
from uverbs import OBJECT_DEVICE, QUERY_DEVICE, QUERY_DEVICE_SIZE, UHW_IN, UHW_OUT, Attribute, Buffer, pointer_in, pointer_out

cases = Cases("query")
DEVICES = ("efa3", "efa4", "efa0", "efa2", "no-eq", "small")

# Device. Each driver chooses the firmware version, and GUIDs depend on the device's number.


def limits(s):
    """Returns the core's nonzero fields by index, without the first three, and the driver's response."""
    core, driver = s.context.query_device()
    return ", ".join(f"{place}={value:#x}" for place, value in enumerate(core[3:]) if value), driver


for device in DEVICES:
    cases.add(f"{device}: device", limits, device)
    cases.add(f"{device}: device by write", lambda s: s.context.command(QUERY_DEVICE, b"", 184)[24:], device)
cases.each("device, input for the driver: {}", INPUTS[:3], lambda s, _, data: s.context.query_device(request=data)[1])
cases.each("device, output of {} bytes", (0, 8, 16, 24, 32, 64), lambda s, size: s.context.query_device(out_size=size)[1])
ROOMS = (0, 8, 184, 192, 256, 304, 504, 512)
cases.each("device, the core's output of {} bytes", ROOMS, lambda s, size: s.context.extended(QUERY_DEVICE, bytes(8), size)[176:])


def masked(s, comp_mask, reserved):
    s.context.extended(QUERY_DEVICE, struct.pack("<II", comp_mask, reserved), 512)


cases.each("device, comp_mask {:#x}", (1, 0xFFFF_FFFF), lambda s, mask: masked(s, mask, 0))
cases.each("device, reserved {:#x}", (1, 0xFFFF_FFFF), lambda s, mask: masked(s, 0, mask))
cases.each(
    "device, response to nowhere after {} bytes",
    (0, 8, 304, 511, 520),
    lambda s, accessible: (
        s.context.extended(QUERY_DEVICE, bytes(8), QUERY_DEVICE_SIZE, b"", 24, Buffer(536, accessible=accessible)) and None
    ),
)
WRITE_ROOMS = (0, 4, 176, 180, 184, 188)
cases.each("device by write, output of {} bytes", WRITE_ROOMS, lambda s, size: s.context.command(QUERY_DEVICE, b"", size)[24:])

# Port.

for device in DEVICES:
    cases.add(f"{device}: port", lambda s: s.context.query_port(1), device)
    cases.add(f"{device}: port speed", lambda s: s.context.query_port_speed(1), device)
cases.each("port {}", (0, 2, 255), lambda s, port: s.context.query_port(port))
PORTS = (0, 2, 255, 1 << 31, 1 << 32, (1 << 64) - 1)
cases.each("port speed of port {}", PORTS, lambda s, port: s.context.query_port_speed(port))

NAMES = "INVOKE_WRITE INFO_HANDLES QUERY_PORT GET_CONTEXT QUERY_CONTEXT QUERY_GID_TABLE QUERY_GID_ENTRY".split()
METHODS = {name: number for number, name in enumerate(NAMES)}


def method(s, name, *attributes, context=None):
    return (context or s.context).ioctl(OBJECT_DEVICE, METHODS[name], *attributes)


def query_port(s, size, port):
    output = Buffer(size)
    method(s, "QUERY_PORT", pointer_in(0, bytes([port])), pointer_out(1, output))
    return output.bytes()


cases.each("QUERY_PORT, output of {} bytes", (0, 4, 40, 48, 56, 64), lambda s, size: query_port(s, size, 1))
cases.each("QUERY_PORT of port {}", (0, 1, 2), lambda s, port: query_port(s, 48, port))


def port_speed(*attributes):
    return lambda s: s.context.ioctl(OBJECT_DEVICE, uverbs.METHOD_QUERY_PORT_SPEED, *attributes) and None


ONE = struct.pack("<Q", 1)
cases.add("port speed without a port", port_speed(pointer_out(1, Buffer(8))))
cases.add("port speed without an output", port_speed(pointer_in(0, ONE)))
cases.add("port speed to nowhere", port_speed(pointer_in(0, ONE), Attribute(1, 8, 4096)))
cases.add("port speed of 4 bytes", port_speed(pointer_in(0, ONE), pointer_out(1, Buffer(4))))
cases.add("port speed of 16 bytes", port_speed(pointer_in(0, ONE), pointer_out(1, Buffer(16))))
cases.add("port as 4 bytes", port_speed(pointer_in(0, ONE[:4]), pointer_out(1, Buffer(8))))


def gid_table(s, entry_size, room):
    entries, count = Buffer(room), Buffer(8)
    sent = (pointer_in(0, struct.pack("<Q", entry_size)), pointer_in(1, struct.pack("<I", 0)))
    method(s, "QUERY_GID_TABLE", *sent, pointer_out(2, entries), pointer_out(3, count))
    return count.bytes(), entries.bytes()


def gid_entry(s, index, port):
    entry = Buffer(32)
    sent = [pointer_in(number, struct.pack("<I", value)) for number, value in enumerate((port, index, 0))]
    method(s, "QUERY_GID_ENTRY", *sent, pointer_out(3, entry))
    return entry.bytes()


cases.each("GID table, entries of {} in {} bytes", itertools.product((0, 8, 24, 32, 40, 64), (0, 32, 64)), gid_table)
cases.each("GID {} of port {}", itertools.product((0, 1, 0xFFFF_FFFF), (0, 1, 2)), gid_entry)


# Contexts and handles.


def query_context(s):
    vectors, support = Buffer(4), Buffer(8)
    method(s, "QUERY_CONTEXT", pointer_out(0, vectors), pointer_out(1, support))
    return vectors.bytes(), support.bytes()


cases.add("QUERY_CONTEXT", query_context)
cases.add("QUERY_CONTEXT without a context", lambda s: method(s, "QUERY_CONTEXT", pointer_out(0, Buffer(4)), context=s.raw()) and None)


def query_context_driver(s, size):
    output = Buffer(size)
    method(s, "QUERY_CONTEXT", pointer_out(0, Buffer(4)), pointer_out(1, Buffer(8)), pointer_out(UHW_OUT, output))
    return output.bytes()


cases.each("QUERY_CONTEXT, the driver's output of {} bytes", (0, 8, 24), query_context_driver)


def get_context(s, *attributes, twice=False):
    """Calls GET_CONTEXT by ioctl, with the same input and output for the driver as the write command."""
    context = s.raw()
    vectors, output = Buffer(4), Buffer(24)
    sent = [pointer_out(0, vectors), pointer_out(1, Buffer(8)), pointer_out(UHW_OUT, output), *attributes]
    method(s, "GET_CONTEXT", *sent, context=context)
    again = attempt(lambda: method(s, "GET_CONTEXT", *sent, context=context) and None) if twice else ""
    return vectors.bytes(), output.bytes(), again


KNOWN = struct.pack("<II", 3, 0)
cases.add("GET_CONTEXT", lambda s: get_context(s, pointer_in(UHW_IN, KNOWN)))
cases.add("GET_CONTEXT, twice", lambda s: get_context(s, pointer_in(UHW_IN, KNOWN), twice=True))
cases.add("GET_CONTEXT without input", get_context)
cases.each("GET_CONTEXT, input of {} bytes", (0, 1, 3, 4, 7, 8), lambda s, size: get_context(s, pointer_in(UHW_IN, KNOWN[:size])))
cases.add("GET_CONTEXT, input of nowhere", lambda s: get_context(s, Attribute(UHW_IN, 16, 4096)))


@cases.case("GET_CONTEXT, core support")
def core_support(s):
    support = Buffer(8)
    sent = [pointer_out(0, Buffer(4)), pointer_out(1, support), pointer_in(UHW_IN, KNOWN)]
    method(s, "GET_CONTEXT", *sent, context=s.raw())
    return int.from_bytes(support.bytes(), "little")


def handles(s, kind, room=64):
    s.mr(), s.ah(), s.a_qp
    total, found = Buffer(4), Buffer(room)
    method(s, "INFO_HANDLES", pointer_in(0, struct.pack("<Q", kind)), pointer_out(1, total), pointer_out(2, found))
    return int.from_bytes(total.bytes(), "little")


cases.each("INFO_HANDLES of kind {}", range(20), handles)
cases.each("INFO_HANDLES with room for {} bytes", (0, 1, 4, 8), lambda s, room: handles(s, 7, room))

# Write commands within an ioctl.


def invoke(s, command, core_in, out_size, driver_in=b"", driver_out=0):
    core, driver = Buffer(out_size), Buffer(driver_out)
    sent = [pointer_in(2, struct.pack("<I", command)), pointer_in(0, core_in)]
    if out_size:
        sent.append(pointer_out(1, core))
    if driver_in:
        sent.append(pointer_in(UHW_IN, driver_in))
    if driver_out:
        sent.append(pointer_out(UHW_OUT, driver))
    method(s, "INVOKE_WRITE", *sent)
    return core.bytes()[:0], driver.bytes()[:4]


ALLOC_PD, DEALLOC_PD = 3, 4
cases.add("INVOKE_WRITE of ALLOC_PD", lambda s: invoke(s, ALLOC_PD, bytes(8), 4, b"", 8))
cases.add("INVOKE_WRITE of ALLOC_PD without output", lambda s: invoke(s, ALLOC_PD, bytes(8), 0))
cases.add("INVOKE_WRITE of ALLOC_PD with input", lambda s: invoke(s, ALLOC_PD, bytes(8), 4, b"\1" + bytes(7), 8))
cases.add("INVOKE_WRITE of ALLOC_PD with a short output", lambda s: invoke(s, ALLOC_PD, bytes(8), 4, b"", 4))
cases.add("INVOKE_WRITE of DEALLOC_PD of nothing", lambda s: invoke(s, DEALLOC_PD, struct.pack("<I", 77), 0))
UNKNOWN = (0, 1, 2, 12, 26, 41, 50, 255, 0x8000_0001, 0xFFFF_FFFF)
cases.each("INVOKE_WRITE of {:#x}", UNKNOWN, lambda s, command: invoke(s, command, bytes(8), 8))
