#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The recipe of the debug kernel: Linux from Debian's source package, built by clang with the configuration beside this file.
# Runs in the toolroot. The cache key is a hash of this file, of the configuration and of the packages that it is built with.
#
# usage: build.sh DIR RELEASE JOBS
#
# Makes DIR/RELEASE, a build directory for modules, with the kernel as vmlinuz. make works only at this path.
set -eu
folder=$1 release=$2 jobs=$3
config=$(dirname "$(readlink -f "$0")")/config
source=linux-source-$(echo "$release" | cut -d . -f 1-2)

mkdir "$folder/$release"
cd "$folder/$release"
tar -x -f "/usr/src/$source.tar.xz" --strip-components=1 --wildcards \
	--exclude='linux-*/Documentation/*.*' --exclude='linux-*/arch/[a-wyz]*/*.[chS]' --exclude='linux-*/arch/*/boot/dts/*' \
	--exclude='linux-*/drivers/gpu/drm/*/*.[ch]' --exclude='linux-*/sound/*.[ch]' --exclude='linux-*/tools/testing/*' \
	--exclude='linux-*/tools/perf/*'

build() {
	make LLVM=-19 LOCALVERSION="-${release#*-}" "$@"
}

build -s KCONFIG_ALLCONFIG="$config" allnoconfig
missing=$(grep '^CONFIG_' "$config" | grep -vxFf .config || :)
if [ -n "$missing" ]; then
	echo "This kernel cannot have" $missing "(nothing else selects it, or what it depends on is missing): correct $config."
	exit 1
fi
built=$(build -s kernelrelease)
if [ "$built" != "$release" ]; then
	echo "The source is of kernel $built, and the toolroot's kernels say $release: is $source of another version?"
	exit 1
fi
build -j"$jobs" bzImage modules
build -s INSTALL_MOD_PATH=. modules_install
cp arch/x86/boot/bzImage vmlinuz

# Removes all files that builds of modules do not need.
rm -rf vmlinux* .tmp_vmlinux* arch/x86/boot
find . -path ./scripts -prune -o -path ./tools/objtool -prune -o -path ./lib/modules -prune -o \
	-type f ! -name efa.ko \( -name '*.[coSa]' -o -name '*.ko' -o -name '*.cmd' -o -name '*.mod*' -o -name '*.rs' \) -exec rm {} +
