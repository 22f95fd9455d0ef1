# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Finds messages in a guest's console log that a healthy kernel does not print."""

import re

TROUBLE = re.compile(
    r"\bBUG: |\bWARNING: |\bOops\b|Kernel panic|general protection fault|kernel BUG at|Call Trace:"
    r"|blocked for more than|rcu: .*(stall|starved)|soft lockup|hard LOCKUP|UBSAN:|refcount_t:|rust_kernel: panicked"
    r"|irq \d+: nobody cared|Unable to mount root|scheduling while atomic|DMA-API: .*(error|warning)|stack segment"
    # A detector of bugs in a debug kernel has disabled itself, or lacks memory.
    r"|INFO: lockdep is turned off|INFO: trying to register non-static key|DMA-API: .*(disabling|disabled)"
    r"|ODEBUG: Out of memory|kmemleak: .*disabled"
)

# A program that traps has the kernel's words for it.
TRAP = re.compile(r"\btraps: .*\[\d+\] .* ip:\w+ sp:\w+ error:")
# A memory cgroup without memory left kills a program. The stack shows where that program needed more.
CGROUP_OOM = re.compile(r"invoked oom-killer: (?:(?!invoked oom-killer: ).)*?oom-kill:constraint=(\w+)", re.DOTALL)

# An out-of-tree module taints the kernel with O, an unsigned one with E.
EXPECTED_TAINT = 1 << 12 | 1 << 13
# A warning with W.
WARNING_TAINT = 1 << 9


def trouble(log, context=40):
    """Returns the lines from shortly before the first report of trouble on; none without a report."""
    lines = log.splitlines()
    log = CGROUP_OOM.sub(lambda oom: oom[0].replace("Call Trace:", "") if oom[1] == "CONSTRAINT_MEMCG" else oom[0], log)
    for number, line in enumerate(log.splitlines()):
        if TROUBLE.search(line) and not TRAP.search(line):
            return lines[max(0, number - 2) : number + context]
    return []


def known_reports(text):
    """Parses the warnings in a file such as tests/debug/known-reports: pairs of the function that warns and a caller of it."""
    lines = [line.split(maxsplit=2) for line in text.splitlines() if line and not line.startswith("#")]
    return [(function, caller) for function, caller, reason in lines]


def without(log, known):
    """Returns the log without known warnings, and their number."""
    kept, report, dropped = [], [], 0
    for line in log.splitlines():
        if "[ cut here ]" in line:
            kept, report = kept + report, []
        elif not report:
            kept.append(line)
            continue
        report.append(line)
        if "---[ end trace" in line:
            if is_known("\n".join(report), known):
                dropped += 1
            else:
                kept += report
            report = []
    return "\n".join(kept + report), dropped


def is_known(report, known):
    """Whether a report is a single warning that is known."""
    return len(re.findall(r"\b(?:WARNING|BUG): ", report)) == 1 and any(
        re.search(rf"WARNING: \S+ at {function}\+", report) and re.search(rf"\]  (?:\[<\w+>\] )?{caller}\+", report)
        for function, caller in known
    )


def unexpected_taint(text, expected=0):
    """Returns the letters of the taints in /proc/sys/kernel/tainted that loading our modules does not explain."""
    letters = "PFSRMBUDAWCIOELKXTNJ"
    value = int(text) & ~(EXPECTED_TAINT | expected)
    return "".join(letters[bit] if bit < len(letters) else f"[bit {bit}]" for bit in range(32) if value >> bit & 1)
