#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of the layer over the root with Debian's newest kernel, and the Rust kit for it: OUT/kit, or OUT/reason says why there is none.
#
# usage: canary.sh RELEASE OUT      RELEASE is that of the root's kernel
set -eu
ours=$(dpkg-query -W -f '${Version}' "linux-headers-$1") out=$2 headers=linux-headers-cloud-amd64
export DEBIAN_FRONTEND=noninteractive

for suite in experimental sid; do
	sed -n "s/ trixie / $suite /p" /etc/apt/sources.list
done >/etc/apt/sources.list.d/canary.list
apt-get update
newest=$(apt-cache madison $headers | cut -d '|' -f 2 | tr -d ' ' | sort -V | tail -n 1)
if ! dpkg --compare-versions "$newest" gt "${ours%~bpo*}"; then
	echo "Debian's newest kernel is $newest, and the root has $ours" >"$out/reason"
	exit
fi

# A kit needs exactly the rustc that built the kernel. C compiler and binutils are Debian's present ones, whose versions are set in the
# configuration. This suffices, as the module is not loaded.
printf 'Package: linux-*\nPin: version %s\nPin-Priority: 1001\n' "$newest" >/etc/apt/preferences.d/canary
install='apt-get install --yes --no-install-recommends --allow-downgrades -o Dpkg::Options::=--force-unsafe-io -t sid'
$install $headers linux-source
release=$(dpkg-query -W -f '${Depends}' $headers | sed 's/.*linux-headers-\([^ ,]*\).*/\1/')
config=/usr/src/linux-headers-$release/.config
value() {
	sed -n "s/^$1=\"\(.*\)\"/\1/p" "$config"
}
wanted=$(value CONFIG_RUSTC_VERSION_TEXT | cut -d ' ' -f 2)
rustc=$(apt-cache madison rustc | cut -d '|' -f 2 | tr -d ' ' | grep -m 1 "^${wanted}[+-]") || {
	echo "Debian has no rustc $wanted any more, which built $newest." >&2
	exit 1
}
$install "rustc=$rustc" "rust-src=$rustc" bindgen binutils pahole
compiler=$($(value CONFIG_CC_VERSION_TEXT | cut -d ' ' -f 1) --version | head -n 1)
binutils=$(as --version | sed -n '1 s/.* //p' | awk -F . '{ print $1 * 10000 + $2 * 100 + $3 }')
# Texts have quotes in one of the files.
sed -i "s/^\(CONFIG_CC_VERSION_TEXT=\"\{0,1\}\)[^\"]*/\1$compiler/; s/^\(CONFIG_[AL][SD]_VERSION\)=.*/\1=$binutils/" \
	"$config" "${config%.config}include/config/auto.conf"
/efa-rs/dkms/rust-kit --kernel "$release" --output "$out/kit"
