#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Runs all test programs, or those named by arguments, and prints one KTAP document. Each program is a test case, with the
# program's own test cases as subtests. Needs neither make nor the host.
#
# Like the kernel's runner, reads kselftest_override_timeout from the environment: a timeout per program in seconds.

cd "$(dirname "$0")" || exit

read -r timeout <settings
timeout=${kselftest_override_timeout:-$((${timeout#timeout=} * ${EFA_SLOW_KERNEL:-1}))}
programs=("$@")
((${#programs[@]})) || mapfile -t programs < <(sed -n 's/^TEST_PROGS += //p' Makefile)

echo "KTAP version 1"
echo "1..${#programs[@]}"
failed=0
for index in "${!programs[@]}"; do
	program=${programs[index]}
	number=$((index + 1))
	timeout --kill-after=10 "$timeout" "./$program" 2>&1 | sed -u 's/^/  /'
	result=${PIPESTATUS[0]}
	case $result in
	0) echo "ok $number ${program%.*}" ;;
	4) echo "ok $number ${program%.*} # SKIP" ;;
	124 | 137) echo "not ok $number ${program%.*} # TIMEOUT $timeout seconds" ;;
	*) echo "not ok $number ${program%.*} # exit=$result" ;;
	esac
	((result == 0 || result == 4)) || failed=1
done
exit $failed
