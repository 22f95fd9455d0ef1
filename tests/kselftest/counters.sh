#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Hardware counters. Monitoring tools rely on their names.

. "$(dirname "$0")/lib.sh"

device_names="alloc_pd_err alloc_ucontext_err cmds_err completed_cmds create_ah_err create_cq_err create_qp_err \
keep_alive_rcvd mmap_err no_completion_cmds reg_mr_err submitted_cmds"
port_names="impaired_remote_conn_events rdma_read_bytes rdma_read_resp_bytes rdma_read_wr_err rdma_read_wrs \
rdma_write_bytes rdma_write_recv_bytes rdma_write_wr_err rdma_write_wrs recv_bytes recv_wrs retrans_bytes retrans_pkts \
retrans_timeout_events rx_bytes rx_drops rx_pkts send_bytes send_wrs tx_bytes tx_pkts unresponsive_remote_events"
types=(BASIC MESSAGES RDMA_READ RDMA_WRITE NETWORK)
specs=(profile=efa0 profile=efa1 profile=efa3 profile=efa4)
plan $((19 + ${#types[@]} + ${#specs[@]}))

use_any_device || skip_all "there is no EFA device that is bound to the driver"
if have_emulator; then
	# With all that a new device has.
	unbind
	bind
fi

# Counters are cached for their lifespan, in ms: they are read again always, or not for as long as is possible.
always=0
never=10000

# find_counters: sets `device` and `port` to the folders of the device's counters.
find_counters() {
	settle
	find_ib_device
	device=/sys/class/infiniband/$IB/hw_counters
	port=/sys/class/infiniband/$IB/ports/1/hw_counters
}

# names FOLDER: sets REPLY to the names of the counters in it.
names() {
	local file
	REPLY=
	for file in "$1"/*; do
		[[ $file == */lifespan ]] || REPLY+="${file##*/} "
	done
	REPLY=${REPLY% }
}

# lifespan FOLDER MS: sets for how long counters are cached.
lifespan() {
	echo "$2" 2>/dev/null >"$1/lifespan"
}

# difference NAME: sets REPLY to how much a counter of the device has grown since it was `before`.
difference() {
	read_file "$device/$1"
	REPLY=$((REPLY - before))
}

# tick: lets the time pass in which sysfs answers from its cache whatever the lifespan is: what is left of a jiffy.
tick() {
	sleep 0.01
}

# refuse TYPE STATUS: has the device refuse GET_STATS of this type.
refuse() {
	tick
	emu "{\"command\":\"inject\",\"device\":$NUMBER,\"rule\":{\"when\":{\"opcode\":\"GET_STATS\",\"stats\":\"$1\"},\"then\":{\"status\":\"$2\"}}}"
}

# clear: ends all that the device was told to do.
clear() {
	tick
	emu "{\"command\":\"clear\",\"device\":$NUMBER}"
}

# commands: sets REPLY to the number of commands the device has ever seen.
commands() {
	tick
	emu_state "$NUMBER"
	state submitted
}

find_counters
names "$device"
resets=
kernel_verbs=
others=
for name in $REPLY; do
	case $name in
	resets*) resets+="$name " ;;
	alloc_mr_err | get_dma_mr_err) kernel_verbs+="$name " ;;
	*) others+="$name " ;;
	esac
done
resets=${resets% }
kernel_verbs=${kernel_verbs% }
expect "names of the device's counters" "$device_names" "${others% }"
expect "counters of resets" "" "$resets"
expect "counters of kernel verbs" "" "$kernel_verbs"
names "$port"
expect "names of the port's counters" "$port_names" "$REPLY"

# In ms, rounded up to what the kernel's clock can do.
read_file "$device/lifespan"
[[ $REPLY -ge 10 && $REPLY -le 20 ]]
check "lifespan of the device's counters" [ $? = 0 ]
read_file "$port/lifespan"
[[ $REPLY -ge 10 && $REPLY -le 20 ]]
check "lifespan of the port's counters" [ $? = 0 ]

failed=
for name in $device_names $resets $kernel_verbs; do
	read_file "$device/$name"
	[[ $REPLY =~ ^[0-9]+$ ]] || failed+="$name "
done
expect "the device's counters can be read" "" "$failed"
failed=
for name in $port_names; do
	read_file "$port/$name"
	[[ $REPLY =~ ^[0-9]+$ ]] || failed+="$name "
done
expect "the port's counters can be read" "" "$failed"

lifespan "$device" $always
lifespan "$port" $always
read_file "$device/submitted_cmds"
submitted=$REPLY
read_file "$device/completed_cmds"
expect "all commands are completed" "$submitted" "$REPLY"

if ! have_emulator; then
	for name in "a read of the port's counters takes five commands" "the driver counts commands as the device does" \
		"counters are not read again within their lifespan" "the device's counters take no command" \
		"a failed command is counted" "a keep-alive event is counted" "a new probe starts at zero" \
		"a reset is counted, with its reason" "other counters go on after a reset"; do
		skip "$name" "needs the emulator"
	done
	for type in "${types[@]}"; do
		skip "GET_STATS $type fails" "needs the emulator"
	done
	for spec in "${specs[@]}"; do
		skip "${spec#profile=}: the port's counters" "needs the emulator"
	done
	if command -v rdma >/dev/null; then
		[[ $(rdma statistic show link "$IB/1" 2>&1) == *" tx_bytes "* ]]
		check "rdma statistic shows the port's counters" [ $? = 0 ]
	else
		skip "rdma statistic shows the port's counters" "needs the program rdma"
	fi
	finish
fi

commands
before=$REPLY
read_file "$port/tx_bytes"
commands
expect "a read of the port's counters takes five commands" 5 $((REPLY - before))

read_file "$device/submitted_cmds"
before=$REPLY
commands
start=$REPLY
read_file "$port/rx_pkts"
commands
start=$((REPLY - start))
difference submitted_cmds
expect "the driver counts commands as the device does" "$start" "$REPLY"

lifespan "$port" $never
read_file "$port/tx_bytes"
commands
before=$REPLY
for name in $port_names; do
	read_file "$port/$name"
done
commands
expect "counters are not read again within their lifespan" 0 $((REPLY - before))
lifespan "$port" $always

commands
before=$REPLY
for name in $device_names $resets $kernel_verbs; do
	read_file "$device/$name"
done
commands
expect "the device's counters take no command" 0 $((REPLY - before))

for type in "${types[@]}"; do
	read_file "$device/cmds_err"
	before=$REPLY
	refuse "$type" UNKNOWN_ERROR
	read_file "$port/tx_bytes"
	failed=$REPLY
	difference cmds_err
	errors=$REPLY
	clear
	read_file "$port/tx_bytes"
	expect "GET_STATS $type fails" "nothing to read, errors 1, then 0" "${failed:-nothing to read}, errors $errors, then $REPLY"
done

read_file "$device/cmds_err"
before=$REPLY
refuse BASIC RESOURCE_BUSY
read_file "$port/tx_bytes"
difference cmds_err
expect "a failed command is counted" 1 "$REPLY"
clear

emu "{\"command\":\"set\",\"device\":$NUMBER,\"set\":{\"keep_alive_ms\":0}}"
read_file "$device/keep_alive_rcvd"
before=$REPLY
emu "{\"command\":\"event\",\"device\":$NUMBER,\"group\":\"KEEP_ALIVE\"}"
# The event comes by an interrupt, and the core answers from a cache for 10 ms.
sleep 0.1
difference keep_alive_rcvd
expect "a keep-alive event is counted" 1 "$REPLY"
clear

if command -v rdma >/dev/null; then
	shown=$(rdma statistic show link "$IB/1" 2>&1)
	failed=
	for name in $port_names; do
		[[ $shown == *" $name "* ]] || failed+="$name "
	done
	expect "rdma statistic shows the port's counters" "" "$failed"
else
	skip "rdma statistic shows the port's counters" "needs the program rdma"
fi

# reset_counts: sets REPLY to the counters of resets that are not zero.
reset_counts() {
	local name found=
	for name in $resets; do
		read_file "$device/$name"
		[[ $REPLY == 0 ]] || found+="$name $REPLY "
	done
	REPLY=${found% }
}

if [[ $DRIVER == rust ]]; then
	read_file "$device/submitted_cmds"
	before=$REPLY
	reset_counts
	counts="${REPLY:-none}, then"
	emu "{\"command\":\"event\",\"device\":$NUMBER,\"group\":\"FATAL_ERROR\"}"
	await_session 2
	find_counters
	lifespan "$device" $always
	reset_counts
	expect "a reset is counted, with its reason" "none, then resets 1 resets_fatal_error 1" "$counts $REPLY"
	difference submitted_cmds
	check "other counters go on after a reset" [ $REPLY -gt 0 ]
else
	for name in "a reset is counted, with its reason" "other counters go on after a reset"; do
		skip "$name" "the C driver resets no device that is in use"
	done
fi

unbind
bind
find_counters
lifespan "$device" $always
read_file "$device/submitted_cmds"
[[ $REPLY -gt 0 && $REPLY -lt 50 ]]
check "a new probe starts at zero" [ $? = 0 ]

for spec in "${specs[@]}"; do
	name="${spec#profile=}: the port's counters"
	if use_device "$spec"; then
		find_counters
		names "$port"
		# Without all statistics the core is given none, and shows none.
		case $spec in
		*efa3 | *efa4) wanted=$port_names ;;
		*) wanted= ;;
		esac
		expect "$name" "$wanted" "$REPLY"
	else
		skip "$name" "there is no such device"
	fi
done
finish
