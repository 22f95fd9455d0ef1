#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of a machine: a Debian 13 with systemd, a 7.2 kernel of backports and its headers, and nothing else that the
# driver needs. The packages that the tests install on it are downloaded already: its guests have no network.
#
# usage: root.sh DIR "PACKAGE..."      makes DIR; PACKAGEs are what apt is to have at hand besides kernels
set -eu
root=$1
wanted=$2

# Of a series, the newest kernel is the one that its source package fits.
machine='
set -eu
export DEBIAN_FRONTEND=noninteractive
newest() { # newest SERIES: the release of its newest kernel
	apt-cache pkgnames "linux-binary-$1." | sed -n "s/^linux-binary-\(.*[+]deb13-cloud-amd64\)$/\1/p" | sort -V | tail -n 1
}
old=$(newest 7.2)
new=$(newest 7.3)
if [ -z "$old" ] || [ -z "$new" ]; then
	echo "No 7.2 or no 7.3 kernel was found in trixie-backports: is the mirror complete?" >&2
	exit 1
fi
apt-get install --yes -o APT::Install-Recommends=true initramfs-tools "linux-image-$old/trixie-backports" "linux-headers-$old/trixie-backports"
printf "%s\n" "$old" "$new" >/kernels
download() {
	apt-get install --yes -o APT::Install-Recommends=true --download-only "$@"
}
download WANTED linux-source-7.2
download WANTED linux-source-7.3
download linux-image-cloud-amd64/trixie-backports linux-headers-cloud-amd64/trixie-backports
download linux-image-cloud-amd64 linux-headers-cloud-amd64
systemctl enable efa-test.service
systemctl set-default multi-user.target
systemctl mask serial-getty@hvc0.service serial-getty@ttyS0.service systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer
systemctl disable fstrim.timer dpkg-db-backup.timer
echo machine >/etc/hostname
: >/etc/machine-id
mkdir -p /efa-rs
rm -f /etc/resolv.conf
touch /etc/resolv.conf
'

# How to reach the mirror, the toolroot knows from the host.
settings=$(mktemp)
grep -h '^Acquire' /etc/apt/apt.conf.d/* >"$settings" || :

exec mmdebstrap --mode=root --variant=apt --format=directory --skip=cleanup/apt \
	--aptopt="$settings" \
	--dpkgopt=force-unsafe-io \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--setup-hook='sed -n "s/ trixie / trixie-backports /p" "$1/etc/apt/sources.list" >"$1/etc/apt/sources.list.d/backports.list"' \
	--include=ca-certificates,systemd-sysv,udev,dbus,kmod,iproute2,procps,python3,pciutils \
	--customize-hook='upload /efa-rs/tools/machine/efa-test.service /etc/systemd/system/efa-test.service' \
	--customize-hook="chroot \"\$1\" sh -c '$(printf "%s" "$machine" | sed "s/WANTED/$wanted/")'" \
	trixie "$root"
