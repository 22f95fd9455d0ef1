#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Runs all selftests on the debug kernel and then the programs that need such a kernel, or only the named programs. Each
# prints KTAP. abi.sh is not included, as it needs other devices. dmesg.py is not included, as it does not know which
# warnings the kernel may give after an injected fault: tools/guests.py looks at the console and the taint.
#
# usage: run.sh [--at-once | --others | PROGRAM...]: the programs with concurrent operations, or the others; both check the
# kernel's findings at the end

cd "$(dirname "$0")/../kselftest" || exit

mapfile -t programs < <(sed -En 's/^TEST_PROGS(_SLOW)? \+= //p' Makefile | grep -vx dmesg.py)
programs+=(../debug/stress.py ../debug/faults.py)
at_once=' admin_queue.py effects.py killed.py lifecycle.py objects_timeouts.py ../debug/stress.py '
chosen=()
for program in "${programs[@]}"; do
	case $1$at_once in
	--at-once*" $program "*) chosen+=("$program") ;;
	--at-once* | --others*" $program "*) ;;
	*) chosen+=("$program") ;;
	esac
done
# The last program checks the kernel's findings about all of them.
programs=("${chosen[@]}" ../debug/kernel.py)
[[ $1 != --* ]] || shift

# If the host delays the guest, the scheduler's timers for starving tasks run late, and the kernel warns of that.
for runtime in /sys/kernel/debug/sched/*_server/cpu*/runtime; do
	echo 0 >"$runtime"
done

(($#)) && programs=("$@")
export EFA_SLOW_KERNEL=4
# Timeout of a program in seconds. The longest one takes 1,700 s on an idle host.
kselftest_override_timeout=${kselftest_override_timeout:-7200} exec ./run.sh "${programs[@]}"
