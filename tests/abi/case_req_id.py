# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""64-bit request ids, requested for completion queues and queue pairs in all combinations."""

import itertools

from harness import Cases
from objects import CQ_WITH_COMPLETION_CHANNEL, CQ_WITH_SGID, CQ_WITH_SQ_COMP_64_BIT_REQ_ID, QPT_DRIVER, QPT_UD
from objects import QP_WITH_SQ_64_BIT_REQ_ID as WITH_LONG
from objects import QP_WITH_UNSOLICITED_WRITE_RECV as UNSOLICITED

cases = Cases("req_id", "efa4")
LONG = CQ_WITH_SQ_COMP_64_BIT_REQ_ID

cases.each("completion queue with flags {:#x}", range(16), lambda s, flags: s.cq(flags=flags))
cases.each(
    "completion queue with flags {:#x} and entries of {} bytes",
    itertools.product((LONG, LONG | CQ_WITH_COMPLETION_CHANNEL, LONG | CQ_WITH_SGID), (16, 32)),
    lambda s, flags, size: s.cq(flags=flags, cq_entry_size=size),
)
KINDS = {"short": 0, "long": LONG}
cases.each(
    "queue pair with flags {:#x}, {} send and {} receive ids",
    itertools.product(range(8), KINDS, KINDS),
    lambda s, flags, send, recv: s.qp(send_cq=s.cq(flags=KINDS[send]).handle, recv_cq=s.cq(flags=KINDS[recv]).handle, flags=flags),
)
for kind, name in ((QPT_DRIVER, "SRD"), (QPT_UD, "UD")):
    cases.each(
        name + " with flags {:#x}, {} requests in {} bytes",
        [(flags, *room) for flags in (WITH_LONG, WITH_LONG | UNSOLICITED) for room in ((0, 0), (16, 1024), (16, 2048))],
        lambda s, flags, depth, size, kind=kind: s.qp(
            send_cq=s.cq(flags=LONG).handle, flags=flags, qp_type=kind, max_send_wr=depth, sq_ring_size=size
        ),
    )
for device in ("efa3", "efa0"):
    cases.add(f"{device}: queue pair", lambda s: s.qp(flags=WITH_LONG), device)
    cases.add(f"{device}: queue pair, and all else", lambda s: s.qp(flags=3), device)


@cases.case("two queue pairs of both kinds with one completion queue")
def both(s):
    cq = s.cq(flags=LONG).handle
    return s.qp(send_cq=cq), s.qp(send_cq=cq, flags=WITH_LONG)
