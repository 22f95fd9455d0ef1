#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of what arm64 guests have as their root: a Debian 13 with what runs in a guest, see toolroot.sh. Its packages are
# unpacked and not configured, as no program of it can run here: what their scripts would do, and a guest needs, is done below.
#
# Runs in the packaging root, which has mmdebstrap.
#
# usage: userland.sh DIR [APT-OPTION...]      makes DIR; an APT-OPTION is a line of apt.conf
set -eu
root=$1; shift

for option; do
	set -- "$@" --aptopt="$option"; shift
done

packages='base-files base-passwd bash dash coreutils findutils grep sed gawk tar gzip xz-utils util-linux mount login passwd
	hostname ncurses-bin libc-bin diffutils debianutils
	ca-certificates kmod udev iproute2 pciutils procps busybox-static make python3
	rdma-core ibverbs-utils python3-pyverbs perftest libfabric-bin'

mmdebstrap --mode=root --variant=extract --format=directory --arch=arm64 --skip=check/qemu \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-include=/usr/share/doc/rdma-core/tests/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	"$@" \
	--include="$(echo $packages | tr ' ' ',')" \
	trixie "$root"

# Users and groups; awk, which is an alternative; and folders that no package has. mmdebstrap runs no hook if it only unpacks.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
ln -s gawk "$root/usr/bin/awk"
mkdir -p "$root/efa-rs" "$root/mnt" "$root/usr/lib/modules" "$root/usr/local/bin"
[ -e "$root/var/run" ] || ln -s /run "$root/var/run"
rm -f "$root/etc/resolv.conf"
touch "$root/etc/resolv.conf"
