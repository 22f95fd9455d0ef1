#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of the next userland: a root for guests with the rdma-core of a Debian that is newer than the toolroot's. Nothing is
# built in it, and guests get kernel, modules and driver from elsewhere. Its cache key is the hash of this file, so that an edit
# of it installs Debian's present packages.
#
# usage: userland.sh DIR      makes DIR
set -eu
root=$1
suite=forky

# This root has the host's settings for access to the mirror.
settings=$(mktemp)
grep -h '^Acquire' /etc/apt/apt.conf.d/* >"$settings" || :

# Packages for a guest's first process and the tests, tools that show a device, and programs that transfer data. rdma-core's
# tests are in python3-pyverbs, as documentation.
packages='ca-certificates mount kmod udev iproute2 pciutils procps busybox-static python3
	openssh-server rdma-core ibverbs-utils python3-pyverbs perftest libfabric-bin'

exec mmdebstrap --mode=root --variant=apt --format=directory \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt=force-unsafe-io \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-include=/usr/share/doc/rdma-core/tests/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--aptopt="$settings" \
	--include="$(echo $packages | tr ' ' ',')" \
	--customize-hook='mkdir -p "$1/efa-rs" "$1/cache" "$1/usr/lib/modules" && rm -f "$1/etc/resolv.conf" && touch "$1/etc/resolv.conf"' \
	"$suite" "$root"
