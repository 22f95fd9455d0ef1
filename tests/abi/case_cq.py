# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Completion queues."""

import struct

import objects
from harness import Cases, attempt, attempts, in_another_context, many, twice, until_refused
from objects import CQ_WITH_COMPLETION_CHANNEL, CQ_WITH_SGID, CQ_WITH_SQ_COMP_64_BIT_REQ_ID, CompletionChannel
from uverbs import UHW_IN, UHW_OUT, Attribute, Buffer, object_handle, pointer_in, pointer_out

cases = Cases("cq")


def add(name, device=None, **options):
    cases.add(name, lambda s: s.cq(**options), device)


# The core's fields.

DEPTHS = (0, 1, 2, 3, 16, 127, 128, 129, 4096, 32767, 32768, 32769, 0x8000_0000, 0xFFFF_FFFF)
cases.each("cqe {}", DEPTHS, lambda s, cqe: s.cq(cqe=cqe))
VECTORS = (0, 1, 2, 3, 0x7FFF_FFFF, 0xFFFF_FFFF)
cases.each("vector {:#x}", VECTORS, lambda s, vector: s.cq(vector=vector))
cases.each("vector {:#x} with events", VECTORS, lambda s, vector: s.cq(vector=vector, flags=CQ_WITH_COMPLETION_CHANNEL))
FLAGS = (0, 1, 2, 3, 4, 1 << 31, 1 << 32)
cases.each("core flags {:#x}", FLAGS, lambda s, flags: s.cq(replace={5: pointer_in(5, struct.pack("<Q", flags))}))
add("core flags of 4 bytes", replace={5: pointer_in(5, struct.pack("<I", 0))})
add("core flags of 2 bytes", replace={5: pointer_in(5, struct.pack("<H", 0))})
add("core flags are absent", cq_flags=None)
ATTRIBUTES = ("handle", "cqe", "user handle", "channel", "vector", "flags", "response cqe", "event file")
cases.each("without {}", ATTRIBUTES, lambda s, name: s.cq(replace={ATTRIBUTES.index(name): None}))
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


def with_channel(s, context=None, **options):
    channel = CompletionChannel(context or s.context)
    s.stack.callback(channel.close)
    return s.cq(channel=channel.fd, **options)


cases.add("a channel", lambda s: with_channel(s, flags=CQ_WITH_COMPLETION_CHANNEL))
cases.add("a channel without the driver's flag", with_channel)


@cases.case("a channel that is closed first")
def channel_closed(s):
    channel = CompletionChannel(s.context)
    cq = s.cq(flags=CQ_WITH_COMPLETION_CHANNEL, channel=channel.fd)
    channel.close()
    return cq, attempt(cq.destroy)


cases.add("another context's channel", lambda s: with_channel(s, s.open(), flags=CQ_WITH_COMPLETION_CHANNEL))
add("a channel that is no file", channel=9999)
add("a channel that is another file", channel=0)

# The driver's fields.

for device in ("efa3", "efa4", "efa0", "efa2", "no-eq"):
    cases.each(device + ": flags {}", range(4), lambda s, flags: s.cq(flags=flags), device)
add("request ids of 64 bits", flags=CQ_WITH_SQ_COMP_64_BIT_REQ_ID)
cases.each("unknown flag {:#x}", [1 << bit for bit in range(3, 8)], lambda s, flags: s.cq(flags=flags))
add("all flags", flags=0xFF)
SIZES = (0, 4, 8, 15, 16, 17, 31, 32, 33, 64, 0x8000_0020, 0xFFFF_FFFF)
cases.each("entry size {}", SIZES, lambda s, size: s.cq(cq_entry_size=size))
cases.each("entry size {} with sgid", SIZES, lambda s, size: s.cq(cq_entry_size=size, flags=CQ_WITH_SGID))
for prefix, device in (("", "efa3"), ("small: ", "small")):
    cases.each(prefix + "{} sub-queues", (0, 1, 2, 4, 0xFFFF), lambda s, number: s.cq(num_sub_cqs=number), device)
cases.each("comp_mask bit {}", (0, 1, 31), lambda s, bit: s.cq(comp_mask=1 << bit))
cases.each("reserved byte {}", range(5), lambda s, byte: s.cq(reserved=bytes(byte) + b"\1" + bytes(4 - byte)))
add("reserved byte and comp_mask", reserved=b"\1" + bytes(4), comp_mask=1)
add("reserved byte and entry size", reserved=b"\1" + bytes(4), cq_entry_size=5)
add("too many and comp_mask", cqe=32769, comp_mask=1)
add("core flags and comp_mask", cq_flags=1, comp_mask=1)
cases.each("small: depth {}", (64, 65), lambda s, cqe: s.cq(num_sub_cqs=4, cqe=cqe), "small")

REQUEST = struct.pack("<IIHB5s", 0, 32, 1, 0, bytes(5))
cases.each("request of {} bytes", range(17), lambda s, size: s.cq(request=REQUEST[:size]))
TAILS = (("zeros", bytes(1)), ("many zeros", bytes(4000)), ("a bit", b"\1"), ("a late bit", bytes(100) + b"\x80"))
cases.each("longer request: {}", TAILS, lambda s, _, tail: s.cq(request=REQUEST + tail))
add("request too long", request=REQUEST + bytes(0x10000 - 17))
add("no request", replace={UHW_IN: None})
add("request to nowhere", replace={UHW_IN: Attribute(UHW_IN, 16, 4096)})
add("request to the kernel", replace={UHW_IN: Attribute(UHW_IN, 16, 0xFFFF_8000_0000_0000)})
add("short request to nowhere", replace={UHW_IN: Attribute(UHW_IN, 9, 4096)})
ROOMS = (0, 1, 4, 8, 24, 39, 40, 41, 64, 4096)
cases.each("response of {} bytes", ROOMS, lambda s, size: (cq := s.cq(out_size=size), len(cq.raw), cq.raw[40:]))
add("no response", replace={UHW_OUT: None})


def response_to_nowhere(s, accessible, flags=0):
    buffer = Buffer(40, accessible=accessible)
    s.cq(flags=flags, replace={UHW_OUT: Attribute(UHW_OUT, 40, buffer.address, keep=buffer)})
    # The rest depends on the number that the device has assigned.
    return buffer.bytes()[:24]


cases.each("response to nowhere after {} bytes", (0, 1, 8, 39, 40), response_to_nowhere)
cases.each(
    "response to nowhere after {} bytes with events", (0, 1, 8, 39, 40), lambda s, n: response_to_nowhere(s, n, CQ_WITH_COMPLETION_CHANNEL)
)
add("response to the kernel", replace={UHW_OUT: Attribute(UHW_OUT, 40, 0xFFFF_8000_0000_0000)})
add("longer response to nowhere", replace={UHW_OUT: Attribute(UHW_OUT, 4096, 0xFFFF_8000_0000_0000)})

# Destruction.


cases.add("destroy by ioctl", lambda s: twice(s.a_cq.destroy))
cases.add("destroy by write", lambda s: twice(s.a_cq.destroy_by_write))
cases.add("destroy in use", lambda s: (qp := s.a_qp) and attempts(s.a_cq.destroy, qp.destroy, s.a_cq.destroy))


@cases.case("destroy in use as a receive queue")
def destroy_in_use_recv(s):
    send, recv = s.cq(), s.cq()
    s.qp(send_cq=send.handle, recv_cq=recv.handle)
    return attempt(recv.destroy), attempt(send.destroy_by_write)


cases.add("destroy of another context's", lambda s: (other := s.open()) and in_another_context(s.a_cq, other, "destroy"))


def destroy(s, handle, *attributes):
    s.context.ioctl(objects.OBJECT_CQ, objects.METHOD_CQ_DESTROY, object_handle(0, handle), *attributes)


@cases.case("destroy with a response to nowhere")
def destroy_nowhere(s):
    return attempt(destroy, s, s.a_cq.handle, Attribute(1, 8, 4096)), attempt(s.a_cq.destroy)


cases.add("destroy without a response", lambda s: destroy(s, s.a_cq.handle))
HANDLES = (0, 1, 77, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 32, 1 << 63)
cases.each("destroy of handle {:#x}", HANDLES, lambda s, handle: destroy(s, handle, pointer_out(1, Buffer(8))))
cases.add("destroy of another kind of object", lambda s: destroy(s, s.pd, pointer_out(1, Buffer(8))))
cases.add("more than the device has", lambda s: until_refused(lambda: s.cq(num_sub_cqs=4), 6), "small")


@cases.case("many")
def many_queues(s):
    many(s, 300, lambda number: s.cq(flags=number & 3), objects.CompletionQueue.destroy)
    return [s.cq() and 1 for _ in range(100)].count(1)


# Creation by other commands, and operations that other drivers' completion queues have.

CREATE_CQ, RESIZE_CQ, POLL_CQ, PEEK_CQ, REQ_NOTIFY_CQ = 18, 19, 21, 22, 23
COMMANDS = (
    ("CREATE_CQ", CREATE_CQ, 24, 64),
    ("RESIZE_CQ", RESIZE_CQ, 8, 16),
    ("POLL_CQ", POLL_CQ, 8, 64),
    ("PEEK_CQ", PEEK_CQ, 8, 64),
)
cases.each("{} by write", COMMANDS, lambda s, _, number, size, out: s.context.command(number, bytes(size), out))
cases.add("REQ_NOTIFY_CQ by write", lambda s: s.context.send(REQ_NOTIFY_CQ, struct.pack("<II", s.a_cq.handle, 0)))
# Without the driver's part of the response, which has the number of the queue.
cases.add("EX_CREATE_CQ", lambda s: s.context.extended(CREATE_CQ, struct.pack("<QIIiIII", 0, 16, 0, -1, 0, 0, 0), 16, REQUEST, 40)[:16])
cases.add("EX_MODIFY_CQ", lambda s: s.context.extended(57, struct.pack("<IIHHI", s.a_cq.handle, 1, 1, 1, 0)))
cases.add("an unknown method", lambda s: s.context.ioctl(objects.OBJECT_CQ, 2))
cases.add("an unknown method of the driver", lambda s: s.context.ioctl(objects.OBJECT_CQ, 0x1000))
