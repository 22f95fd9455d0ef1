# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Queries of a device, its port, contexts and handles."""

import struct

from harness import Cases, attempt
from uverbs import (
    METHOD_QUERY_PORT_SPEED,
    OBJECT_DEVICE,
    QUERY_DEVICE,
    QUERY_DEVICE_SIZE,
    UHW_IN,
    UHW_OUT,
    Attribute,
    Buffer,
    pointer_in,
    pointer_out,
)

cases = Cases("query")
DEVICES = ("efa3", "efa4", "efa0", "efa2", "no-eq", "small")

# Device. The core's response has firmware version, GUIDs and limits.


def differs(values):
    """Returns the nonzero fields by index. The caller removes the firmware version in front, which each driver chooses."""
    return ", ".join(f"{place}={value:#x}" for place, value in enumerate(values) if value)


for device in DEVICES:

    def limits(s):
        core, driver = s.context.query_device()
        # GUIDs depend on the device's number.
        return differs(core[3:]), driver

    cases.add(f"{device}: device", limits, device)
    cases.add(f"{device}: device by write", lambda s: s.context.command(QUERY_DEVICE, b"", 184)[24:], device)
for name, data in (("zeros", bytes(8)), ("a bit", b"\1" + bytes(7)), ("a late bit", bytes(63) + b"\x80")):
    cases.add(f"device, input for the driver: {name}", lambda s, data=data: s.context.query_device(request=data)[1])
for size in (0, 8, 16, 24, 32, 64):
    cases.add(f"device, output of {size} bytes", lambda s, size=size: s.context.query_device(out_size=size)[1])
for size in (0, 8, 184, 192, 256, 304, 504, 512):

    def shorter(s, size=size):
        return s.context.extended(QUERY_DEVICE, bytes(8), size)[176:]

    cases.add(f"device, the core's output of {size} bytes", shorter)
for mask in (1, 0xFFFF_FFFF):
    cases.add(
        f"device, comp_mask {mask:#x}",
        lambda s, mask=mask: s.context.extended(QUERY_DEVICE, struct.pack("<II", mask, 0), 512) and None,
    )
    cases.add(
        f"device, reserved {mask:#x}",
        lambda s, mask=mask: s.context.extended(QUERY_DEVICE, struct.pack("<II", 0, mask), 512) and None,
    )
for accessible in (0, 8, 304, 511, 520):
    cases.add(
        f"device, response to nowhere after {accessible} bytes",
        lambda s, accessible=accessible: (
            s.context.extended(QUERY_DEVICE, bytes(8), QUERY_DEVICE_SIZE, b"", 24, Buffer(536, accessible=accessible)) and None
        ),
    )
for size in (0, 4, 176, 180, 184, 188):
    cases.add(f"device by write, output of {size} bytes", lambda s, size=size: s.context.command(QUERY_DEVICE, b"", size)[24:])

# Port.

for device in DEVICES:
    cases.add(f"{device}: port", lambda s: s.context.query_port(1), device)
    cases.add(f"{device}: port speed", lambda s: s.context.query_port_speed(1), device)
for port in (0, 2, 255):
    cases.add(f"port {port}", lambda s, port=port: s.context.query_port(port))
for port in (0, 2, 255, 1 << 31, 1 << 32, (1 << 64) - 1):
    cases.add(f"port speed of port {port}", lambda s, port=port: s.context.query_port_speed(port))

NAMES = "INVOKE_WRITE INFO_HANDLES QUERY_PORT GET_CONTEXT QUERY_CONTEXT QUERY_GID_TABLE QUERY_GID_ENTRY".split()
METHODS = {name: number for number, name in enumerate(NAMES)}


def method(s, name, *attributes, context=None):
    return (context or s.context).ioctl(OBJECT_DEVICE, METHODS[name], *attributes)


def asked(name, size, number, *attributes):
    """Returns a case that calls a method with one output and has that output as its result."""

    def run(s):
        output = Buffer(size)
        method(s, name, *attributes, pointer_out(number, output))
        return output.bytes()

    return run


for size in (0, 4, 40, 48, 56, 64):
    cases.add(f"QUERY_PORT, output of {size} bytes", asked("QUERY_PORT", size, 1, pointer_in(0, b"\1")))
for port in (0, 1, 2):
    cases.add(f"QUERY_PORT of port {port}", asked("QUERY_PORT", 48, 1, pointer_in(0, bytes([port]))))


def port_speed(*attributes):
    return lambda s: s.context.ioctl(OBJECT_DEVICE, METHOD_QUERY_PORT_SPEED, *attributes) and None


ONE = struct.pack("<Q", 1)
cases.add("port speed without a port", port_speed(pointer_out(1, Buffer(8))))
cases.add("port speed without an output", port_speed(pointer_in(0, ONE)))
cases.add("port speed to nowhere", port_speed(pointer_in(0, ONE), Attribute(1, 8, 4096)))
cases.add("port speed of 4 bytes", port_speed(pointer_in(0, ONE), pointer_out(1, Buffer(4))))
cases.add("port speed of 16 bytes", port_speed(pointer_in(0, ONE), pointer_out(1, Buffer(16))))
cases.add("port as 4 bytes", port_speed(pointer_in(0, ONE[:4]), pointer_out(1, Buffer(8))))

for entry_size in (0, 8, 24, 32, 40, 64):
    for room in (0, 32, 64):

        def gid_table(s, entry_size=entry_size, room=room):
            entries, count = Buffer(room), Buffer(8)
            sent = (pointer_in(0, struct.pack("<Q", entry_size)), pointer_in(1, struct.pack("<I", 0)))
            method(s, "QUERY_GID_TABLE", *sent, pointer_out(2, entries), pointer_out(3, count))
            return count.bytes(), entries.bytes()

        cases.add(f"GID table, entries of {entry_size} in {room} bytes", gid_table)
for index in (0, 1, 0xFFFF_FFFF):
    for port in (0, 1, 2):

        def gid_entry(s, index=index, port=port):
            entry = Buffer(32)
            sent = [pointer_in(number, struct.pack("<I", value)) for number, value in enumerate((port, index, 0))]
            method(s, "QUERY_GID_ENTRY", *sent, pointer_out(3, entry))
            return entry.bytes()

        cases.add(f"GID {index} of port {port}", gid_entry)


# Contexts and handles.


def query_context(s):
    vectors, support = Buffer(4), Buffer(8)
    method(s, "QUERY_CONTEXT", pointer_out(0, vectors), pointer_out(1, support))
    return vectors.bytes(), support.bytes()


cases.add("QUERY_CONTEXT", query_context)
cases.add("QUERY_CONTEXT without a context", lambda s: method(s, "QUERY_CONTEXT", pointer_out(0, Buffer(4)), context=s.raw()) and None)


def query_context_driver(size):
    def run(s):
        output = Buffer(size)
        method(s, "QUERY_CONTEXT", pointer_out(0, Buffer(4)), pointer_out(1, Buffer(8)), pointer_out(UHW_OUT, output))
        return output.bytes()

    return run


for size in (0, 8, 24):
    cases.add(f"QUERY_CONTEXT, the driver's output of {size} bytes", query_context_driver(size))


def get_context(*attributes, twice=False):
    """Returns a case of GET_CONTEXT by ioctl, with the same input and output for the driver as the write command."""

    def run(s):
        context = s.raw()
        vectors, output = Buffer(4), Buffer(24)
        sent = [pointer_out(0, vectors), pointer_out(1, Buffer(8)), pointer_out(UHW_OUT, output), *attributes]
        method(s, "GET_CONTEXT", *sent, context=context)
        again = attempt(lambda: method(s, "GET_CONTEXT", *sent, context=context) and None) if twice else ""
        return vectors.bytes(), output.bytes(), again

    return run


cases.add("GET_CONTEXT", get_context(pointer_in(UHW_IN, struct.pack("<II", 3, 0))))
cases.add("GET_CONTEXT, twice", get_context(pointer_in(UHW_IN, struct.pack("<II", 3, 0)), twice=True))
cases.add("GET_CONTEXT without input", get_context())
for size in (0, 1, 3, 4, 7, 8):
    cases.add(f"GET_CONTEXT, input of {size} bytes", get_context(pointer_in(UHW_IN, struct.pack("<II", 3, 0)[:size])))
cases.add("GET_CONTEXT, input of nowhere", get_context(Attribute(UHW_IN, 16, 4096)))


@cases.case("GET_CONTEXT, core support")
def core_support(s):
    support = Buffer(8)
    sent = [pointer_out(0, Buffer(4)), pointer_out(1, support), pointer_in(UHW_IN, struct.pack("<II", 3, 0))]
    method(s, "GET_CONTEXT", *sent, context=s.raw())
    return int.from_bytes(support.bytes(), "little")


def handles(kind, room=64):
    def run(s):
        s.mr(), s.ah(), s.a_qp
        total, found = Buffer(4), Buffer(room)
        method(s, "INFO_HANDLES", pointer_in(0, struct.pack("<Q", kind)), pointer_out(1, total), pointer_out(2, found))
        count = int.from_bytes(total.bytes(), "little")
        return count

    return run


for kind in range(20):
    cases.add(f"INFO_HANDLES of kind {kind}", handles(kind))
for room in (0, 1, 4, 8):
    cases.add(f"INFO_HANDLES with room for {room} bytes", handles(7, room))

# Write commands within an ioctl.


def invoke(command, core_in, out_size, driver_in=b"", driver_out=0):
    def run(s):
        core, driver = Buffer(out_size), Buffer(driver_out)
        sent = [pointer_in(2, struct.pack("<I", command))]
        if core_in:
            sent.append(pointer_in(0, core_in))
        if out_size:
            sent.append(pointer_out(1, core))
        if driver_in:
            sent.append(pointer_in(UHW_IN, driver_in))
        if driver_out:
            sent.append(pointer_out(UHW_OUT, driver))
        method(s, "INVOKE_WRITE", *sent)
        return core.bytes()[:0], driver.bytes()[:4]

    return run


ALLOC_PD, DEALLOC_PD = 3, 4
cases.add("INVOKE_WRITE of ALLOC_PD", invoke(ALLOC_PD, bytes(8), 4, b"", 8))
cases.add("INVOKE_WRITE of ALLOC_PD without output", invoke(ALLOC_PD, bytes(8), 0))
cases.add("INVOKE_WRITE of ALLOC_PD with input", invoke(ALLOC_PD, bytes(8), 4, b"\1" + bytes(7), 8))
cases.add("INVOKE_WRITE of ALLOC_PD with a short output", invoke(ALLOC_PD, bytes(8), 4, b"", 4))
cases.add("INVOKE_WRITE of DEALLOC_PD of nothing", invoke(DEALLOC_PD, struct.pack("<I", 77), 0))
for command in (0, 1, 2, 12, 26, 41, 50, 255, 0x8000_0001, 0xFFFF_FFFF):
    cases.add(f"INVOKE_WRITE of {command:#x}", invoke(command, bytes(8), 8))
