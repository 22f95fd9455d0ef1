#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of the root that tools/enter enters: Debian 13 with the toolchain Debian built its kernels with, those kernels, and the
# programs of guests and tests. Its key is the hash of this file, series and choose-kernel, so an edit of one makes a new root.
#
# Runs as root of its own mount namespace (and, for an ordinary user, of its own user namespace).
#
# usage: root.sh DIR [APT-OPTION...]      makes DIR/root; an APT-OPTION is a line of apt.conf
set -eu
work=$1; shift

# Packages and hooks can write only to DIR: the rest of the host is read-only in this namespace.
mkdir -p "$work/tmp"
mount --rbind "$work" "$work"
for mount in / /boot /etc /home /root /usr /var; do
	! mountpoint -q "$mount" ||
		mount -o "remount,bind,$(findmnt --noheadings --output VFS-OPTIONS --mountpoint "$mount" | tail -n 1 | sed 's/^rw/ro/')" "$mount"
done
cd "$work"
export TMPDIR="$work/tmp"

for option; do
	set -- "$@" --aptopt="$option"; shift
done

# rustc .. bindgen: build the kernel's Rust support and modules; clang-19 .. e2fsprogs: make the debug kernel and its disk;
# udev .. python3-mpi4py: programs of guests, of which busybox-static has a poweroff; openssh-server .. codespell: tests;
# debhelper .. syslinux: make packages, and the machines that they are installed on; python3-matplotlib: pictures of benches.
packages='ca-certificates make gcc gcc-14 libc6-dev flex bison bc kmod cpio rsync git python3-minimal python3 perl
	xz-utils zstd pahole libelf-dev libssl-dev libdw-dev
	rustc rust-src rustfmt rust-clippy cargo bindgen clang-19 lld-19 llvm-19 e2fsprogs
	udev iproute2 pciutils procps busybox-static rdma-core ibverbs-utils libibverbs-dev python3-pyverbs
	perftest libfabric-bin openmpi-bin netpipe-openmpi python3-mpi4py
	openssh-server openssh-client python3-pytest python3-pytest-xdist python3-pip mypy shellcheck codespell tshark
	debhelper dh-dkms fakeroot lintian rpm rpmlint mmdebstrap dosfstools fdisk mtools qemu-utils syslinux syslinux-common
	python3-matplotlib'

# The newest kernel of each series, from backports. linux-binary and linux-modules have the content of linux-image, without
# the generator of an initrd, which no guest here uses. The kernel without a signature for Secure Boot is of the same upload
# as source, modules and headers. The signed one comes some days later.
tools=$(dirname "$(readlink -f "$0")")
export tools
kernels='
set -eu
packages=
while read -r series flavours; do
	case $series in
	[0-9]*) packages="$packages $(chroot "$1" sh -s "$series" "binary-unsigned modules headers" $flavours <"$tools/choose-kernel")" ;;
	esac
done <"$tools/series"
chroot "$1" apt-get install --yes -t trixie-backports qemu-system-x86 virtiofsd $packages
'

# Documentation and translations are left out, but not rdma-core's tests, which it ships as documentation. Parts of Open MPI's
# dependencies for GPUs are left out, too, as they are most of the size, and plugins that would not load without them.
exec mmdebstrap --mode=root --variant=apt --format=directory \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt=force-unsafe-io \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-include=/usr/share/doc/rdma-core/tests/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--dpkgopt='path-exclude=/usr/lib/*/libLLVM-17.so*' \
	--dpkgopt='path-exclude=/usr/lib/*/libamd_comgr.so*' \
	--dpkgopt='path-exclude=/usr/lib/*/libamdhip64.so*' \
	--dpkgopt='path-exclude=/usr/lib/*/ucx/*_rocm.so*' \
	--dpkgopt='path-exclude=/usr/lib/*/hwloc/hwloc_gl.so' \
	--dpkgopt='path-exclude=/usr/lib/*/hwloc/hwloc_levelzero.so' \
	--dpkgopt='path-exclude=/usr/lib/*/hwloc/hwloc_opencl.so' \
	"$@" \
	--setup-hook='sed -n "s/ trixie / trixie-backports /p" "$1/etc/apt/sources.list" >"$1/etc/apt/sources.list.d/backports.list"' \
	--include="$(echo $packages | tr ' ' ',')" \
	--customize-hook="$kernels" \
	--customize-hook='mkdir -p "$1/efa-rs" "$1/cache" && rm -f "$1/etc/resolv.conf" && touch "$1/etc/resolv.conf" "$1/etc/efa-root"' \
	trixie "$work/root"
