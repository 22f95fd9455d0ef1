#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of the layer over the root with arm64 kernels, their compilers, and what emulates arm64. Its key is the hash of this file.
# Programs for arm64 run in guests, or by qemu-user. That, and Rust's library, with which tests are built, are only unpacked: the
# library's dependencies are for a compiler that runs on arm64.
#
# usage: layer.sh SERIES FLAVOUR...
set -eu
series=$1
shift
export DEBIAN_FRONTEND=noninteractive

dpkg --add-architecture arm64
apt-get update
kernels=$(sh -s "$series" "binary modules headers" "$@" <tools/choose-kernel)
# The headers' package depends on the compiler. rust-kit says why libc6-dev is needed.
apt-get install --yes --no-install-recommends -t trixie-backports qemu-system-arm libc6-dev-arm64-cross $kernels
mkdir /tmp/packages
cd /tmp/packages
apt-get download "libstd-rust-dev:arm64=$(dpkg-query --show --showformat='${Version}' libstd-rust-dev)" qemu-user
for package in *.deb; do
	dpkg-deb --extract "$package" /
done
rm -r /tmp/packages
# A kernel for arm64 has a further option if Python has this. Debian's are configured without it.
rm -rf /usr/lib/python3/dist-packages/lxml
apt-get clean
rm -rf /var/lib/apt/lists/*
