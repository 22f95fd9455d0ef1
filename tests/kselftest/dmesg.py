#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Checks the kernel's log of all test programs. Must run last."""

import re
import subprocess

from selftest import Failed, Suite, first_line, skip_all

# Number of lines of context after a line that matches.
CONTEXT = 20

# The allowed taints: an out-of-tree module that is not signed.
TAINT_OOT_MODULE, TAINT_UNSIGNED_MODULE = 1 << 12, 1 << 13

PATTERNS = {
    "no bug": r"BUG:|kernel BUG at|Oops|general protection fault|rust_kernel: panicked",
    "no warning": r"WARNING:|UBSAN:|refcount_t:|Call Trace:",
    "no hung task": r"blocked for more than|soft lockup|hard LOCKUP|rcu: .*(stall|starved)",
    "no unwanted interrupt": r"irq [0-9]+: nobody cared",
}

suite = Suite()


lines = []
try:
    lines = subprocess.run(["dmesg"], stdout=subprocess.PIPE, text=True, errors="replace", check=True).stdout.splitlines()
except (FileNotFoundError, subprocess.CalledProcessError):
    skip_all("the kernel's log can't be read")

for name, pattern in PATTERNS.items():

    def run(pattern=pattern):
        found = [number for number, line in enumerate(lines) if re.search(pattern, line)]
        shown = sorted({number for start in found for number in range(start, start + CONTEXT + 1)})
        if found:
            raise Failed("\n".join(["see below", *(lines[number] for number in shown if number < len(lines))]))

    suite.add(name, run, needs_emulator=False)


@suite.case("no taint but that of loading the module", "0", needs_emulator=False)
def taint():
    return int(first_line("/proc/sys/kernel/tainted")) & ~(TAINT_OOT_MODULE | TAINT_UNSIGNED_MODULE)


suite.run()
