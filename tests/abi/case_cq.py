# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Completion queues."""

import struct

import objects
from harness import Cases, attempt
from objects import CQ_WITH_COMPLETION_CHANNEL, CQ_WITH_SGID, CQ_WITH_SQ_COMP_64_BIT_REQ_ID, CompletionChannel
from uverbs import UHW_IN, UHW_OUT, Attribute, Buffer, object_handle, pointer_in, pointer_out

cases = Cases("cq")


def add(name, device=None, **options):
    cases.add(name, lambda s: s.cq(**options), device)


# The core's fields.

for cqe in (0, 1, 2, 3, 16, 127, 128, 129, 4096, 32767, 32768, 32769, 0x8000_0000, 0xFFFF_FFFF):
    add(f"cqe {cqe}", cqe=cqe)
for vector in (0, 1, 2, 3, 0x7FFF_FFFF, 0xFFFF_FFFF):
    add(f"vector {vector:#x}", vector=vector)
    add(f"vector {vector:#x} with events", vector=vector, flags=CQ_WITH_COMPLETION_CHANNEL)
for flags in (0, 1, 2, 3, 4, 1 << 31, 1 << 32):
    add(f"core flags {flags:#x}", replace={5: pointer_in(5, struct.pack("<Q", flags))})
add("core flags of 4 bytes", replace={5: pointer_in(5, struct.pack("<I", 0))})
add("core flags of 2 bytes", replace={5: pointer_in(5, struct.pack("<H", 0))})
add("core flags are absent", cq_flags=None)
for number, name in enumerate(("handle", "cqe", "user handle", "channel", "vector", "flags", "response cqe", "event file")):
    add(f"without {name}", replace={number: None})
add("cqe of 8 bytes", replace={1: pointer_in(1, struct.pack("<Q", 16))})
add("cqe of 2 bytes", replace={1: pointer_in(1, struct.pack("<H", 16))})
add("cqe to nowhere", replace={1: Attribute(1, 16, 0)})
add("response cqe to nowhere", replace={6: Attribute(6, 4, 4096)})
add("response cqe of 8 bytes", replace={6: pointer_out(6, Buffer(8))})
add("response cqe of 2 bytes", replace={6: pointer_out(6, Buffer(2))})
add("an attribute twice", attributes=(pointer_in(1, struct.pack("<I", 16)),))
add("an unknown attribute", attributes=(Attribute(99, 8, 0),))
add("an unknown optional attribute", attributes=(Attribute(99, 8, 0, mandatory=False),))
add("an unknown attribute of the driver", attributes=(Attribute(0x1002, 8, 0),))
add("an unknown optional attribute of the driver", attributes=(Attribute(0x1002, 8, 0, mandatory=False),))
add("reserved bits of an attribute", replace={1: Attribute(1, 4, 16, reserved=1)})
add("reserved bits of the driver's attribute", replace={UHW_OUT: Attribute(UHW_OUT, 40, 4096, reserved=1)})
add("handle with a length", replace={0: Attribute(0, 4, 0)})
add("another driver's id", driver=1)
add("event file of another kind", replace={7: Attribute(7, 0, 0)})


@cases.case("a channel")
def channel(s):
    channel = CompletionChannel(s.context)
    s.stack.callback(channel.close)
    return s.cq(flags=CQ_WITH_COMPLETION_CHANNEL, channel=channel.fd)


@cases.case("a channel without the driver's flag")
def channel_without_flag(s):
    channel = CompletionChannel(s.context)
    s.stack.callback(channel.close)
    return s.cq(channel=channel.fd)


@cases.case("a channel that is closed first")
def channel_closed(s):
    channel = CompletionChannel(s.context)
    cq = s.cq(flags=CQ_WITH_COMPLETION_CHANNEL, channel=channel.fd)
    channel.close()
    return cq, attempt(cq.destroy)


@cases.case("another context's channel")
def other_channel(s):
    channel = CompletionChannel(s.open())
    s.stack.callback(channel.close)
    return attempt(s.cq, flags=CQ_WITH_COMPLETION_CHANNEL, channel=channel.fd)


add("a channel that is no file", channel=9999)
add("a channel that is another file", channel=0)

# The driver's fields.

for device in ("efa3", "efa4", "efa0", "efa2", "no-eq"):
    for flags in (0, CQ_WITH_COMPLETION_CHANNEL, CQ_WITH_SGID, CQ_WITH_SGID | CQ_WITH_COMPLETION_CHANNEL):
        add(f"{device}: flags {flags}", device, flags=flags)
add("request ids of 64 bits", flags=CQ_WITH_SQ_COMP_64_BIT_REQ_ID)
for bit in range(3, 8):
    add(f"unknown flag {1 << bit:#x}", flags=1 << bit)
add("all flags", flags=0xFF)
for size in (0, 4, 8, 15, 16, 17, 31, 32, 33, 64, 0x8000_0020, 0xFFFF_FFFF):
    add(f"entry size {size}", cq_entry_size=size)
    add(f"entry size {size} with sgid", cq_entry_size=size, flags=CQ_WITH_SGID)
for number in (0, 1, 2, 4, 0xFFFF):
    add(f"{number} sub-queues", num_sub_cqs=number)
    add(f"small: {number} sub-queues", "small", num_sub_cqs=number)
for bit in (0, 1, 31):
    add(f"comp_mask bit {bit}", comp_mask=1 << bit)
for byte in range(5):
    add(f"reserved byte {byte}", reserved=bytes(byte) + b"\1" + bytes(4 - byte))
add("reserved byte and comp_mask", reserved=b"\1" + bytes(4), comp_mask=1)
add("reserved byte and entry size", reserved=b"\1" + bytes(4), cq_entry_size=5)
add("too many and comp_mask", cqe=32769, comp_mask=1)
add("core flags and comp_mask", cq_flags=1, comp_mask=1)
add("small: depth 64", "small", num_sub_cqs=4, cqe=64)
add("small: depth 65", "small", num_sub_cqs=4, cqe=65)

REQUEST = struct.pack("<IIHB5s", 0, 32, 1, 0, bytes(5))
for size in range(0, 17):
    add(f"request of {size} bytes", request=REQUEST[:size])
for name, tail in (("zeros", bytes(1)), ("many zeros", bytes(4000)), ("a bit", b"\1"), ("a late bit", bytes(100) + b"\x80")):
    add(f"longer request: {name}", request=REQUEST + tail)
add("request too long", request=REQUEST + bytes(0x10000 - 17))
add("no request", replace={UHW_IN: None})
add("request to nowhere", replace={UHW_IN: Attribute(UHW_IN, 16, 4096)})
add("request to the kernel", replace={UHW_IN: Attribute(UHW_IN, 16, 0xFFFF_8000_0000_0000)})
add("short request to nowhere", replace={UHW_IN: Attribute(UHW_IN, 9, 4096)})
for size in (0, 1, 4, 8, 24, 39, 40, 41, 64, 4096):
    cases.add(f"response of {size} bytes", lambda s, size=size: (cq := s.cq(out_size=size), len(cq.raw), cq.raw[40:]))
add("no response", replace={UHW_OUT: None})
for accessible in (0, 1, 8, 39, 40):
    for flags in (0, CQ_WITH_COMPLETION_CHANNEL):

        def nowhere(s, accessible=accessible, flags=flags):
            buffer = Buffer(40, accessible=accessible)
            s.cq(flags=flags, replace={UHW_OUT: Attribute(UHW_OUT, 40, buffer.address, keep=buffer)})
            # The rest depends on the number that the device has assigned.
            return buffer.bytes()[:24]

        cases.add(f"response to nowhere after {accessible} bytes{' with events' * flags}", nowhere)
add("response to the kernel", replace={UHW_OUT: Attribute(UHW_OUT, 40, 0xFFFF_8000_0000_0000)})
add("longer response to nowhere", replace={UHW_OUT: Attribute(UHW_OUT, 4096, 0xFFFF_8000_0000_0000)})

# Destruction.


@cases.case("destroy by ioctl")
def destroy(s):
    return attempt(s.a_cq.destroy), attempt(s.a_cq.destroy)


@cases.case("destroy by write")
def destroy_by_write(s):
    return attempt(s.a_cq.destroy_by_write), attempt(s.a_cq.destroy_by_write)


@cases.case("destroy in use")
def destroy_in_use(s):
    qp = s.a_qp
    busy = attempt(s.a_cq.destroy)
    return busy, attempt(qp.destroy), attempt(s.a_cq.destroy)


@cases.case("destroy in use as a receive queue")
def destroy_in_use_recv(s):
    send, recv = s.cq(), s.cq()
    s.qp(send_cq=send.handle, recv_cq=recv.handle)
    return attempt(recv.destroy), attempt(send.destroy_by_write)


@cases.case("destroy of another context's")
def destroy_other(s):
    s.a_cq.context = s.open()
    return attempt(s.a_cq.destroy)


@cases.case("destroy with a response to nowhere")
def destroy_nowhere(s):
    handle = object_handle(0, s.a_cq.handle)
    first = attempt(s.context.ioctl, objects.OBJECT_CQ, objects.METHOD_CQ_DESTROY, handle, Attribute(1, 8, 4096))
    return first, attempt(s.a_cq.destroy)


@cases.case("destroy without a response")
def destroy_without(s):
    return attempt(s.context.ioctl, objects.OBJECT_CQ, objects.METHOD_CQ_DESTROY, object_handle(0, s.a_cq.handle))


for handle in (0, 1, 77, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 32, 1 << 63):

    def destroy_handle(s, handle=handle):
        s.context.ioctl(objects.OBJECT_CQ, objects.METHOD_CQ_DESTROY, object_handle(0, handle), pointer_out(1, Buffer(8)))

    cases.add(f"destroy of handle {handle:#x}", destroy_handle)


@cases.case("destroy of another kind of object")
def destroy_kind(s):
    handle = object_handle(0, s.pd)
    return attempt(s.context.ioctl, objects.OBJECT_CQ, objects.METHOD_CQ_DESTROY, handle, pointer_out(1, Buffer(8)))


@cases.case("more than the device has", "small")
def limit(s):
    return [attempt(lambda: s.cq(num_sub_cqs=4) and None) for _ in range(6)]


@cases.case("many")
def many(s):
    s.shows_commands = False
    queues = [s.cq(flags=index & 3) for index in range(300)]
    for cq in queues[::2]:
        cq.destroy()
    return [s.cq() and 1 for _ in range(100)].count(1)


# Creation by other commands, and operations that other drivers' completion queues have.

CREATE_CQ, RESIZE_CQ, POLL_CQ, PEEK_CQ, REQ_NOTIFY_CQ = 18, 19, 21, 22, 23
for number, name, size, out in (
    (CREATE_CQ, "CREATE_CQ", 24, 64),
    (RESIZE_CQ, "RESIZE_CQ", 8, 16),
    (POLL_CQ, "POLL_CQ", 8, 64),
    (PEEK_CQ, "PEEK_CQ", 8, 64),
):
    cases.add(f"{name} by write", lambda s, number=number, size=size, out=out: s.context.command(number, bytes(size), out))
cases.add("REQ_NOTIFY_CQ by write", lambda s: s.context.send(REQ_NOTIFY_CQ, struct.pack("<II", s.a_cq.handle, 0)))
# Without the driver's part of the response, which has the number of the queue.
cases.add("EX_CREATE_CQ", lambda s: s.context.extended(CREATE_CQ, struct.pack("<QIIiIII", 0, 16, 0, -1, 0, 0, 0), 16, REQUEST, 40)[:16])
cases.add("EX_MODIFY_CQ", lambda s: s.context.extended(57, struct.pack("<IIHHI", s.a_cq.handle, 1, 1, 1, 0)))
cases.add("an unknown method", lambda s: s.context.ioctl(objects.OBJECT_CQ, 2))
cases.add("an unknown method of the driver", lambda s: s.context.ioctl(objects.OBJECT_CQ, 0x1000))
