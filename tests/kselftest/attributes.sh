#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# What sysfs and the RDMA tools show of a device and its port.

. "$(dirname "$0")/lib.sh"

# Gbit/s that the device claims, and what the port shows for it.
rates=(
	"0|100 Gb/sec (4X EDR)"
	"1|25 Gb/sec (1X EDR)"
	"30|30 Gb/sec (12X SDR)"
	"40|40 Gb/sec (4X FDR10)"
	"50|50 Gb/sec (1X HDR)"
	"60|60 Gb/sec (12X DDR)"
	"100|100 Gb/sec (4X EDR)"
	"120|120 Gb/sec (12X FDR10)"
	"200|200 Gb/sec (4X HDR)"
	"400|400 Gb/sec (8X HDR)"
	"800|800 Gb/sec (8X NDR)"
	"1600|1600 Gb/sec (8X XDR)"
)
specs=(profile=efa0 profile=efa1 profile=efa2 profile=efa3 profile=efa4)
device_tests=(
	"node GUID"
	"GID"
	"there is one GID"
	"partition key"
	"there is one partition key"
	"state"
	"physical state"
	"rate"
	"link layer"
	"node type"
	"what InfiniBand has and EFA has not"
	"firmware version"
	"ibv_devinfo"
	"rdma link"
)
# So many pages of the kernel.
printf -v max_mr_size '0x%x' $((0x100000 * $(getconf PAGESIZE)))

plan $((${#specs[@]} * ${#device_tests[@]} + ${#rates[@]}))

# info FIELD: sets REPLY to the value of a field in INFO.
info() {
	REPLY=
	[[ $INFO =~ [[:space:]]"$1":[[:space:]]*([^$'\n']*) ]] && REPLY=${BASH_REMATCH[1]}
}

# test_device NAME NUMBER RATE RDMA_SGES: with the emulator, for its device of that number.
test_device() {
	local name=$1 number=$2 rate=$3 rdma_sges=$4 guid address port value wanted files got field
	find_ib_device
	port=/sys/class/infiniband/$IB/ports/1

	read_file "/sys/class/infiniband/$IB/node_guid"
	value=$REPLY
	printf -v guid '%02x' "$number"
	if have_emulator; then
		expect "$name: node GUID" "02ef:a0ff:fe00:00$guid" "$value"
	else
		[[ $value == ????:????:????:???? && $value != 0000:0000:0000:0000 ]]
		expect "$name: node GUID" 0 $?
	fi
	read_file "$port/gids/0"
	address=$REPLY
	if have_emulator; then
		expect "$name: GID" "fe80:0000:0000:0000:02ef:a0ff:fe00:00$guid" "$address"
	else
		[[ $address == fe80:* ]]
		expect "$name: GID" 0 $?
	fi
	files=("$port"/gids/*)
	expect "$name: there is one GID" 1 "${#files[@]}"
	read_file "$port/pkeys/0"
	expect "$name: partition key" 0xffff "$REPLY"
	files=("$port"/pkeys/*)
	expect "$name: there is one partition key" 1 "${#files[@]}"
	read_file "$port/state"
	expect "$name: state" "4: ACTIVE" "$REPLY"
	read_file "$port/phys_state"
	expect "$name: physical state" "5: LinkUp" "$REPLY"
	read_file "$port/rate"
	if have_emulator; then
		expect "$name: rate" "$rate" "$REPLY"
	else
		[[ $REPLY =~ ^[1-9][0-9]*\ Gb/sec ]]
		expect "$name: rate" 0 $?
	fi
	read_file "$port/link_layer"
	expect "$name: link layer" Unknown "$REPLY"
	read_file "/sys/class/infiniband/$IB/node_type"
	expect "$name: node type" "7: unspecified" "$REPLY"
	got=
	for field in lid sm_lid sm_sl cap_mask lid_mask_count; do
		read_file "$port/$field"
		got+="$field $REPLY, "
	done
	read_file "/sys/class/infiniband/$IB/sys_image_guid"
	wanted="lid 0x0, sm_lid 0x0, sm_sl 0, cap_mask 0x00000000, lid_mask_count 1, "
	expect "$name: what InfiniBand has and EFA has not" "${wanted}0000:0000:0000:0000" "$got$REPLY"
	read_file "/sys/class/infiniband/$IB/fw_ver"
	[[ $REPLY == 0x00000001 || ($REPLY == 0x???????? && ! $emulator) ]] && REPLY=shown
	expect "$name: firmware version" "" "$REPLY"

	if ! have_emulator; then
		skip "$name: ibv_devinfo" "needs the emulator"
	elif ! INFO=$(ibv_devinfo -v -d "$IB" 2>&1); then
		not_ok "$name: ibv_devinfo" "$INFO"
	else
		wanted="unspecified (4)|$value|0x1d0f|$((0xefa0 + ${name#efa}))|0xEFA${name#efa}|1|$max_mr_size|0x7ffff000|256|4096|"
		wanted+="2|$rdma_sges|512|32768|65536|256|4096|0|1|PORT_ACTIVE (4)|4096 (5)|4096 (5)|Unspecified|0x22e0|1|1|"
		got=
		for field in transport node_guid vendor_id vendor_part_id hw_ver phys_port_cnt max_mr_size page_size_cap max_qp \
			max_qp_wr max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_ah max_srq max_pkeys state max_mtu \
			active_mtu link_layer max_msg_sz pkey_tbl_len gid_tbl_len; do
			info "$field"
			got+="$REPLY|"
		done
		expect "$name: ibv_devinfo" "$wanted" "$got"
	fi
	if ! command -v rdma >/dev/null; then
		skip "$name: rdma link" "needs the program rdma"
	else
		got=$(rdma link show "$IB/1" 2>&1)
		[[ $got == "link $IB/1 state ACTIVE physical_state LINK_UP"* ]]
		check "$name: rdma link" [ $? = 0 ]
	fi
}

for spec in "${specs[@]}"; do
	name=${spec#profile=}
	if ! use_device "$spec"; then
		for test in "${device_tests[@]}"; do
			skip "$name: $test" "there is no such device"
		done
		continue
	fi
	case $name in
	efa0) test_device "$name" "$NUMBER" "100 Gb/sec (4X EDR)" 0 ;;
	efa1) test_device "$name" "$NUMBER" "100 Gb/sec (4X EDR)" 1 ;;
	efa2) test_device "$name" "$NUMBER" "200 Gb/sec (4X HDR)" 1 ;;
	efa3) test_device "$name" "$NUMBER" "400 Gb/sec (8X HDR)" 1 ;;
	efa4) test_device "$name" "$NUMBER" "800 Gb/sec (8X NDR)" 1 ;;
	esac
done

for rate in "${rates[@]}"; do
	gbps=${rate%%|*}
	name="a link of $gbps Gbit/s"
	if ! have_emulator; then
		skip "$name" "needs the emulator"
		continue
	fi
	use_any_device
	emu "{\"command\":\"set\",\"device\":$NUMBER,\"set\":{\"link_gbps\":$gbps}}"
	unbind
	bind
	got=
	# udev may change the name meanwhile.
	for attempt in 1 2 3; do
		find_ib_device
		read_file "/sys/class/infiniband/$IB/ports/1/rate" && got=$REPLY && break
	done
	expect "$name" "${rate#*|}" "$got"
done
if have_emulator; then
	emu "{\"command\":\"clear\",\"device\":$NUMBER}"
	unbind
	bind
fi
finish
