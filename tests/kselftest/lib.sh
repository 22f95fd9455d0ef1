# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# What the test programs written in shell share: KTAP output, EFA devices in sysfs, and the emulator's control port.
# Sourced by bash. It avoids processes: in a guest without KVM each one costs 10 ms and more.

shopt -s nullglob

TEST_DIR=$(dirname "$(realpath "$0")")
PROGRAM=$(basename "$0" .sh)
SYSFS_DRIVER=/sys/bus/pci/drivers/efa
CONTROL_PORT=${EFA_CONTROL_PORT:-/dev/virtio-ports/efa-emu.control}

# Exit codes and directives are those of the kernel's selftests.
KSFT_PASS=0
KSFT_FAIL=1
KSFT_SKIP=4

test_number=0
planned=0
failures=0
skips=0

# plan N: starts the output of a program with N test cases.
plan() {
	planned=$1
	echo "KTAP version 1"
	echo "1..$planned"
}

# diag TEXT: prints a diagnostic line.
diag() {
	echo "# $*"
}

# ok NAME: the test case has passed.
ok() {
	echo "ok $((++test_number)) $1"
}

# not_ok NAME WHY: the test case has failed.
not_ok() {
	failures=$((failures + 1))
	diag "$1: $2"
	echo "not ok $((++test_number)) $1"
}

# skip NAME WHY: the test case can't run here.
skip() {
	skips=$((skips + 1))
	used[$1]=1
	echo "ok $((++test_number)) $1 # SKIP $2"
}

# skip_all WHY: none of the program's test cases can run here.
skip_all() {
	echo "KTAP version 1"
	echo "1..0 # SKIP $1"
	exit $KSFT_SKIP
}

# check NAME COMMAND...: the test case passes if the command succeeds.
check() {
	local name=$1
	shift
	if "$@"; then
		ok "$name"
	else
		not_ok "$name" "failed: $*"
	fi
}

# expect NAME WANTED GOT: the test case passes if both are the same. Where differences.md has the test case, what it has
# for the driver is wanted instead.
expect() {
	local wanted=${differs[$1]-$2}
	used[$1]=1
	if [[ $wanted == "$3" ]]; then
		ok "$1"
	else
		not_ok "$1" "got '$3', wanted '$wanted'"
	fi
}

# finish: ends the program.
finish() {
	local name stale=0
	for name in "${!differs[@]}"; do
		if [[ ! ${used[$name]} ]]; then
			diag "differences.md has '$name', which is no test case"
			stale=1
		fi
	done
	diag "Totals: pass:$((test_number - failures - skips)) fail:$failures skip:$skips"
	if ((test_number != planned)); then
		diag "ran $test_number of $planned test cases"
		exit $KSFT_FAIL
	fi
	if ((failures || stale)); then
		exit $KSFT_FAIL
	fi
	exit $((skips == planned ? KSFT_SKIP : KSFT_PASS))
}

# read_file FILE: sets REPLY to the first line of a file, empty if it can't be read.
read_file() {
	REPLY=
	{ IFS= read -r REPLY <"$1"; } 2>/dev/null
}

# Sets DRIVER to `rust`, or to `c` for any other EFA driver.
find_driver() {
	DRIVER=$EFA_DRIVER
	if [[ ! $DRIVER ]]; then
		DRIVER=c
		[[ $(modinfo -F author "${EFA_KO:-efa}" 2>/dev/null) == *efa-rs* ]] && DRIVER=rust
	fi
}

# Reads from differences.md what differs in this program between the drivers.
read_differences() {
	local line program name c rust
	while IFS='|' read -r line program name c rust line; do
		program=${program// /}
		[[ $program == "$PROGRAM" ]] || continue
		# Without the spaces around them; an empty cell is one space.
		name=${name# } name=${name% }
		c=${c# } c=${c% }
		rust=${rust# } rust=${rust% }
		if [[ $DRIVER == rust ]]; then
			differs[$name]=$rust
		else
			differs[$name]=$c
		fi
	done <"$TEST_DIR/differences.md"
}

# Lists the PCI functions that are EFA devices, in the order of their addresses.
find_functions() {
	local directory vendor device
	FUNCTIONS=()
	for directory in /sys/bus/pci/devices/*; do
		read -r vendor <"$directory/vendor"
		read -r device <"$directory/device"
		[[ $vendor$device == 0x1d0f0xefa? ]] && FUNCTIONS+=("${directory##*/}")
	done
}

# Opens the emulator's control port, if there is one, and reads which devices it should have.
find_emulator() {
	SPECS=()
	emulator=
	[[ -c $CONTROL_PORT ]] || return
	exec {emulator}<>"$CONTROL_PORT" || return
	local line
	while IFS= read -r line; do
		[[ ! $line || $line == \#* ]] || SPECS+=("$line")
	done <"$TEST_DIR/devices"
}

# have_emulator: succeeds if devices can be made to fail.
have_emulator() {
	[[ $emulator ]]
}

# emu REQUEST: sends a control request and sets REPLY to what is in the reply; fails if that is an error.
emu() {
	echo "$1" >&"$emulator"
	IFS= read -r REPLY <&"$emulator"
	if [[ $REPLY != '{"ok":'* ]]; then
		diag "the emulator replies $REPLY to $1"
		return 1
	fi
}

# emu_state NUMBER: sets STATE to the state of the device.
emu_state() {
	emu "{\"command\":\"state\",\"device\":$1}"
	STATE=$REPLY
}

# state KEY: sets REPLY to a number or a text in STATE; keys are unique but for the containers they are in.
state() {
	REPLY=
	[[ $STATE =~ \"$1\":\"?([^],\"}]*) ]] && REPLY=${BASH_REMATCH[1]}
}

# use_device SPEC: makes the device that has this line in `devices` the one that the functions below are about. Fails if
# there is none. Without an emulator, a SPEC that is only a profile names a PCI device id.
#
# Sets BDF to its PCI address, NUMBER to the emulator's number of it and DEVICE to its folder in sysfs.
use_device() {
	local id
	BDF=
	NUMBER=
	if have_emulator; then
		for NUMBER in "${!SPECS[@]}"; do
			[[ ${SPECS[NUMBER]} == "$1" ]] && BDF=${FUNCTIONS[NUMBER]} && break
		done
	else
		for BDF in "${FUNCTIONS[@]}"; do
			read -r id <"/sys/bus/pci/devices/$BDF/device"
			[[ profile=${id#0x} == "$1" ]] && break
			BDF=
		done
	fi
	DEVICE=/sys/bus/pci/devices/$BDF
	[[ $BDF ]]
}

# use_any_device: as use_device, for the first device of the emulator or the first one with a driver. The former does
# not misbehave from here on, whatever an earlier program has left behind.
use_any_device() {
	if have_emulator; then
		use_device "${SPECS[0]}" && emu "{\"command\":\"clear\",\"device\":$NUMBER}"
		return
	fi
	for BDF in "${FUNCTIONS[@]}"; do
		DEVICE=/sys/bus/pci/devices/$BDF
		is_bound && return
	done
	BDF=
	return 1
}

# is_bound: succeeds if the device is bound to the driver.
is_bound() {
	[[ -e $SYSFS_DRIVER/$BDF ]]
}

# bind, unbind: bind the device to the driver, or not.
bind() {
	echo "$BDF" 2>/dev/null >"$SYSFS_DRIVER/bind"
}
unbind() {
	echo "$BDF" 2>/dev/null >"$SYSFS_DRIVER/unbind"
}

# settle: waits until udev has given RDMA devices their names.
settle() {
	if command -v udevadm >/dev/null; then
		udevadm settle
	fi
}

# find_ib_device: sets IB to the name of the device's RDMA device, which udev may change shortly after a bind.
find_ib_device() {
	local directories=("$DEVICE"/infiniband/*)
	IB=${directories[0]##*/}
	[[ $IB ]]
}

# await_session N: waits until the driver has the device in its Nth session, for as long as a device that has failed may take
# to come back; fails if it does not.
await_session() {
	local end=$((${EPOCHREALTIME/[.,]/} + 2000000 * ${EFA_SLOW_KERNEL:-1})) lines
	while ((${EPOCHREALTIME/[.,]/} < end)); do
		lines=$(<"/sys/kernel/debug/efa/$BDF/state")
		[[ $lines == "state: up"$'\n'"session: $1"$'\n'* ]] && return
		sleep 0.02
	done
	diag "$BDF is not in session $1: ${lines//$'\n'/, }"
	return 1
}

declare -A differs used
find_driver
read_differences
find_functions
find_emulator
