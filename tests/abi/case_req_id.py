# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""64-bit request ids, requested for completion queues and queue pairs in all combinations."""

from harness import Cases
from objects import (
    CQ_WITH_COMPLETION_CHANNEL,
    CQ_WITH_SGID,
    CQ_WITH_SQ_COMP_64_BIT_REQ_ID,
    QP_WITH_SQ_64_BIT_REQ_ID,
    QP_WITH_UNSOLICITED_WRITE_RECV,
    QPT_DRIVER,
    QPT_UD,
)

cases = Cases("req_id", "efa4")
LONG = CQ_WITH_SQ_COMP_64_BIT_REQ_ID

for flags in range(16):
    cases.add(f"completion queue with flags {flags:#x}", lambda s, flags=flags: s.cq(flags=flags))
for size in (16, 32):
    for more in (0, CQ_WITH_COMPLETION_CHANNEL, CQ_WITH_SGID):
        cases.add(
            f"completion queue with flags {LONG | more:#x} and entries of {size} bytes",
            lambda s, size=size, more=more: s.cq(flags=LONG | more, cq_entry_size=size),
        )
for flags in range(8):
    for send in (0, LONG):
        for recv in (0, LONG):
            cases.add(
                f"queue pair with flags {flags:#x}, {'long' if send else 'short'} send and {'long' if recv else 'short'} receive ids",
                lambda s, flags=flags, send=send, recv=recv: s.qp(
                    send_cq=s.cq(flags=send).handle, recv_cq=s.cq(flags=recv).handle, flags=flags
                ),
            )
for kind, name in ((QPT_DRIVER, "SRD"), (QPT_UD, "UD")):
    for flags in (QP_WITH_SQ_64_BIT_REQ_ID, QP_WITH_SQ_64_BIT_REQ_ID | QP_WITH_UNSOLICITED_WRITE_RECV):
        for depth, size in ((0, 0), (16, 1024), (16, 2048)):
            cases.add(
                f"{name} with flags {flags:#x}, {depth} requests in {size} bytes",
                lambda s, kind=kind, flags=flags, depth=depth, size=size: s.qp(
                    send_cq=s.cq(flags=LONG).handle, flags=flags, qp_type=kind, max_send_wr=depth, sq_ring_size=size
                ),
            )
for device in ("efa3", "efa0"):
    cases.add(f"{device}: queue pair", lambda s: s.qp(flags=QP_WITH_SQ_64_BIT_REQ_ID), device)
    cases.add(f"{device}: queue pair, and all else", lambda s: s.qp(flags=3), device)


@cases.case("two queue pairs of both kinds with one completion queue")
def both(s):
    cq = s.cq(flags=LONG).handle
    return s.qp(send_cq=cq), s.qp(send_cq=cq, flags=QP_WITH_SQ_64_BIT_REQ_ID)
