#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of a root of another architecture, for guests and for the image, or with the rdma-core of a newer Debian than the root that
# tools/enter enters, for guests. Guests get kernel, modules and driver from elsewhere. Its key is the hash of this file, so that an edit of
# it installs Debian's present packages. These are unpacked and not configured, as programs of another architecture cannot run here. The
# parts of their scripts' work that a guest needs are below.
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
# What the image needs besides: see image/build.py.
backports=
if [ "$architecture" = arm64 ]; then
	qemu=$(printf ' qemu-system-%s/trixie-backports' arm common data)
	packages="$packages $qemu virtiofsd libnss-wrapper openmpi-bin python3-pytest python3-pytest-xdist
		python3-yaml python3-junitparser python3-retrying"
	backports=$(sed -n 's/ trixie / trixie-backports /p' /etc/apt/sources.list)
fi

mmdebstrap --mode=root --variant=extract --format=directory --arch="$architecture" --skip=check/qemu \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-include=/usr/share/doc/rdma-core/tests/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--aptopt="$settings" \
	--include="$(echo "$packages" | tr -s ' \n\t' ,)" \
	--skip=cleanup/apt \
	"$suite" "$root" ${backports:+/etc/apt/sources.list "$backports"}

# The list of the packages, which dpkg would write. The host's settings for apt do not stay.
for package in "$root"/var/cache/apt/archives/*.deb; do
	dpkg-deb --field "$package" | sed '1a Status: install ok installed'
	echo
done >"$root/var/lib/dpkg/status"
rm -r "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/etc/apt/sources.list.d/* "$root"/etc/apt/apt.conf.d/99mmdebstrap

# Adds users and groups, what sshd needs, alternatives, and folders of no package. mmdebstrap runs no hook if it only unpacks.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
echo 'sshd:x:100:65534::/run/sshd:/usr/sbin/nologin' >>"$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
ln -s gawk "$root/usr/bin/awk"
for program in "$root"/usr/bin/*.openmpi; do
	[ ! -e "$program" ] || ln -s "${program##*/}" "${program%.openmpi}"
done
mkdir -p "$root/efa-rs" "$root/cache" "$root/mnt" "$root/usr/lib/modules" "$root/usr/local/bin"
[ -e "$root/var/run" ] || ln -s /run "$root/var/run"
rm -f "$root/etc/resolv.conf"
touch "$root/etc/resolv.conf" "$root/etc/ssh/sshd_config"
