# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Address handles."""

import struct

from harness import Cases, attempt
from uverbs import Buffer

cases = Cases("ah")
CREATE_AH, MODIFY_AH, QUERY_AH, DESTROY_AH = 5, 6, 7, 8


def add(name, device=None, **options):
    cases.add(name, lambda s: s.ah(**options), device)


for device in ("efa3", "efa4", "efa0"):
    add(f"{device}: plain", device)
for name, gid in (
    ("zeros", bytes(16)),
    ("ones", b"\xff" * 16),
    ("link local", bytes.fromhex("fe80000000000000") + bytes(7) + b"\1"),
    ("mapped IPv4", bytes.fromhex("00000000000000000000ffff7f000001")),
    ("multicast", b"\xff\x02" + bytes(13) + b"\1"),
):
    add(f"gid {name}", dgid=gid)
for index in (1, 2, 255):
    add(f"sgid_index {index}", sgid_index=index)
for port in (0, 2, 255):
    add(f"port {port}", port_num=port)
add("not global", is_global=0)
add("global by 255", is_global=255)
FIELDS = {"sl": (1, 15, 255), "hop_limit": (1, 255), "traffic_class": (1, 255), "flow_label": (1, 0xFFFFF, 0xFFFF_FFFF)}
for name, values in FIELDS.items():
    for value in values:
        add(f"{name} {value}", **{name: value})
for name, data in (("zeros", bytes(8)), ("a bit", b"\1" + bytes(7)), ("a late bit", bytes(63) + b"\x80"), ("64 zeros", bytes(64))):
    add(f"input for the driver: {name}", request=data)
for size in (0, 4, 8, 12, 64):
    cases.add(f"output of {size} bytes", lambda s, size=size: (ah := s.ah(out_size=size), ah.raw[6:]))
for accessible in (0, 3, 4, 8, 11):
    cases.add(
        f"response to nowhere after {accessible} bytes",
        lambda s, accessible=accessible: s.ah(out_size=8, buffer=Buffer(12, accessible=accessible)),
    )
for handle in (77, 0xFFFF_FFFF):
    add(f"protection domain {handle:#x}", pd=handle)
cases.add("another kind of object as a protection domain", lambda s: s.ah(pd=s.a_cq.handle))
cases.add("protection domain of another context", lambda s: s.ah(context=s.open(), pd=s.pd))


@cases.case("protection domain is gone")
def gone(s):
    s.context.dealloc_pd(s.pd)
    return s.ah()


@cases.case("the same peer twice")
def same(s):
    return s.ah(), s.ah()


@cases.case("the same peer in two protection domains")
def two_domains(s):
    return s.ah(), s.ah(pd=s.context.alloc_pd()[0])


@cases.case("the device does not destroy it, and another one is created", "broken")
def refused(s):
    ah = s.ah()
    with s.refusing("DESTROY_AH"):
        result = attempt(ah.destroy)
    return result, s.ah()


@cases.case("destroy by write")
def destroy(s):
    ah = s.ah()
    return attempt(ah.destroy), attempt(ah.destroy)


@cases.case("destroy by ioctl")
def destroy_by_ioctl(s):
    ah = s.ah()
    return attempt(ah.destroy_by_ioctl), attempt(ah.destroy_by_ioctl)


@cases.case("destroy of another context's")
def destroy_other(s):
    ah = s.ah()
    ah.context = s.open()
    return attempt(ah.destroy), attempt(ah.destroy_by_ioctl)


for handle in (0, 77, 0xFFFF_FFFF):
    cases.add(f"destroy of handle {handle:#x}", lambda s, handle=handle: s.context.send(DESTROY_AH, struct.pack("<I", handle)))


@cases.case("protection domain in use")
def in_use(s):
    ah = s.ah()
    return attempt(s.context.dealloc_pd, s.pd), attempt(ah.destroy), attempt(s.context.dealloc_pd, s.pd)


@cases.case("more than the device has", "small")
def limit(s):
    return [attempt(lambda: s.ah() and None) for _ in range(6)]


@cases.case("many")
def many(s):
    s.shows_commands = False
    handles = [s.ah(dgid=struct.pack(">QQ", 0xFE80 << 48, index)) for index in range(300)]
    for ah in handles[::2]:
        ah.destroy()


cases.add("MODIFY_AH", lambda s: s.context.command(MODIFY_AH, bytes(48), 8))
cases.add("QUERY_AH", lambda s: s.context.command(QUERY_AH, bytes(8), 64))
