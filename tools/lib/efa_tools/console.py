# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Finds what a healthy kernel does not say in a guest's console log."""

import re

TROUBLE = re.compile(
    r"\bBUG: |\bWARNING: |\bOops\b|Kernel panic|general protection fault|kernel BUG at|Call Trace:"
    r"|blocked for more than|rcu: .*(stall|starved)|soft lockup|hard LOCKUP|UBSAN:|refcount_t:|rust_kernel: panicked"
    r"|irq \d+: nobody cared|Unable to mount root|scheduling while atomic|DMA-API: .*(error|warning)|stack segment"
    # What finds bugs in a debug kernel has turned itself off, or lacks what it needs.
    r"|INFO: lockdep is turned off|INFO: trying to register non-static key|DMA-API: .*(disabling|disabled)"
    r"|ODEBUG: Out of memory|kmemleak: .*(disabled|Cannot)"
)

# An out-of-tree module taints the kernel with O, an unsigned one with E.
EXPECTED_TAINT = 1 << 12 | 1 << 13


def trouble(log, context=40):
    """The lines from the first one that tells of trouble on, or nothing."""
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if TROUBLE.search(line):
            return lines[max(0, number - 2) : number + context]
    return []


def unexpected_taint(text):
    """The letters of the taints, out of /proc/sys/kernel/tainted, that loading our modules does not explain."""
    letters = "PFSRMBUDAWCIOELKXTNJ"
    value = int(text) & ~EXPECTED_TAINT
    return "".join(letters[bit] if bit < len(letters) else f"[bit {bit}]" for bit in range(32) if value >> bit & 1)
