#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Makes the source tarballs, packages and programs of a release, which the same files give byte for byte. Runs in the root that
# tools/enter enters, for tools/builds.mk.
#
# usage: package.sh [--elsewhere] KIND      fills the folder $OUT with one of the kinds at the end of this file
set -eu
version=$(bash -c '. ./dkms.conf; echo $PACKAGE_VERSION')
emulator=$(sed -n 's/^version = "\(.*\)"/\1/p' emulator/Cargo.toml)
name=efa-rs-$version
# A version that dpkg, rpm and DKMS take for newer.
newer=${version%.*}.99
crates=/run/built/crates/vendor
git="git -c safe.directory=/efa-rs"

# A machine that differs in all that could leak into a result: user, host, folders, time zone, umask, the order of files in a folder, the
# number of threads; and of what has no architecture, that of dpkg's tools and of uname.
if [ "$1" = --elsewhere ]; then
	export ELSEWHERE=yes HOME="/tmp/elsewhere/$2" TZ=XYZ-13 LC_ALL=C DEB_BUILD_OPTIONS=parallel=1 DPKG_DEB_THREADS_MAX=1
	rm -rf "$HOME"
	mkdir -p "$HOME/bin" "$HOME/target"
	case $2 in
	dist | deb | rpm)
		# shellcheck disable=SC2016
		printf '#!/bin/sh\n[ "$*" != --print-architecture ] || exec echo arm64\nexec /usr/bin/dpkg "$@"\n' >"$HOME/bin/dpkg"
		printf '#!/bin/sh\necho aarch64\n' >"$HOME/bin/uname"
		chmod 755 "$HOME"/bin/*
		;;
	esac
	chown -R 1234:1234 "$HOME" "$OUT"
	export PATH="$HOME/bin:$PATH" CARGO_HOME="$HOME/cargo" CARGO_TARGET_DIR="$HOME/target"
	# shellcheck disable=SC2016
	exec unshare --uts sh -ec 'hostname elsewhere; umask 077; exec setpriv --reuid 1234 --regid 1234 --clear-groups "$@"' sh "$0" "$2"
fi
# Several packages may be built at a time.
work=/tmp/package/$1
[ -z "${ELSEWHERE:-}" ] || work=$HOME/package

# Copies the clone's files to a folder, with those that are not committed.
copied() { # copied FOLDER [PATH...]
	folder=$1
	shift
	mkdir -p "$folder"
	$git ls-files -z --cached --others --exclude-standard -- "$@" | tar -c --null --ignore-failed-read -T - | tar -x -C "$folder" --no-same-owner
}

# Packs a folder. The time is that of the last commit: the same for each packager.
packed() { # packed FOLDER
	tar -c --sort=name --format=pax --pax-option=delete=atime,delete=ctime --mode=u=rwX,go=rX --owner=root:0 --group=root:0 \
		--mtime="@$($git -C /efa-rs log -1 --format=%ct)" -C "$work" "$1" | xz -6 -T 1 >"$OUT/$1.tar.xz"
}

dist() {
	default=$(cat dkms/bugs)
	bugs=${EFA_BUGS:-$default}
	echo "$bugs" | grep -qxE "[a-z]+:[^[:space:]\"'<>]+" || {
		echo "BUGS=$bugs is not an address to report bugs to: give one such as https://host/path or mailto:name@host." >&2
		exit 1
	}
	copied "$work/$name"
	cd "$work"
	escaped() {
		printf %s "$1" | sed 's/[\\&|]/\\&/g'
	}
	maintainer=$(escaped "$($git -C /efa-rs log -1 --format='%an <%ae>')")
	address=$(escaped "$bugs")
	sed -i "s|@MAINTAINER@|$maintainer|" "$name/debian/changelog" "$name/debian/control" "$name/rpm/efa-rs-dkms.spec"
	sed -i "s|@BUGS@|$address|" "$name/debian/control"
	sed -i "s|@BUGS@|$(printf %s "$address" | sed 's/%/%%/g')|" "$name/rpm/efa-rs-dkms.spec"
	sed -i "s|$(printf %s "$default" | sed 's/[.]/\\./g')|$address|g" "$name/dkms/bugs" "$name/Documentation/install.md"
	packed "$name"
}

# The emulator with its crates, of which cargo builds it without network.
emulator_dist() {
	copied "$work/efa-emu-$emulator" emulator efa_rs/hw LICENSE LICENSES
	cd "$work/efa-emu-$emulator/emulator"
	cp -r $crates .
	vendored vendor
	packed "efa-emu-$emulator"
}

# Lets cargo take crates from a folder, in this folder and below it.
vendored() { # vendored FOLDER
	mkdir .cargo
	printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "%s"\n' "$1" >.cargo/config.toml
}

unpacked() {
	mkdir -p "$work/source"
	tar -x -f "/run/built/dist/$name.tar.xz" -C "$work/source" --strip-components=1 --no-same-owner
	cd "$work/source"
	if [ -n "${ELSEWHERE:-}" ]; then
		find . | sort --reverse | cpio --pass-through --make-directories --preserve-modification-time --quiet ../elsewhere/source
		cd ../elsewhere/source
	fi
	SOURCE_DATE_EPOCH=$(date +%s --reference=Kbuild)
	export SOURCE_DATE_EPOCH
}

# Neither the packages nor the address for bugs are Debian's.
checked() {
	[ -n "${ELSEWHERE:-}" ] || lintian --fail-on error,warning --display-info --tag-display-limit 0 --allow-root \
		--suppress-tags bugs-field-does-not-refer-to-debian-infrastructure ../*.changes
	cp ../*.deb "$OUT"
}

deb() {
	unpacked
	dpkg-buildpackage --build=all --no-sign --no-check-builddeps
	checked
}

# Cargo compares only times, and all files of the tarball have the time of the last commit.
emulator_deb() {
	unpacked
	vendored $crates
	export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$EFA_KEEP/package}" RUSTFLAGS="--remap-path-prefix=$crates=vendor"
	mkdir -p "$CARGO_TARGET_DIR"
	sources=$(find emulator efa_rs/hw -name '*.rs' -o -name 'Cargo.*' | sort)
	# shellcheck disable=SC2086
	sum=$(sha256sum $sources | sha256sum)
	# shellcheck disable=SC2086
	[ "$sum" = "$(cat "$CARGO_TARGET_DIR/sources" 2>/dev/null)" ] || touch $sources
	dpkg-buildpackage --build=any --no-sign --no-check-builddeps
	checked
	echo "$sum" >"$CARGO_TARGET_DIR/sources"
}

# The program for any Linux of an architecture, linked with nothing.
emulator_release() { # emulator_release ARCHITECTURE LINKER [FLAGS]
	copied "$work" emulator efa_rs/hw
	cd "$work"
	vendored $crates
	triple=$1-unknown-linux-gnu
	setting=CARGO_TARGET_$(echo "$triple" | tr a-z- A-Z_)
	export "${setting}_LINKER=$2" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$EFA_KEEP/emulator}"
	export "${setting}_RUSTFLAGS=-Ctarget-feature=+crt-static --remap-path-prefix=$work=. --remap-path-prefix=$crates=vendor ${3:-}"
	cargo build --release --locked --target "$triple" --manifest-path emulator/Cargo.toml --bin efa-emu
	cp "$CARGO_TARGET_DIR/$triple/release/efa-emu" "$OUT"
}

rpm() { # rpm VERSION
	unpacked
	cd "$work"
	tarball=/run/built/dist/$name.tar.xz
	if [ "$1" != "$version" ]; then
		sed -i "s/^#define EFA_VERSION_SUBMINOR .*/#define EFA_VERSION_SUBMINOR ${1##*.}/" source/efa_rs/ffi/version.h
		sed -i "/^Version:/s/$version/$1/; s/ - $version-1$/ - $1-1/" source/rpm/efa-rs-dkms.spec
		tarball=$work/efa-rs-$1.tar.xz
		tar -c -J -f "$tarball" --transform="s,^source,efa-rs-$1," source
	fi
	rpmbuild -bb --define "_topdir $work" --define "_sourcedir ${tarball%/*}" --define "_rpmdir $OUT" --define "_dbpath $work/db" \
		--define "_build_name_fmt %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm" \
		--define "_tmppath /tmp" --define "_unitdir /usr/lib/systemd/system" \
		--define "use_source_date_epoch_as_buildtime 1" --define "build_mtime_policy clamp_to_source_date_epoch" \
		--define "_buildhost localhost" source/rpm/efa-rs-dkms.spec
	rpmlint --strict --config source/.rpmlint.toml "$OUT"/*.rpm source/rpm/efa-rs-dkms.spec
}

# All files of a release, with their checksums and the list of what the emulator is made of. The crate is as it would be published.
release() {
	(
		unpacked
		cargo publish --dry-run --registry crates-io --locked --target-dir "$EFA_KEEP/package" --manifest-path emulator/vfio-user/Cargo.toml
	)
	for kind in dist emulator-dist deb emulator-deb rpm image image-arm64; do
		ln /run/built/$kind/* "$OUT"
	done
	for architecture in x86_64 aarch64; do
		ln /run/built/emulator-release-$architecture/efa-emu "$OUT/efa-emu-$emulator-linux-$architecture"
	done
	emulator/licences.py >"$OUT/efa-emu-$emulator-third-party.txt"
	emulator/licences.py --bill "$emulator" >"$OUT/efa-emu-$emulator.cdx.json"
	cd "$OUT"
	sha256sum -- * >SHA256SUMS
}

rm -rf "$work"
mkdir -p "$work"
case $1 in
dist | deb | release) "$1" ;;
emulator-dist) emulator_dist ;;
emulator-deb) emulator_deb ;;
emulator-release-x86_64) emulator_release x86_64 clang-19 -Clink-arg=--ld-path=/usr/bin/ld.lld-19 ;;
emulator-release-aarch64) emulator_release aarch64 aarch64-linux-gnu-gcc-14 ;;
rpm) rpm "$version" ;;
rpm-newer) rpm "$newer" ;;
esac
