#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of a clean Debian 13 on which the emulator's package is installed: the required packages, and apt with backports in its
# sources. The packages to install on it are downloaded already. ca-certificates is installed here, as the host's certificates are
# mounted later where its installation would write.
#
# usage: host.sh DIR      makes DIR
set -eu
root=$1
packages='openssh-client python3 qemu-system-x86 qemu-utils'

settings=$(mktemp)
grep -h '^Acquire.*;$' /etc/apt/apt.conf.d/* >"$settings" || :

exec mmdebstrap --mode=root --variant=minbase --format=directory --skip=cleanup/apt \
	--aptopt="$settings" \
	--dpkgopt=force-unsafe-io \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--setup-hook='sed -n "s/ trixie / trixie-backports /p" "$1/etc/apt/sources.list" >"$1/etc/apt/sources.list.d/backports.list"' \
	--include=ca-certificates \
	--customize-hook="chroot \"\$1\" apt-get install --yes --download-only --target-release trixie-backports -o APT::Install-Recommends=true $packages" \
	--customize-hook='rm -f "$1/etc/resolv.conf"; touch "$1/etc/resolv.conf"; mkdir -p "$1/efa-rs"' \
	trixie "$root"
