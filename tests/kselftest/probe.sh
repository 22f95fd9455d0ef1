#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# What there is once the driver has found its devices.

. "$(dirname "$0")/lib.sh"

# The module file; the loaded module does not show all that is in it.
module=${EFA_KO:-efa}

mapfile -t interrupts </proc/interrupts
mapfile -t iomem </proc/iomem

# interrupt_names: sets NAMES to the names of the device's interrupts, without the part that all have.
interrupt_names() {
	local line
	NAMES=
	for line in "${interrupts[@]}"; do
		[[ $line == *"@pci:$BDF" ]] || continue
		line=${line##* }
		NAMES+="${line%"@pci:$BDF"} "
	done
}

# hints: sets REPLY to the affinity hints of the device's interrupts: management first.
hints() {
	local line hint hints=
	for line in "${interrupts[@]}"; do
		[[ $line == *"@pci:$BDF" ]] || continue
		line=${line%%:*}
		read_file "/proc/irq/${line// /}/affinity_hint"
		hints+="$((16#${REPLY//,/})) "
	done
	REPLY=$hints
}

# regions: sets REPLY to the number of the device's BARs, and how many of them the driver has reserved.
regions() {
	local line previous=- bars=0 reserved=0
	for line in "${iomem[@]}"; do
		if [[ $line == *" : $BDF" ]]; then
			bars=$((bars + 1))
		elif [[ $line == *" : efa" && $previous == *" : $BDF" ]]; then
			reserved=$((reserved + 1))
		fi
		previous=$line
	done
	REPLY="$bars $reserved"
}

module_tests=5
device_tests=10
specs=(profile=efa0 profile=efa1 profile=efa2 profile=efa3 profile=efa4 profile=efa2,msix=1)
plan $((module_tests + device_tests * ${#specs[@]}))

read_file /sys/module/efa/initstate
expect "the module is live" live "$REPLY"

read_file /sys/module/efa/version
expect "the module has a version" yes "$([[ $REPLY == *.*.* ]] && echo yes || echo no)"

if information=$(modinfo "$module" 2>/dev/null); then
	missing=
	for id in EFA0 EFA1 EFA2 EFA3 EFA4; do
		[[ $information == *"pci:v00001D0Fd0000${id}sv*sd*bc*sc*i*"* ]] || missing+=$id
	done
	expect "the module has the aliases of all generations" "" "$missing"
	[[ $information =~ softdep:\ *pre:\ *ib_uverbs ]] && softdep=yes || softdep=no
	expect "the module asks for ib_uverbs first" yes "$softdep"
	[[ $information =~ license:\ *([^$'\n']*) ]]
	expect "the module has a licence that the kernel accepts" "Dual BSD/GPL" "${BASH_REMATCH[1]}"
else
	skip "the module has the aliases of all generations" "modinfo knows no module $module"
	skip "the module asks for ib_uverbs first" "modinfo knows no module $module"
	skip "the module has a licence that the kernel accepts" "modinfo knows no module $module"
fi

cpus=$(nproc)
release=$(uname -r)

# test_device NAME EVENT_QUEUES: where the number is empty, it is the number of CPUs.
test_device() {
	local name=$1 event_queues=$2 wanted index directories
	is_bound
	expect "$name: the device is bound" 0 $?

	find_ib_device
	expect "$name: there is an RDMA device" 0 $?
	[[ /sys/class/infiniband/$IB -ef $DEVICE/infiniband/$IB && $DEVICE -ef /sys/class/infiniband/$IB/device ]]
	expect "$name: the RDMA device refers to the PCI device" 0 $?
	[[ $DEVICE/driver -ef $SYSFS_DRIVER && $SYSFS_DRIVER/module -ef /sys/module/efa ]]
	expect "$name: the device refers to its driver, and that to its module" 0 $?

	interrupt_names
	if [[ ! $event_queues ]]; then
		event_queues=$cpus
		if ! have_emulator; then
			# Real devices have a limit of their own.
			event_queues=$(grep -o efa-comp <<<"$NAMES" | wc -l)
		fi
	fi
	wanted="efa-mgmnt "
	for ((index = 0; index < event_queues; index++)); do
		wanted+="efa-comp$index "
	done
	expect "$name: interrupts have their names" "$wanted" "$NAMES"
	wanted="1 "
	for ((index = 0; index < event_queues; index++)); do
		wanted+="$((1 << index)) "
	done
	hints
	expect "$name: each event queue hints at its CPU" "$wanted" "$REPLY"

	regions
	if have_emulator; then
		wanted="3 3"
	else
		wanted="${REPLY% *} ${REPLY% *}"
	fi
	expect "$name: BARs are reserved" "$wanted" "$REPLY"

	directories=("$DEVICE"/infiniband_verbs/uverbs*)
	read_file "${directories[0]}/abi_version"
	[[ -c /dev/infiniband/${directories[0]##*/} ]] && wanted=1 || wanted=no
	expect "$name: it can be opened, with ABI version 1" "$wanted" "$REPLY"

	if have_emulator; then
		emu_state "$NUMBER"
		state eq
		wanted="$event_queues $event_queues"
		index=$REPLY
		state armed_eqs
		expect "$name: there are event queues, all armed" "$wanted" "$index $REPLY"
		state bdf
		wanted="${BDF#*:} $release"
		index=$REPLY
		state os_dist
		expect "$name: the device knows its host" "$wanted" "$index $REPLY"
	else
		skip "$name: there are event queues, all armed" "needs the emulator"
		skip "$name: the device knows its host" "needs the emulator"
	fi
}

for spec in "${specs[@]}"; do
	name=${spec#profile=}
	if use_device "$spec"; then
		case $spec in
		profile=efa0 | *msix=1) test_device "$name" 0 ;;
		*) test_device "$name" "" ;;
		esac
	else
		for test in "the device is bound" "there is an RDMA device" "the RDMA device refers to the PCI device" \
			"the device refers to its driver, and that to its module" "interrupts have their names" \
			"each event queue hints at its CPU" "BARs are reserved" "it can be opened, with ABI version 1" \
			"there are event queues, all armed" "the device knows its host"; do
			skip "$name: $test" "there is no such device"
		done
	fi
done
finish
