#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Makes a guest's device send to itself for some seconds, and prints a line if that succeeds.
set -e
device=$(ls /sys/class/infiniband)
measure="ib_send_lat -d $device -c SRD -x 0 -F -n 500"
for _ in 1 2 3; do
	$measure >/dev/null &
	# Retries until the server listens.
	until $measure localhost >/run/measured 2>&1; do
		kill -0 $! || { cat /run/measured; exit 1; }
		sleep 0.2
	done
	wait $!
done
ibv_devinfo -d "$device" | grep PORT_ACTIVE
echo "the device was used"
