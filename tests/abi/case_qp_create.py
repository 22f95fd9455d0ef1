# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Queue pairs: creation and destruction."""

import struct

import objects
from harness import Cases, attempt
from objects import QP_RESPONSE, QPT_DRIVER, QPT_RC, QPT_UC, QPT_UD, IoctlQueuePair, object_handle
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
for name, qp_type in TYPES.items():
    add(f"type {name}", qp_type=qp_type)
    if qp_type in (QPT_RC, QPT_UC, QPT_UD, QPT_DRIVER, 8, 9):
        cases.add(f"type {name} by ioctl", lambda s, qp_type=qp_type: s.qp(IoctlQueuePair, qp_type=qp_type))
for driver_type in (1, 2, 0x8000_0000, 0xFFFF_FFFF):
    for qp_type in (QPT_UD, QPT_DRIVER, QPT_RC):
        add(f"type {qp_type}, the driver's {driver_type:#x}", qp_type=qp_type, driver_qp_type=driver_type)

# Sizes.

for depth in (0, 1, 2, 3, 8, 64, 4096, 4097, 8192, 0x8000_0000, 0xFFFF_FFFF):
    add(f"send depth {depth}", **sized(send=depth, sq_ring_size=depth * 64 & 0xFFFF_FFFF))
    add(f"wide send depth {depth}", **sized(send=depth, sq_ring_size=depth * 128 & 0xFFFF_FFFF))
for depth in (0, 1, 2, 3, 100, 256, 32768, 32769, 65536):
    add(f"receive depth {depth}", **sized(recv=depth))
add("receive depth 0xffffffff", max_recv_wr=0xFFFF_FFFF)
for size in (0, 1, 63, 64, 1023, 1025, 2048, 4096 * 64, 4096 * 64 + 1, 0x8000_0000, 0xFFFF_FFFF):
    add(f"send ring of {size} bytes", sq_ring_size=size)
for size in (1, 15, 16, 17, 255, 257, 4096, 4097, 8192, 12288, 1 << 20, 2 << 20, 4 << 20):
    add(f"receive ring of {size} bytes", rq_ring_size=size)
for size in ((4 << 20) + 1, 8 << 20, 1 << 30, 0x8000_0000, 0xFFFF_F000):
    add(f"receive ring of {size} bytes", rq_ring_size=size)
for size in (0xFFFF_F001, 0xFFFF_FFFF):
    add(f"receive ring of {size} bytes", rq_ring_size=size)
add("receive ring without entries", max_recv_wr=0)
add("receive entries without a ring", rq_ring_size=0)
add("no receive queue", **sized(recv=0))
add("no send queue", **sized(send=0))
add("no queue", **sized(send=0, recv=0))
for name, most in (("max_send_sge", 2), ("max_recv_sge", 3), ("max_inline_data", 80)):
    for value in (0, most, most + 1, 0x8000_0000, 0xFFFF_FFFF):
        add(f"{name} {value}", **{name: value})
for device, inline in (("efa0", 32), ("efa2", 32), ("efa4", 80)):
    add(f"{device}: inline {inline}", device, max_inline_data=inline)
    add(f"{device}: inline {inline + 1}", device, max_inline_data=inline + 1)
    add(f"{device}: wide", device, **sized(wqe=128))
    add(f"{device}: UD", device, qp_type=QPT_UD)
for name, options in (
    ("the maximum", sized(send=16, recv=64, wqe=128)),
    ("a send ring too large", sized(send=32, wqe=128)),
    ("too few send requests", sized(send=2)),
    ("too many send requests", sized(send=64)),
    ("too many receive requests", sized(recv=128)),
):

    def small(s, options=options):
        return s.qp(send_cq=s.cq(num_sub_cqs=4).handle, **options)

    cases.add(f"small: {name}", small, "small")

# The driver's other fields.

for flags in (1, 2, 3, 4, 0x8000, 0xFFFF):
    add(f"flags {flags:#x}", flags=flags)
    add(f"efa0: flags {flags:#x}", "efa0", flags=flags)
add("UD with unsolicited writes", qp_type=QPT_UD, flags=1)
for level in (1, 8, 255):
    add(f"service level {level}", sl=level)
for bit in (0, 1, 31):
    add(f"comp_mask bit {bit}", comp_mask=1 << bit)
for byte in range(5):
    add(f"reserved byte {byte}", reserved=bytes(byte) + b"\1" + bytes(4 - byte))
for size in range(0, 24, 4):
    add(f"request of {size} bytes", request=REQUEST[:size])
for name, tail in (("zeros", bytes(4)), ("many zeros", bytes(4000)), ("a bit", b"\1\0\0\0"), ("a late bit", bytes(99) + b"\x80")):
    add(f"longer request: {name}", request=REQUEST + tail)
for size in (0, 4, 20, 56, 60, 64, 68, 128):
    cases.add(f"response of {size} bytes", lambda s, size=size: (qp := s.qp(out_size=size), qp.raw[60:]))
for accessible in (0, 4, 31, 32, 36, 95):

    def nowhere(s, accessible=accessible):
        return s.qp(buffer=Buffer(96, accessible=accessible))

    cases.add(f"response to nowhere after {accessible} bytes", nowhere)

# Which error is reported first.

for name, options in (
    ("reserved and comp_mask", {"reserved": b"\1" * 5, "comp_mask": 1}),
    ("reserved and flags", {"reserved": b"\1" * 5, "flags": 2}),
    ("flags and size", {"flags": 2, "max_send_wr": 4097}),
    ("size and type", {"max_send_wr": 4097, "qp_type": QPT_RC}),
    ("type and the driver's", {"qp_type": QPT_RC, "driver_qp_type": 1}),
    ("the driver's type and a ring too large", {"driver_qp_type": 1, "sq_ring_size": 1 << 30}),
):
    add(f"two errors: {name}", **options)

# Other objects.

for name in ("pd", "send_cq", "recv_cq"):
    for handle in (0xFFFF_FFFF, 12345):
        add(f"{name} handle {handle}", **{name: handle})

    def gone(s, name=name):
        if name == "pd":
            handle = s.pd
            s.context.dealloc_pd(handle)
        else:
            cq = s.cq()
            handle = cq.handle
            cq.destroy()
        return attempt(s.qp, **{"send_cq": s.a_cq.handle, name: handle})

    cases.add(f"{name} is gone", gone)

    def other(s, name=name):
        context = s.open()
        *_, pd = (context.alloc_pd()[0] for _ in range(8))
        return attempt(s.qp, **{name: pd if name == "pd" else s.cq(context=context).handle})

    cases.add(f"{name} of another context", other)
add("handles of other kinds", pd=1, send_cq=0)


@cases.case("two completion queues")
def two(s):
    return s.qp(send_cq=s.cq().handle, recv_cq=s.cq(cqe=64).handle)


add("a shared receive queue", is_srq=1)
add("is_srq with a handle", is_srq=1, srq=1)
add("a handle without is_srq", srq=77)
add("all signaled", sq_sig_all=1)
add("all signaled by 255", sq_sig_all=0xFF)

# Other methods of creation.

cases.add("by ioctl", lambda s: s.qp(IoctlQueuePair))
for number in (0, 2, 4, 5, 7, 8, 9, 13, 14, UHW_IN, UHW_OUT):
    cases.add(f"by ioctl without attribute {number:#x}", lambda s, number=number: s.qp(IoctlQueuePair, replace={number: None}))
for flags in (1 << 1, 1 << 8, 1 << 9, 1 << 11, 1 << 12, 1, 1 << 10, 1 << 31, 1 << 32):
    for qp_type in (QPT_UD, QPT_DRIVER):
        cases.add(
            f"by ioctl: type {qp_type} with flags {flags:#x}",
            lambda s, flags=flags, qp_type=qp_type: s.qp(IoctlQueuePair, qp_flags=flags, qp_type=qp_type),
        )
for name, attributes in (
    ("source number", lambda s: (pointer_in(11, struct.pack("<I", 5)),)),
    ("event file", lambda s: (Attribute(12, 0, s.context.async_fd),)),
    ("buffer of both", lambda s: (umem(15, s),)),
    ("receive buffer", lambda s: (umem(16, s),)),
    ("send buffer", lambda s: (umem(17, s),)),
    ("an unknown attribute", lambda s: (Attribute(18, 8, 0),)),
    ("an unknown optional attribute", lambda s: (Attribute(18, 8, 0, mandatory=False),)),
    ("an unknown attribute of the driver", lambda s: (Attribute(0x1002, 8, 0),)),
    ("shared receive queue", lambda s: (Attribute(3, 0, 1),)),
    ("XRC domain", lambda s: (Attribute(1, 0, 1),)),
    ("table of receive queues", lambda s: (Attribute(6, 0, 1),)),
):
    cases.add(f"by ioctl: {name}", lambda s, attributes=attributes: s.qp(IoctlQueuePair, attributes=attributes(s)))


def umem(number, session):
    return pointer_in(number, struct.pack("<IiIIQQ", objects.BUFFER_VA, 0, 0, 0, session.page.address, 4096))


for size in (0, 8, 12, 16, 20):
    cases.add(f"by ioctl: capacity of {size} bytes", lambda s, size=size: s.qp(IoctlQueuePair, replace={8: pointer_in(8, bytes(size))}))
cases.add(
    "by ioctl: longer capacity",
    lambda s: s.qp(IoctlQueuePair, replace={8: pointer_in(8, struct.pack("<5I", 16, 16, 1, 1, 0) + bytes(8))}),
)
cases.add("by ioctl: dirty capacity", lambda s: s.qp(IoctlQueuePair, replace={8: pointer_in(8, struct.pack("<6I", 16, 16, 1, 1, 0, 1))}))
cases.add("by ioctl: type of 4 bytes", lambda s: s.qp(IoctlQueuePair, replace={9: pointer_in(9, struct.pack("<I", 255))}))
for number in (13, 14, UHW_OUT):

    def ioctl_nowhere(s, number=number):
        size = {13: 20, 14: 4, UHW_OUT: QP_RESPONSE.size}[number]
        return s.qp(IoctlQueuePair, replace={number: Attribute(number, size, 4096)})

    cases.add(f"by ioctl: attribute {number:#x} to nowhere", ioctl_nowhere)
cases.add("by ioctl: request to nowhere", lambda s: s.qp(IoctlQueuePair, replace={UHW_IN: Attribute(UHW_IN, 24, 4096)}))
for name, extended in (
    ("plain", (0, 0, 0, 0)),
    ("comp_mask", (1, 0, 0, 0)),
    ("unknown comp_mask", (2, 0, 0, 0)),
    ("block loopback", (0, 1 << 1, 0, 0)),
    ("scatter FCS", (0, 1 << 8, 0, 0)),
    ("unknown create flags", (0, 1 << 31, 0, 0)),
    ("source number", (0, 1 << 10, 0, 5)),
    ("source number without its flag", (0, 0, 0, 5)),
):
    for qp_type in (QPT_UD, QPT_DRIVER):
        add(f"EX_CREATE_QP of type {qp_type}: {name}", extended=extended, qp_type=qp_type)
for size in (0, 8, 16, 24, 32):
    add(f"EX_CREATE_QP with a request of {size} bytes", extended=(0, 0, 0, 0), request=REQUEST.ljust(32, b"\0")[:size])
for size in (0, 8, 56, 64, 72):
    add(f"EX_CREATE_QP with a response of {size} bytes", extended=(0, 0, 0, 0), out_size=size)

# Destruction.


@cases.case("destroy by write")
def destroy(s):
    return attempt(s.a_qp.destroy), attempt(s.a_qp.destroy)


@cases.case("destroy by ioctl")
def destroy_by_ioctl(s):
    return attempt(s.a_qp.destroy_by_ioctl), attempt(s.a_qp.destroy_by_ioctl)


for handle in (0, 77, 0x8000_0000, 0xFFFF_FFFF):
    cases.add(f"destroy of handle {handle:#x}", lambda s, handle=handle: s.context.command(27, struct.pack("<II", handle, 0), 4))


@cases.case("destroy of another context's")
def destroy_other(s):
    s.a_qp.context = s.open()
    return attempt(s.a_qp.destroy), attempt(s.a_qp.destroy_by_ioctl)


@cases.case("destroy with a response to nowhere")
def destroy_nowhere(s):
    sent = object_handle(0, s.a_qp.handle), Attribute(1, 4, 4096)
    first = attempt(s.context.ioctl, objects.OBJECT_QP, objects.METHOD_QP_DESTROY, *sent)
    return first, attempt(s.a_qp.destroy)


@cases.case("more than the device has", "small")
def limit(s):
    cq = s.cq(num_sub_cqs=4).handle
    return [attempt(lambda: s.qp(send_cq=cq) and None) for _ in range(6)]


@cases.case("a completion queue is destroyed after its queue pairs", "small")
def order(s):
    cq = s.cq(num_sub_cqs=4)
    first, second = s.qp(send_cq=cq.handle), s.qp(send_cq=cq.handle)
    return [attempt(action) for action in (cq.destroy, first.destroy, cq.destroy, second.destroy, cq.destroy)]


@cases.case("many")
def many(s):
    s.shows_commands = False
    pairs = [s.qp(qp_type=QPT_UD if index & 1 else QPT_DRIVER) for index in range(200)]
    for pair in pairs[::2]:
        pair.destroy()
    return [s.qp() and 1 for _ in range(100)].count(1)
