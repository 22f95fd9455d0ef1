#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Checks a machine after the installation or the removal of the driver. Runs in a machine of tests/test_packages.py, and prints KTAP.
#
# usage: driver.sh present|early|loaded|trusted|rejected|inserted|idle|off|blacklisted|absent|c|amazons
#        driver.sh upgraded PACKAGE VERSION
unit=modprobe@efa.service
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

# All services start after sysinit.target, which waits for the unit's end, however fast the rest of the boot is. The journal does
# not show the order, as it has two sources early in the boot.
loaded_early() {
	systemctl show --property=Before --value "$unit" | tr ' ' '\n' | tee /dev/stderr | grep -qx sysinit.target || return 1
	times=$(
		systemctl show --property=ExecMainExitTimestampMonotonic,ExecMainStatus "$unit"
		systemctl show --property=ActiveEnterTimestampMonotonic sysinit.target
	)
	echo "$times"
	ExecMainExitTimestampMonotonic=0 ExecMainStatus='' ActiveEnterTimestampMonotonic=0
	eval "$times"
	[ "$ExecMainStatus" = 0 ] && [ "$ExecMainExitTimestampMonotonic" -gt 0 ] &&
		[ "$ExecMainExitTimestampMonotonic" -le "$ActiveEnterTimestampMonotonic" ]
}

is_wanted() { # Whether sysinit.target wants the unit, and the unit is not masked.
	wants=$(systemctl show --property=Wants --value sysinit.target)
	state=$(systemctl show --property=LoadState --value "$unit")
	echo "$wants, $state"
	[ "$state" != masked ] && echo "$wants" | tr ' ' '\n' | grep -qx "$unit"
}

is_wanted_if_there() { # Whether the unit is wanted if and only if the package is installed. The kernel may lack the driver.
	if [ -n "$(ls -d /usr/src/efa-rs-* 2>/dev/null)" ]; then
		is_wanted
	else
		fails is_wanted
	fi
}

advises() { # advises PATTERN
	sh -c '/usr/src/efa-rs-*/dkms/advise' | tee /dev/stderr | grep -q "$1"
}

# The value is the variable's last byte, after four bytes of attributes.
has_secure_boot() {
	is 1 sh -c "tail -c 1 /sys/firmware/efi/efivars/SecureBoot-* | od -An -t u1 | tr -d ' '"
}

rejected() {
	dmesg | grep -E 'Loading of .* is rejected|unsigned module loading is restricted'
}

upgrades() { # upgrades PACKAGE
	apt-get install --yes "$1" >/tmp/output 2>&1 || {
		tail -n 25 /tmp/output
		return 1
	}
}

release=$(uname -r)
echo "# kernel $release"
echo "KTAP version 1"
ok "no unit failed during the boot" is running echo "$EFA_BOOT"
case $1 in
# early: with a service that needs the device, tests/packages/needs-efa.service; trusted: with Secure Boot
present | early | loaded | trusted)
	ok "the driver is loaded" test -d /sys/module/efa
	ok "the module is DKMS's" is "/lib/modules/$release/updates/dkms/efa.ko.xz" modinfo -F filename efa
	ok "the device is bound" test -n "$(ls -d /sys/bus/pci/drivers/efa/0000:* 2>/dev/null)"
	ok "the boot waits for the driver" is_wanted
	ok "ibv_devinfo shows an active port" has_active_port
	ok "efa-report collects what a report needs" reports
	[ "$1" = loaded ] || ok "the driver was loaded before any service" loaded_early
	[ "$1" != early ] || ok "a service of the early boot has found the device" is active systemctl is-active needs-efa.service
	[ "$1" != trusted ] || ok "Secure Boot is on" has_secure_boot ;;
rejected) # with Secure Boot, whose firmware does not trust DKMS's key
	ok "Secure Boot is on" has_secure_boot
	ok "the driver is installed" is "/lib/modules/$release/updates/dkms/efa.ko.xz" modinfo -F filename efa
	ok "the driver is not loaded" fails test -d /sys/module/efa
	ok "the kernel has rejected it" rejected
	ok "advise explains how to enroll the key" advises 'mokutil --import' ;;
inserted) # the driver is loaded by hand, without a package
	ok "the driver is loaded" test -d /sys/module/efa
	ok "no other driver is installed" fails modinfo -F filename efa
	ok "the device is bound" test -n "$(ls -d /sys/bus/pci/drivers/efa/0000:* 2>/dev/null)"
	ok "ibv_devinfo shows an active port" has_active_port ;;
idle) # the driver is installed, and the machine has no device
	ok "the driver is loaded" test -d /sys/module/efa
	ok "no device is bound" is "" sh -c 'ls -d /sys/bus/pci/drivers/efa/0000:* 2>/dev/null'
	ok "the boot waits for the driver" is_wanted ;;
off) # an administrator has masked the driver's unit
	ok "the driver is not loaded" fails test -d /sys/module/efa
	ok "the driver is installed" modinfo -F filename efa
	ok "the boot does not wait for the driver" fails is_wanted ;;
blacklisted) # an administrator has blacklisted the driver
	ok "the driver is not loaded" fails test -d /sys/module/efa
	ok "the driver is installed" modinfo -F filename efa
	ok "the boot would wait for the driver" is_wanted ;;
absent)
	ok "no driver is loaded" fails test -d /sys/module/efa
	ok "modprobe finds no driver" fails modprobe --dry-run efa
	ok "the boot waits for the driver if and only if the package is installed" is_wanted_if_there ;;
upgraded) # upgrades the package in this boot, while a program uses the device
	sleep infinity 1<>/dev/infiniband/uverbs0 &
	program=$!
	ok "a newer package is installed" upgrades "$2"
	ok "the package reports that the old module stays, and how to replace it" grep "^efa-rs: .* still uses the module .*'rmmod efa && modprobe efa'" /tmp/output
	ok "the old module is loaded" fails is "$3" cat /sys/module/efa/version
	ok "the program still uses the device" is /dev/infiniband/uverbs0 readlink "/proc/$program/fd/1"
	kill "$program"
	wait "$program"
	ok "the old module can be removed, and the new one loaded" sh -c 'rmmod efa && modprobe efa && udevadm settle'
	ok "the new module is loaded" is "$3" cat /sys/module/efa/version
	ok "ibv_devinfo shows an active port" has_active_port ;;
amazons) # the C driver of Amazon's package is installed
	ok "a driver is loaded" test -d /sys/module/efa
	ok "the module is not ours" fails grep -q . /sys/module/efa/version
	ok "the boot does not wait for ours" fails is_wanted ;;
c)
	ok "the kernel's own driver is loaded" test -d /sys/module/efa
	ok "the module is the kernel's" is "/lib/modules/$release/kernel/drivers/infiniband/hw/efa/efa.ko.xz" modinfo -F filename efa
	ok "the boot does not wait for ours" fails is_wanted ;;
*) exit 2 ;;
esac
echo "1..$number"
