# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Queue pairs: creation and destruction."""

import itertools
import struct

import objects
from harness import Cases, attempt, attempts, in_another_context, many, twice, until_refused
from objects import DESTROY_QP, QP_RESPONSE, QPT_DRIVER, QPT_RC, QPT_UD, IoctlQueuePair, buffer_in, object_handle
from uverbs import UHW_IN, UHW_OUT, Attribute, Buffer, pointer_in

cases = Cases("qp")
REQUEST = struct.pack("<4IHB5s", 0, 16 * 16, 16 * 64, 0, 0, 0, bytes(5))


def add(name, device=None, **options):
    cases.add(name, lambda s: s.qp(**options), device)


def sized(send=16, recv=16, wqe=64, rqe=16, **options):
    """Returns depths and ring sizes as the library calculates them."""
    return {"max_send_wr": send, "max_recv_wr": recv, "sq_ring_size": send * wqe, "rq_ring_size": recv * rqe, **options}


# Types.

TYPES = {"SMI": 0, "GSI": 1, "RC": 2, "UC": 3, "UD": 4, "RAW_IPV6": 5, "RAW_ETHERTYPE": 6, "RAW_PACKET": 8}
TYPES |= {"XRC_INI": 9, "XRC_TGT": 10, "MAX": 11, "127": 127, "DRIVER": 255, "254": 254}
cases.each("type {}", TYPES.items(), lambda s, _, qp_type: s.qp(qp_type=qp_type))
BY_IOCTL = [(name, TYPES[name]) for name in ("RC", "UC", "UD", "DRIVER", "RAW_PACKET", "XRC_INI")]
cases.each("type {} by ioctl", BY_IOCTL, lambda s, _, qp_type: s.qp(IoctlQueuePair, qp_type=qp_type))
cases.each(
    "type {}, the driver's {:#x}",
    itertools.product((QPT_UD, QPT_DRIVER, QPT_RC), (1, 2, 0x8000_0000, 0xFFFF_FFFF)),
    lambda s, qp_type, driver_type: s.qp(qp_type=qp_type, driver_qp_type=driver_type),
)

# Sizes.

SEND = (0, 1, 2, 3, 8, 64, 4096, 4097, 8192, 0x8000_0000, 0xFFFF_FFFF)
cases.each("send depth {}", SEND, lambda s, depth: s.qp(**sized(send=depth, sq_ring_size=depth * 64 & 0xFFFF_FFFF)))
cases.each("wide send depth {}", SEND, lambda s, depth: s.qp(**sized(send=depth, sq_ring_size=depth * 128 & 0xFFFF_FFFF)))
RECEIVE = (0, 1, 2, 3, 100, 256, 32768, 32769, 65536)
cases.each("receive depth {}", RECEIVE, lambda s, depth: s.qp(**sized(recv=depth)))
add("receive depth 0xffffffff", max_recv_wr=0xFFFF_FFFF)
SEND_RINGS = (0, 1, 63, 64, 1023, 1025, 2048, 4096 * 64, 4096 * 64 + 1, 0x8000_0000, 0xFFFF_FFFF)
cases.each("send ring of {} bytes", SEND_RINGS, lambda s, size: s.qp(sq_ring_size=size))
RECEIVE_RINGS = (
    *(1, 15, 16, 17, 255, 257, 4096, 4097, 8192, 12288, 1 << 20, 2 << 20, 4 << 20),
    *((4 << 20) + 1, 8 << 20, 1 << 30, 0x8000_0000, 0xFFFF_F000, 0xFFFF_F001, 0xFFFF_FFFF),
)
cases.each("receive ring of {} bytes", RECEIVE_RINGS, lambda s, size: s.qp(rq_ring_size=size))
add("receive ring without entries", max_recv_wr=0)
add("receive entries without a ring", rq_ring_size=0)
add("no receive queue", **sized(recv=0))
add("no send queue", **sized(send=0))
add("no queue", **sized(send=0, recv=0))
for field, most in (("max_send_sge", 2), ("max_recv_sge", 3), ("max_inline_data", 80)):
    cases.each(field + " {}", (0, most, most + 1, 0x8000_0000, 0xFFFF_FFFF), lambda s, value, field=field: s.qp(**{field: value}))
for device, inline in (("efa0", 32), ("efa2", 32), ("efa4", 80)):
    cases.each(device + ": inline {}", (inline, inline + 1), lambda s, size: s.qp(max_inline_data=size), device)
    add(f"{device}: wide", device, **sized(wqe=128))
    add(f"{device}: UD", device, qp_type=QPT_UD)
SMALL = (
    ("the maximum", sized(send=16, recv=64, wqe=128)),
    ("a send ring too large", sized(send=32, wqe=128)),
    ("too few send requests", sized(send=2)),
    ("too many send requests", sized(send=64)),
    ("too many receive requests", sized(recv=128)),
)
cases.each("small: {}", SMALL, lambda s, _, options: s.qp(send_cq=s.cq(num_sub_cqs=4).handle, **options), "small")

# The driver's other fields.

for prefix, device in (("", "efa3"), ("efa0: ", "efa0")):
    cases.each(prefix + "flags {:#x}", (1, 2, 3, 4, 0x8000, 0xFFFF), lambda s, flags: s.qp(flags=flags), device)
add("UD with unsolicited writes", qp_type=QPT_UD, flags=1)
cases.each("service level {}", (1, 8, 255), lambda s, level: s.qp(sl=level))
cases.each("comp_mask bit {}", (0, 1, 31), lambda s, bit: s.qp(comp_mask=1 << bit))
cases.each("reserved byte {}", range(5), lambda s, byte: s.qp(reserved=bytes(byte) + b"\1" + bytes(4 - byte)))
cases.each("request of {} bytes", range(0, 24, 4), lambda s, size: s.qp(request=REQUEST[:size]))
TAILS = (("zeros", bytes(4)), ("many zeros", bytes(4000)), ("a bit", b"\1\0\0\0"), ("a late bit", bytes(99) + b"\x80"))
cases.each("longer request: {}", TAILS, lambda s, _, tail: s.qp(request=REQUEST + tail))
ROOMS = (0, 4, 20, 56, 60, 64, 68, 128)
cases.each("response of {} bytes", ROOMS, lambda s, size: (qp := s.qp(out_size=size), qp.raw[60:]))
cases.each("response to nowhere after {} bytes", (0, 4, 31, 32, 36, 95), lambda s, n: s.qp(buffer=Buffer(96, accessible=n)))

# Which error is reported first.

TWO_ERRORS = (
    ("reserved and comp_mask", {"reserved": b"\1" * 5, "comp_mask": 1}),
    ("reserved and flags", {"reserved": b"\1" * 5, "flags": 2}),
    ("flags and size", {"flags": 2, "max_send_wr": 4097}),
    ("size and type", {"max_send_wr": 4097, "qp_type": QPT_RC}),
    ("type and the driver's", {"qp_type": QPT_RC, "driver_qp_type": 1}),
    ("the driver's type and a ring too large", {"driver_qp_type": 1, "sq_ring_size": 1 << 30}),
)
cases.each("two errors: {}", TWO_ERRORS, lambda s, _, options: s.qp(**options))

# Other objects.

USED = ("pd", "send_cq", "recv_cq")


def gone(s, name):
    if name == "pd":
        return s.qp(pd=s.gone_pd(), send_cq=s.a_cq.handle)
    cq = s.cq()
    cq.destroy()
    return s.qp(**{"send_cq": s.a_cq.handle, name: cq.handle})


def other(s, name):
    context = s.open()
    *_, pd = (context.alloc_pd()[0] for _ in range(8))
    return attempt(s.qp, **{name: pd if name == "pd" else s.cq(context=context).handle})


cases.each("{} handle {}", itertools.product(USED, (0xFFFF_FFFF, 12345)), lambda s, name, handle: s.qp(**{name: handle}))
cases.each("{} is gone", USED, gone)
cases.each("{} of another context", USED, other)
add("handles of other kinds", pd=1, send_cq=0)
cases.add("two completion queues", lambda s: s.qp(send_cq=s.cq().handle, recv_cq=s.cq(cqe=64).handle))
add("a shared receive queue", is_srq=1)
add("is_srq with a handle", is_srq=1, srq=1)
add("a handle without is_srq", srq=77)
add("all signaled", sq_sig_all=1)
add("all signaled by 255", sq_sig_all=0xFF)

# Other methods of creation.


def of_page(number, s):
    return buffer_in(number, objects.BUFFER_VA, 0, s.page.address, 4096)


def by_ioctl(s, replace=None, **options):
    return s.qp(IoctlQueuePair, replace=replace, **options)


NUMBERS = (0, 2, 4, 5, 7, 8, 9, 13, 14, UHW_IN, UHW_OUT)
cases.add("by ioctl", by_ioctl)
cases.each("by ioctl without attribute {:#x}", NUMBERS, lambda s, number: by_ioctl(s, {number: None}))
cases.each(
    "by ioctl: type {} with flags {:#x}",
    itertools.product((QPT_UD, QPT_DRIVER), (1 << 1, 1 << 8, 1 << 9, 1 << 11, 1 << 12, 1, 1 << 10, 1 << 31, 1 << 32)),
    lambda s, qp_type, flags: by_ioctl(s, qp_flags=flags, qp_type=qp_type),
)
ADDED = (
    ("source number", lambda s: pointer_in(11, struct.pack("<I", 5))),
    ("event file", lambda s: Attribute(12, 0, s.context.async_fd)),
    ("buffer of both", lambda s: of_page(15, s)),
    ("receive buffer", lambda s: of_page(16, s)),
    ("send buffer", lambda s: of_page(17, s)),
    ("an unknown attribute", lambda s: Attribute(18, 8, 0)),
    ("an unknown optional attribute", lambda s: Attribute(18, 8, 0, mandatory=False)),
    ("an unknown attribute of the driver", lambda s: Attribute(0x1002, 8, 0)),
    ("shared receive queue", lambda s: Attribute(3, 0, 1)),
    ("XRC domain", lambda s: Attribute(1, 0, 1)),
    ("table of receive queues", lambda s: Attribute(6, 0, 1)),
)
cases.each("by ioctl: {}", ADDED, lambda s, _, attribute: by_ioctl(s, attributes=(attribute(s),)))


REPLACED = (
    *((f"capacity of {size} bytes", pointer_in(8, bytes(size))) for size in (0, 8, 12, 16, 20)),
    ("longer capacity", pointer_in(8, struct.pack("<5I", 16, 16, 1, 1, 0) + bytes(8))),
    ("dirty capacity", pointer_in(8, struct.pack("<6I", 16, 16, 1, 1, 0, 1))),
    ("type of 4 bytes", pointer_in(9, struct.pack("<I", 255))),
    ("attribute 0xd to nowhere", Attribute(13, 20, 4096)),
    ("attribute 0xe to nowhere", Attribute(14, 4, 4096)),
    ("attribute 0x1001 to nowhere", Attribute(UHW_OUT, QP_RESPONSE.size, 4096)),
    ("request to nowhere", Attribute(UHW_IN, 24, 4096)),
)
cases.each("by ioctl: {}", REPLACED, lambda s, _, attribute: by_ioctl(s, {attribute.number: attribute}))
EXTENDED = (
    ("plain", (0, 0, 0, 0)),
    ("comp_mask", (1, 0, 0, 0)),
    ("unknown comp_mask", (2, 0, 0, 0)),
    ("block loopback", (0, 1 << 1, 0, 0)),
    ("scatter FCS", (0, 1 << 8, 0, 0)),
    ("unknown create flags", (0, 1 << 31, 0, 0)),
    ("source number", (0, 1 << 10, 0, 5)),
    ("source number without its flag", (0, 0, 0, 5)),
)
for qp_type in (QPT_UD, QPT_DRIVER):
    cases.each(
        f"EX_CREATE_QP of type {qp_type}: {{}}", EXTENDED, lambda s, _, extended, kind=qp_type: s.qp(extended=extended, qp_type=kind)
    )
cases.each(
    "EX_CREATE_QP with a request of {} bytes",
    (0, 8, 16, 24, 32),
    lambda s, size: s.qp(extended=(0, 0, 0, 0), request=REQUEST.ljust(32, b"\0")[:size]),
)
cases.each("EX_CREATE_QP with a response of {} bytes", (0, 8, 56, 64, 72), lambda s, size: s.qp(extended=(0, 0, 0, 0), out_size=size))

# Destruction.


cases.add("destroy by write", lambda s: twice(s.a_qp.destroy))
cases.add("destroy by ioctl", lambda s: twice(s.a_qp.destroy_by_ioctl))
HANDLES = (0, 77, 0x8000_0000, 0xFFFF_FFFF)
cases.each("destroy of handle {:#x}", HANDLES, lambda s, handle: s.context.command(DESTROY_QP, struct.pack("<II", handle, 0), 4))
cases.add(
    "destroy of another context's", lambda s: (other := s.open()) and in_another_context(s.a_qp, other, "destroy", "destroy_by_ioctl")
)


@cases.case("destroy with a response to nowhere")
def destroy_nowhere(s):
    sent = object_handle(0, s.a_qp.handle), Attribute(1, 4, 4096)
    first = attempt(s.context.ioctl, objects.OBJECT_QP, objects.METHOD_QP_DESTROY, *sent)
    return first, attempt(s.a_qp.destroy)


@cases.case("more than the device has", "small")
def limit(s):
    cq = s.cq(num_sub_cqs=4).handle
    return until_refused(lambda: s.qp(send_cq=cq), 6)


@cases.case("a completion queue is destroyed after its queue pairs", "small")
def order(s):
    cq = s.cq(num_sub_cqs=4)
    first, second = s.qp(send_cq=cq.handle), s.qp(send_cq=cq.handle)
    return attempts(cq.destroy, first.destroy, cq.destroy, second.destroy, cq.destroy)


@cases.case("many")
def many_pairs(s):
    many(s, 200, lambda number: s.qp(qp_type=QPT_UD if number & 1 else QPT_DRIVER), objects.QueuePair.destroy)
    return [s.qp() and 1 for _ in range(100)].count(1)
