#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of a machine: a Debian 13 with systemd, a kernel of backports of the floor in tools/series, its headers, and no
# other dependency of the driver. The packages that the tests install are downloaded already, as its guests have no network.
#
# usage: machine.sh DIR "PACKAGE..." ARCHITECTURE     makes DIR; PACKAGEs are downloaded besides kernels
set -eu
root=$1
wanted=$2
architecture=$3
tools=/efa-rs/tools
floor=$(sed -n 's/^\([0-9][^ ]*\) .*/\1/p' "$tools/series" | head -n 1)
export tools floor architecture

# The kernel of the floor, with its source: packages as arguments of apt-get.
choose='chroot "$1" sh -s "$floor" "image headers" "cloud-$architecture" <"$tools/choose-kernel" >"$1/kernel-packages"'

# The other kernels: old is the newest below the floor for which Debian has headers, from backports as long as they have one,
# else Debian 13's own. backports is the kernel that users get from backports.
machine='
set -eu
export DEBIAN_FRONTEND=noninteractive
install() {
	apt-get install --yes -o APT::Install-Recommends=true "$@"
}
has() { # has PACKAGE
	[ -n "$(apt-cache madison "$1")" ]
}
of_floor=$(sed -n "s/.* linux-image-\([^=]*\)=.*/\1/p" /kernel-packages)
for release in $(apt-cache pkgnames linux-headers- | sed -n "s/^linux-headers-\([0-9].*-cloud-ARCHITECTURE\)$/\1/p" | sort -r -V); do
	[ "$(printf "%s\n" "$release" FLOOR | sort -V | head -n 1)" = "$release" ] || continue
	if has "linux-headers-$release" && has "linux-image-$release"; then
		old=$release
		break
	fi
done
backports=$(apt-cache show linux-image-cloud-ARCHITECTURE | sed -n "s/^Depends:.* linux-image-\([0-9][^ ]*\) .*/\1/p" | sort -V | tail -n 1)
printf "%s\n" "floor $of_floor" "old $old" "backports $backports" | tee /kernels
source=linux-source-$(echo "$backports" | cut -d . -f 1-2)
version=$(apt-cache madison "linux-headers-$backports" | cut -d "|" -f 2 | tr -d " " | head -n 1)
install initramfs-tools "linux-image-$of_floor/trixie-backports" "linux-headers-$of_floor/trixie-backports"
install --download-only WANTED ovmf openssl python3-virt-firmware rpm sbsigntool $(grep -o "linux-source-[^ ]*" /kernel-packages)
# Until Debian has signed the newest kernel, its source has another version than the kernel of backports. Users then get a
# message, and the tests fail.
install --download-only "$source=$version" || :
install --download-only "linux-image-$old" "linux-headers-$old"
install --download-only linux-image-cloud-ARCHITECTURE/trixie-backports linux-headers-cloud-ARCHITECTURE/trixie-backports
install --download-only linux-image-cloud-ARCHITECTURE linux-headers-cloud-ARCHITECTURE
systemctl enable efa-test.service
systemctl disable ssh.service
systemctl set-default multi-user.target
systemctl mask serial-getty@hvc0.service serial-getty@ttyS0.service serial-getty@ttyAMA0.service systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer
systemctl disable fstrim.timer dpkg-db-backup.timer
echo machine >/etc/hostname
: >/etc/machine-id
mkdir -p /efa-rs
rm -f /etc/resolv.conf
touch /etc/resolv.conf
'

# This root has the host's settings for access to the mirror.
settings=$(mktemp)
grep -h '^Acquire.*;$' /etc/apt/apt.conf.d/* >"$settings" || :

exec mmdebstrap --mode=root --variant=apt --format=directory --arch="$architecture" --skip=cleanup/apt,check/qemu \
	--aptopt="$settings" \
	--dpkgopt=force-unsafe-io \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--setup-hook='sed -n "s/ trixie / trixie-backports /p" "$1/etc/apt/sources.list" >"$1/etc/apt/sources.list.d/backports.list"' \
	--include=ca-certificates,systemd-sysv,udev,dbus,kmod,iproute2,openssh-server,procps,python3,pciutils \
	--customize-hook='upload /efa-rs/tests/packages/efa-test.service /etc/systemd/system/efa-test.service' \
	--customize-hook="$choose" \
	--customize-hook="chroot \"\$1\" sh -c '$(printf "%s" "$machine" | sed "s/WANTED/$wanted/; s/FLOOR/$floor/; s/ARCHITECTURE/$architecture/g")'" \
	trixie "$root"
