#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Drivers come and go: bind and unbind, insmod and rmmod. EFA_ROUNDS sets how often; from 100 rounds on all of it is done
# under load.

. "$(dirname "$0")/lib.sh"

rounds=${EFA_ROUNDS:-10}
load_from=100
# Memory that may be missing after all rounds, in KiB: what the rest of the system does meanwhile. Few rounds begin with
# caches that are not yet filled.
tolerance_kb=$((rounds < load_from ? 8192 : 4096))

page_kb=$(($(getconf PAGESIZE) / 1024))

# How many resets the emulator remembers.
remembered_resets=1024

plan 13

use_any_device || skip_all "there is no EFA device that is bound to the driver"
read_file /sys/module/efa/refcnt
[[ $REPLY == 0 ]] || skip_all "the driver is in use"

# The module file, to load it again.
module=$EFA_KO
if [[ ! $module ]]; then
	module=$(modinfo -F filename efa 2>/dev/null)
fi

# trouble: sets TROUBLE to the number of lines in which the kernel complains.
trouble() {
	TROUBLE=$(dmesg | grep -cE 'BUG:|WARNING:|Oops|general protection|Call Trace:|refcount_t|soft lockup|blocked for more')
}

# free_memory: sets REPLY to the memory that nobody needs, in KiB: free, or a cache that can be dropped. Pages that wait in
# a CPU's own list are free, too, but MemFree does not count them, and under load there are tens of MiB of them.
free_memory() {
	local name value rest
	REPLY=0
	while read -r name value rest; do
		case $name in
		MemFree: | Buffers: | Cached: | SReclaimable:) REPLY=$((REPLY + value)) ;;
		Shmem:) REPLY=$((REPLY - value)) ;;
		esac
	done </proc/meminfo
	while read -r name value rest; do
		[[ $name == count: ]] && REPLY=$((REPLY + value * page_kb))
	done </proc/zoneinfo
}

# quiesce: waits until those who were busy with the devices have given back their memory; idle workers of udev stay for 3 s.
quiesce() {
	settle
	sleep 4
}

# resets: sets REPLY to the reasons of the device's resets so far.
resets() {
	emu_state "$NUMBER"
	[[ $STATE =~ \"resets\":\[([^]]*)\] ]]
	REPLY=${BASH_REMATCH[1]//\"/}
}

# is_quiet: succeeds if nothing of the driver is left.
is_quiet() {
	local left
	find_ib_device && return 1
	left=$(grep -c "@pci:$BDF\$" /proc/interrupts)
	[[ $left == 0 && ! -e $DEVICE/driver ]] && ! is_reserved
}

# is_reserved: succeeds if the driver has BARs of the device.
is_reserved() {
	local line previous=
	while IFS= read -r line; do
		[[ $line == *" : efa" && $previous == *" : $BDF" ]] && return
		previous=$line
	done < <(cat /proc/iomem)
	return 1
}

# load: keeps devices and counters in use until killed.
load() {
	while :; do
		ibv_devinfo
		cat /sys/class/infiniband/*/hw_counters/* /sys/class/infiniband/*/ports/1/hw_counters/*
	done >/dev/null 2>&1
}

# start_load, stop_load: where many rounds are asked for.
start_load() {
	loaders=()
	((rounds < load_from)) && return
	load &
	loaders+=($!)
	load &
	loaders+=($!)
}
stop_load() {
	((${#loaders[@]})) || return
	kill "${loaders[@]}"
	wait "${loaders[@]}" 2>/dev/null
}

# keep_others_away DRIVER: reserves all other devices for a driver of that name, or for none in particular, so that a few
# rounds are quick.
keep_others_away() {
	local other
	for other in "${FUNCTIONS[@]}"; do
		[[ $other == "$BDF" ]] || echo "$1" >"/sys/bus/pci/devices/$other/driver_override"
	done
}

# patiently COMMAND...: under load, a device may be open for a moment.
patiently() {
	local attempt
	for ((attempt = 0; attempt < (rounds < load_from ? 1 : 200); attempt++)); do
		"$@" 2>/dev/null && return
		sleep 0.02
	done
	return 1
}

# rebind ROUNDS: unbinds and binds the device so often, and sets FAILED to how often that failed.
rebind() {
	local round
	FAILED=0
	start_load
	for ((round = 0; round < $1; round++)); do
		unbind && bind || FAILED=$((FAILED + 1))
	done
	stop_load
}

# reload ROUNDS: removes and loads the module so often, and sets FAILED to how often that failed.
reload() {
	local round
	FAILED=0
	((rounds < load_from)) && keep_others_away none
	start_load
	for ((round = 0; round < $1; round++)); do
		patiently rmmod efa && insmod "$module" || FAILED=$((FAILED + 1))
	done
	stop_load
	if ((rounds < load_from)); then
		keep_others_away ""
		rmmod efa && insmod "$module" || FAILED=$((FAILED + 1))
	fi
}

trouble
before=$TROUBLE

# Unbind and bind.

is_bound || bind
unbind
expect "unbind" 0 $?
check "nothing is left after an unbind" is_quiet
unbind
expect "a second unbind fails" 1 $?
bind
expect "bind" 0 $?
bind
expect "a second bind fails" 1 $?

if have_emulator; then
	resets
	start=$REPLY
	unbind
	bind
	resets
	commas=${start//[^,]/}
	if ((${#commas} + 1 >= remembered_resets - 2)); then
		skip "an unbind and a bind reset the device for NORMAL reasons" "the emulator remembers no more resets"
	else
		expect "an unbind and a bind reset the device for NORMAL reasons" ",NORMAL,NORMAL" "${REPLY#"$start"}"
	fi
else
	skip "an unbind and a bind reset the device for NORMAL reasons" "needs the emulator"
fi

# The first rounds under load fill caches; a leak is what goes on after them.
if ((rounds >= load_from)); then
	rebind $((rounds / 10))
	[[ ! -f $module ]] || reload $((rounds / 10))
fi
quiesce
free_memory
memory=$REPLY

rebind $rounds
expect "$rounds rounds of unbind and bind" 0 $FAILED

if [[ ! -f $module ]]; then
	skip "$rounds rounds of rmmod and insmod" "the module's file is not known: set EFA_KO"
else
	reload $rounds
	expect "$rounds rounds of rmmod and insmod" 0 $FAILED
fi

quiesce
free_memory
missing=$((memory - REPLY))
diag "memory before $memory KiB, after $REPLY KiB"
((missing < tolerance_kb)) || diag "$(grep -E 'Anon|Slab|Unreclaim|Kernel|PageTables|Vmalloc|Percpu' /proc/meminfo)"
check "memory is where it was" [ $missing -lt $tolerance_kb ]

settle
directories=("$DEVICE"/infiniband_verbs/uverbs*)
node=/dev/infiniband/${directories[0]##*/}
if ! { exec {file}<>"$node"; } 2>/dev/null; then
	not_ok "users of the module while a device is open" "$node can't be opened"
	not_ok "removal of the module while a device is open" "$node can't be opened"
else
	read_file /sys/module/efa/refcnt
	expect "users of the module while a device is open" 0 "$REPLY"
	if [[ ! -f $module ]]; then
		skip "removal of the module while a device is open" "the module's file is not known: set EFA_KO"
	else
		rmmod efa 2>/dev/null
		expect "removal of the module while a device is open" 0 $?
		[[ -e /sys/module/efa ]] || insmod "$module"
	fi
	exec {file}>&-
fi
check "the device is bound in the end" is_bound

trouble
expect "the kernel has no complaint" "$before" "$TROUBLE"
finish
