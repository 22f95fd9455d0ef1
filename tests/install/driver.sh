#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# What a machine is like that the driver was installed on, or removed from. Runs in a guest that tools/machine/session
# has come up in, and prints KTAP.
#
# usage: driver.sh present|early|loaded|inserted|idle|off|blacklisted|absent|c
number=0

ok() { # ok NAME COMMAND...
	name=$1
	shift
	number=$((number + 1))
	if output=$("$@" 2>&1); then
		echo "ok $number $name"
	else
		echo "$output" | sed 's/^/# /'
		echo "not ok $number $name"
	fi
}

is() { # is WANTED COMMAND...
	wanted=$1
	shift
	got=$("$@" 2>&1)
	echo "got '$got', wanted '$wanted'"
	[ "$got" = "$wanted" ]
}

fails() {
	! "$@"
}

has_active_port() {
	ibv_devinfo | tee /dev/stderr | grep -q PORT_ACTIVE
}

reports() {
	cd /tmp && efa-report --output /tmp/report.tar.gz && tar -x -z -f report.tar.gz &&
		grep -q "^version: " report/driver.txt && grep -q PORT_ACTIVE report/verbs.txt && grep -q "^efa-rs" report/packages.txt &&
		grep -q "efa" report/kernel-log.txt
}

# What modules-load.d names is loaded when its service is done. The service has nothing to say if udev was there before it.
loaded_early() {
	# What systemd says before there is a journal comes from the kernel's log.
	order=$(journalctl --boot --output cat _PID=1 + _TRANSPORT=kernel SYSLOG_IDENTIFIER=systemd | grep -n -E '^(Finished systemd-modules-load|Reached target sysinit.target)')
	said=$(journalctl --boot --output cat --unit systemd-modules-load.service _COMM=systemd-modules)
	printf '%s\n' "$order" "$said"
	echo "$order" | head -n 1 | grep -q modules-load && ! echo "$said" | grep -q Failed
}

is_named() { # is_named MODULE: by modules-load.d, with what /etc has
	systemd-analyze cat-config modules-load.d | tee /dev/stderr | grep -qx "$1"
}

is_named_if_there() { # as long as the package is there, whether or not the kernel has the driver
	if [ -n "$(ls -d /usr/src/efa-rs-* 2>/dev/null)" ]; then
		is_named efa
	else
		fails is_named efa
	fi
}

came_up() {
	ok "nothing failed when the machine came up" is running echo "$EFA_BOOT"
	ok "what loads modules did not fail" is active systemctl is-active systemd-modules-load.service
}

release=$(uname -r)
echo "# kernel $release"
echo "KTAP version 1"
case $1 in
present | early | loaded) # early: there is a service that needs the device, tests/install/needs-efa.service
	case $1 in
	present) echo "1..9" ;;
	early) echo "1..10" ;;
	loaded) echo "1..8" ;;
	esac
	came_up
	ok "the driver is loaded" test -d /sys/module/efa
	ok "the module is DKMS's" is "/lib/modules/$release/updates/dkms/efa.ko.xz" modinfo -F filename efa
	ok "the device is bound" test -n "$(ls -d /sys/bus/pci/drivers/efa/0000:* 2>/dev/null)"
	ok "modules-load.d names the driver" is_named efa
	ok "ibv_devinfo shows an active port" has_active_port
	ok "efa-report collects what a report needs" reports
	[ "$1" = loaded ] || ok "the driver was loaded before any service" loaded_early
	[ "$1" != early ] || ok "a service of the early boot has found the device" is active systemctl is-active needs-efa.service ;;
inserted) # by hand, without a package
	echo "1..6"
	came_up
	ok "the driver is loaded" test -d /sys/module/efa
	ok "no other is installed" fails modinfo -F filename efa
	ok "the device is bound" test -n "$(ls -d /sys/bus/pci/drivers/efa/0000:* 2>/dev/null)"
	ok "ibv_devinfo shows an active port" has_active_port ;;
idle) # as present, without a device
	echo "1..5"
	came_up
	ok "the driver is loaded" test -d /sys/module/efa
	ok "no device is bound" is "" sh -c 'ls -d /sys/bus/pci/drivers/efa/0000:* 2>/dev/null'
	ok "modules-load.d names the driver" is_named efa ;;
off) # an administrator does not want it, and has said so in modules-load.d
	echo "1..5"
	came_up
	ok "the driver is not loaded" fails test -d /sys/module/efa
	ok "it is there" modinfo -F filename efa
	ok "modules-load.d does not name it" fails is_named efa ;;
blacklisted) # or elsewhere
	echo "1..5"
	came_up
	ok "the driver is not loaded" fails test -d /sys/module/efa
	ok "it is there" modinfo -F filename efa
	ok "modules-load.d names it" is_named efa ;;
absent)
	echo "1..5"
	came_up
	ok "there is no driver" fails test -d /sys/module/efa
	ok "modprobe finds none" fails modprobe --dry-run efa
	ok "modules-load.d names the driver if the package is there, and only then" is_named_if_there ;;
c)
	echo "1..5"
	came_up
	ok "the kernel's own driver is loaded" test -d /sys/module/efa
	ok "the module is the kernel's" is "/lib/modules/$release/kernel/drivers/infiniband/hw/efa/efa.ko.xz" modinfo -F filename efa
	ok "modules-load.d does not name ours" fails is_named efa ;;
esac
