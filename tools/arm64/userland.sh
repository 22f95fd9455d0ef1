#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of the root of arm64 guests: a Debian 13 with the programs of a guest, see toolroot.sh. Its packages are unpacked and
# not configured, as its programs cannot run here. The parts of their scripts' work that a guest needs are below.
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

# Adds users and groups, awk, which is an alternative, and folders of no package. mmdebstrap runs no hook if it only unpacks.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
ln -s gawk "$root/usr/bin/awk"
mkdir -p "$root/efa-rs" "$root/mnt" "$root/usr/lib/modules" "$root/usr/local/bin"
[ -e "$root/var/run" ] || ln -s /run "$root/var/run"
rm -f "$root/etc/resolv.conf"
touch "$root/etc/resolv.conf"
