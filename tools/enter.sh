#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Runs a command with DIR as its root. Must itself run in a mount and PID namespace of its own (`unshare --mount --pid
# --fork`), so that no mount outlives it or is visible to other processes.
#
# With --overlay, the root is an overlay that is mounted at DIR with OPTIONS. It is writable if they have an upperdir.
#
# With --emulator, FILE runs arm64 programs. The script must then also run in a user namespace of its own.
#
# usage: enter.sh [--emulator FILE] [--overlay OPTIONS] DIR [SOURCE:TARGET[:ro]]... -- COMMAND [ARGUMENT...]
set -eu
PATH=$PATH:/usr/sbin:/sbin
emulator='' overlay=''
if [ "$1" = --emulator ]; then
	emulator=$2
	shift 2
fi
if [ "$1" = --overlay ]; then
	overlay=$2
	shift 2
fi
root=$1; shift

# Remounts read-only with the mount's other flags. In a user namespace these are locked, and the kernel refuses to drop one.
read_only() {
	flags=$(findmnt --noheadings --output VFS-OPTIONS --mountpoint "$1" | head -n 1)
	mount -o "remount,bind,ro,$(echo "$flags" | sed 's/^rw,*//')" "$1"
}

if [ -n "$overlay" ]; then
	mount -t overlay -o "$overlay" overlay "$root"
else
	mount --rbind "$root" "$root"
	read_only "$root"
fi
mount -t proc proc "$root/proc"
if [ -n "$emulator" ]; then
	misc=$root/proc/sys/fs/binfmt_misc
	if ! mount -t binfmt_misc binfmt_misc "$misc" 2>/dev/null; then
		echo "Programs of arm64 cannot be run here: that takes Linux 6.7 or newer, with binfmt_misc (modprobe binfmt_misc)." >&2
		exit 1
	fi
	# The header of a 64-bit ELF file for arm64 (machine 183). F: the emulator is opened now, as the new root does not have it.
	printf '%s' ':arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$emulator:OCF" >"$misc/register"
fi
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/root"
[ ! -e /etc/resolv.conf ] || mount --bind /etc/resolv.conf "$root/etc/resolv.conf"

while [ "$1" != -- ]; do
	source=${1%%:*}
	target=${1#*:}
	mode=${target#*:}
	target=$root${target%%:*}
	if [ -d "$source" ]; then
		[ -d "$target" ] || mkdir -p "$target"
		mount --rbind "$source" "$target"
	else
		[ -e "$target" ] || { mkdir -p "$(dirname "$target")" && touch "$target"; }
		mount --bind "$source" "$target"
	fi
	[ "$mode" != ro ] || read_only "$target"
	shift
done
shift
exec chroot "$root" "$@"
