#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Runs on the debug kernel all selftests and then the programs that need such a kernel, or those that are named; each
# prints KTAP. abi.sh is not among them, as it needs other devices.

cd "$(dirname "$0")/../kselftest" || exit

mapfile -t programs < <(sed -n 's/^TEST_PROGS += //p' Makefile)
programs+=(../debug/stress.py)
programs+=(../debug/faults.py)
# The last one: what the kernel has to say about all of them.
programs+=(../debug/kernel.py)

# On a host that lets a guest wait, the scheduler's own timers for starving tasks run late, and the kernel warns of that.
for runtime in /sys/kernel/debug/sched/*_server/cpu*/runtime; do
	echo 0 >"$runtime"
done

(($#)) && programs=("$@")
export EFA_SLOW_KERNEL=4
kselftest_override_timeout=${kselftest_override_timeout:-1800} exec ./run.sh "${programs[@]}"
