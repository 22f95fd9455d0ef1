#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of a root for guests only: of another architecture, or with the rdma-core of a newer Debian than the root that tools/enter
# enters. Guests get kernel, modules and driver from elsewhere. Its key is the hash of this file, so that an edit of it installs
# Debian's present packages. These are unpacked and not configured, as programs of another architecture cannot run here. The parts of
# their scripts' work that a guest needs are below.
#
# usage: userland.sh SUITE ARCHITECTURE DIR      makes DIR
set -eu
suite=$1 architecture=$2 root=$3

# This root has the host's settings for access to the mirror.
settings=$(mktemp)
grep -h '^Acquire.*;$' /etc/apt/apt.conf.d/* >"$settings" || :

# Programs of a system, which tests start, and those that show a device and transfer data. rdma-core's tests are in python3-pyverbs, as
# documentation.
packages='base-files base-passwd bash dash coreutils findutils grep sed gawk tar gzip xz-utils util-linux mount login passwd
	hostname openssh-server openssh-client ncurses-bin libc-bin diffutils debianutils
	ca-certificates kmod udev iproute2 pciutils procps busybox-static make python3
	rdma-core ibverbs-utils python3-pyverbs perftest libfabric-bin'

mmdebstrap --mode=root --variant=extract --format=directory --arch="$architecture" --skip=check/qemu \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-include=/usr/share/doc/rdma-core/tests/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--aptopt="$settings" \
	--include="$(echo $packages | tr ' ' ',')" \
	"$suite" "$root"

# Adds users and groups, what sshd needs, awk, which is an alternative, and folders of no package. mmdebstrap runs no hook if it only
# unpacks.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
echo 'sshd:x:100:65534::/run/sshd:/usr/sbin/nologin' >>"$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
ln -s gawk "$root/usr/bin/awk"
mkdir -p "$root/efa-rs" "$root/cache" "$root/mnt" "$root/usr/lib/modules" "$root/usr/local/bin"
[ -e "$root/var/run" ] || ln -s /run "$root/var/run"
rm -f "$root/etc/resolv.conf"
touch "$root/etc/resolv.conf" "$root/etc/ssh/sshd_config"
