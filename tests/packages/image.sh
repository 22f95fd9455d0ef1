#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of a small cloud image for tests of the emulator's package: a Debian 13 on a bootable disk. It has cloud-init, an ssh
# server, rdma-core, perftest, the root's kernel and Linux's own EFA driver. Debian's own image is not available everywhere,
# and its kernel has no EFA driver.
#
# Runs as root of its own namespaces, without any loop device.
#
# usage: image.sh DIR RELEASE MODULE      makes DIR/image.qcow2; RELEASE is the root's kernel, MODULE an efa.ko for it
set -eu
work=$1
release=$2
module=$3
export release module

# Installs the kernel, and sets up the boot from a disk; see machine.sh for the rest.
kernel='
set -eu
cp "/usr/lib/modules/$release/vmlinuz.unsigned" "$1/boot/vmlinuz"
mkdir -p "$1/usr/lib/modules"
cp -a "/usr/lib/modules/$release" "$1/usr/lib/modules/"
rm -rf "$1/usr/lib/modules/$release/vmlinuz.unsigned" "$1/usr/lib/modules/$release/build" "$1/usr/lib/modules/$release/source"
mkdir -p "$1/usr/lib/modules/$release/updates"
cp "$module" "$1/usr/lib/modules/$release/updates/efa.ko"
chroot "$1" depmod "$release"
echo MODULES=most >"$1/etc/initramfs-tools/conf.d/image"
chroot "$1" update-initramfs -c -k "$release"
mv "$1/boot/initrd.img-$release" "$1/boot/initrd.img"
echo "LABEL=root / ext4 errors=remount-ro 0 1" >"$1/etc/fstab"
: >"$1/etc/machine-id"
rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/resolv.conf"
ln -s ../run/systemd/resolve/stub-resolv.conf "$1/etc/resolv.conf"
chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer man-db.timer systemd-networkd-wait-online.service
chroot "$1" systemctl enable systemd-networkd.service
'

settings=$(mktemp)
grep -h '^Acquire.*;$' /etc/apt/apt.conf.d/* >"$settings" || :

mmdebstrap --mode=root --variant=apt --format=directory \
	--aptopt="$settings" \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt=force-unsafe-io \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--include=ca-certificates,cloud-guest-utils,cloud-init,dbus,e2fsprogs,fdisk,initramfs-tools,iproute2,kmod,netplan.io,openssh-server,perftest,rdma-core \
	--include=ibverbs-utils,sudo,systemd-resolved,systemd-sysv,udev,zstd \
	--customize-hook="$kernel" \
	trixie "$work/root"

# The boot loader and the files that it loads have a partition of their own, which syslinux can write without mounting it.
mkdir "$work/boot"
mv "$work/root/boot/vmlinuz" "$work/root/boot/initrd.img" "$work/boot/"
cat >"$work/boot/syslinux.cfg" <<EOF
default linux
prompt 0
label linux
	kernel vmlinuz
	append initrd=initrd.img root=LABEL=root ro console=ttyS0 no_timer_check
EOF
truncate -s 120M "$work/boot.img"
mkfs.vfat -n BOOT "$work/boot.img"
mcopy -i "$work/boot.img" "$work"/boot/* ::
syslinux --install "$work/boot.img"

truncate -s 3G "$work/root.img"
mkfs.ext4 -q -F -L root -d "$work/root" "$work/root.img"

# Each partition begins at a whole megabyte.
truncate -s 3200M "$work/disk.img"
printf '2048,120M,c,*\n,3G,L\n' | sfdisk --quiet "$work/disk.img"
dd if=/usr/lib/syslinux/mbr/mbr.bin of="$work/disk.img" bs=440 count=1 conv=notrunc status=none
dd if="$work/boot.img" of="$work/disk.img" bs=1M seek=1 conv=notrunc,sparse status=none
dd if="$work/root.img" of="$work/disk.img" bs=1M seek=121 conv=notrunc,sparse status=none
qemu-img convert -f raw -O qcow2 "$work/disk.img" "$work/image.qcow2"
rm -r "${work:?}/root" "${work:?}/boot" "$work"/*.img
