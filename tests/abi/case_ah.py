# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Address handles."""

import functools
import struct

from harness import INPUTS, Cases, attempt, attempts, in_another_context, many, twice, until_refused
from objects import AddressHandle
from uverbs import Buffer

cases = Cases("ah")
CREATE_AH, MODIFY_AH, QUERY_AH, DESTROY_AH = 5, 6, 7, 8

for device in ("efa3", "efa4", "efa0"):
    cases.add(f"{device}: plain", lambda s: s.ah(), device)
GIDS = (
    ("zeros", bytes(16)),
    ("ones", b"\xff" * 16),
    ("link local", bytes.fromhex("fe80000000000000") + bytes(7) + b"\1"),
    ("mapped IPv4", bytes.fromhex("00000000000000000000ffff7f000001")),
    ("multicast", b"\xff\x02" + bytes(13) + b"\1"),
)
cases.each("gid {}", GIDS, lambda s, _, gid: s.ah(dgid=gid))
cases.each("port {}", (0, 2, 255), lambda s, port: s.ah(port_num=port))
cases.add("not global", lambda s: s.ah(is_global=0))
cases.add("global by 255", lambda s: s.ah(is_global=255))
FIELDS = {"sgid_index": (1, 2, 255), "sl": (1, 15, 255), "hop_limit": (1, 255), "traffic_class": (1, 255)}
FIELDS["flow_label"] = (1, 0xFFFFF, 0xFFFF_FFFF)
for field, values in FIELDS.items():
    cases.each(field + " {}", values, lambda s, value, field=field: s.ah(**{field: value}))
cases.each("input for the driver: {}", INPUTS, lambda s, _, data: s.ah(request=data))
cases.each("output of {} bytes", (0, 4, 8, 12, 64), lambda s, size: (ah := s.ah(out_size=size), ah.raw[6:]))
cases.each("response to nowhere after {} bytes", (0, 3, 4, 8, 11), lambda s, n: s.ah(out_size=8, buffer=Buffer(12, accessible=n)))
cases.each("protection domain {:#x}", (77, 0xFFFF_FFFF), lambda s, handle: s.ah(pd=handle))
cases.add("another kind of object as a protection domain", lambda s: s.ah(pd=s.a_cq.handle))
cases.add("protection domain of another context", lambda s: s.ah(context=s.open(), pd=s.pd))


cases.add("protection domain is gone", lambda s: s.ah(pd=s.gone_pd()))
cases.add("the same peer twice", lambda s: (s.ah(), s.ah()))
cases.add("the same peer in two protection domains", lambda s: (s.ah(), s.ah(pd=s.context.alloc_pd()[0])))


@cases.case("the device does not destroy it, and another one is created", "broken")
def refused(s):
    ah = s.ah()
    with s.refusing("DESTROY_AH"):
        result = attempt(ah.destroy)
    return result, s.ah()


cases.add("destroy by write", lambda s: twice(s.ah().destroy))
cases.add("destroy by ioctl", lambda s: twice(s.ah().destroy_by_ioctl))
cases.add("destroy of another context's", lambda s: in_another_context(s.ah(), s.open(), "destroy", "destroy_by_ioctl"))
HANDLES = (0, 77, 0xFFFF_FFFF)
cases.each("destroy of handle {:#x}", HANDLES, lambda s, handle: s.context.send(DESTROY_AH, struct.pack("<I", handle)))


@cases.case("protection domain in use")
def in_use(s):
    ah = s.ah()
    deallocate = functools.partial(s.context.dealloc_pd, s.pd)
    return attempts(deallocate, ah.destroy, deallocate)


cases.add("more than the device has", lambda s: until_refused(s.ah, 6), "small")


cases.add("many", lambda s: many(s, 300, lambda number: s.ah(dgid=struct.pack(">QQ", 0xFE80 << 48, number)), AddressHandle.destroy))
cases.add("MODIFY_AH", lambda s: s.context.command(MODIFY_AH, bytes(48), 8))
cases.add("QUERY_AH", lambda s: s.context.command(QUERY_AH, bytes(8), 64))
