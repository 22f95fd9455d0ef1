#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Probes of a device that responds too late, never, or with an invalid response."""

import re

from probe_cases import Probes, main

# In units of 100 ms. The latter is the maximum that a device can announce.
RESET_TIMEOUT, ADMIN_TIMEOUT = 20, 15

# Timeout of a command by the hint, in ms, and a delay in ms that is within that timeout, but beyond ADMIN_TIMEOUT.
HINT_MS, LATE_MS = 30_000, 2_500

suite = Probes(reset_timeout=RESET_TIMEOUT, admin_timeout=ADMIN_TIMEOUT)
add = suite.add_probe

for fault, text in (
    ("silence", "is not answered"),
    ("wrong_offset", "is answered for another register"),
    ("wrong_req_id", "is answered for another request"),
):
    add(f"VERSION {text}", "ok", [({"register": "VERSION"}, {fault: True})])
# From SET_FEATURE on, the driver uses the hint.
add(
    "a hint for the timeout of a command is in ms",
    "ok",
    [({"opcode": "SET_FEATURE"}, {"delay_ms": LATE_MS}, {"times": 1})],
    {"admin_completion_timeout_ms": HINT_MS},
)


def hinted(hint):
    """Returns the result of a probe with a command that is not completed, and the wait for it that the driver logs."""
    result = suite.probe(main, [({"opcode": "SET_FEATURE"}, {"silence": True})], {"admin_completion_timeout_ms": hint})
    return " ".join([result, *re.findall(r"for admin cmd SET_FEATURE (within \d+ ms)", " ".join(suite.errors))])


suite.add("a hint below the minimum timeout of a command is ignored", lambda: hinted(1), "ETIME within 100 ms")
suite.add("the largest hint is limited to a timeout of 30 s", lambda: hinted(0xFFFF), "ETIME within 30000 ms")
suite.run_all()
