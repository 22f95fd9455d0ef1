#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# What the kernel has logged up to now. The last program of all.

. "$(dirname "$0")/lib.sh"

log=$(dmesg) || skip_all "the kernel's log can't be read"

# found NAME PATTERN: the test case passes if no line of the log matches.
found() {
	local lines
	lines=$(grep -E -A 20 "$2" <<<"$log")
	if [[ $lines ]]; then
		not_ok "$1" "see below"
		diag "${lines//$'\n'/$'\n'# }"
	else
		ok "$1"
	fi
}

plan 5
found "no bug" 'BUG:|kernel BUG at|Oops|general protection fault|rust_kernel: panicked'
found "no warning" 'WARNING:|UBSAN:|refcount_t:|Call Trace:'
found "no hung task" 'blocked for more than|soft lockup|hard LOCKUP|rcu: .*(stall|starved)'
found "no unwanted interrupt" 'irq [0-9]+: nobody cared'

# An out-of-tree module (bit 12) that is not signed (bit 13) is all there may be.
read_file /proc/sys/kernel/tainted
expect "no taint but that of loading the module" 0 $((REPLY & ~(1 << 12 | 1 << 13)))
finish
