#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Makes the source tarball and the packages that are built of it, which the same files give byte for byte. Runs in the root that
# tools/enter enters, for tools/builds.mk.
#
# usage: package.sh dist|deb|deb-elsewhere|emulator-deb|rpm|rpm-newer      fills the folder $OUT
set -eu
version=$(bash -c '. ./dkms.conf; echo $PACKAGE_VERSION')
name=efa-rs-$version
# Several packages may be built at a time.
work=/tmp/package/$1
# A version that dpkg, rpm and DKMS take for newer.
newer=${version%.*}.99

# The clone's files, with those that are not committed. The time is that of the last commit: the same for each packager.
dist() {
	git="git -c safe.directory=/efa-rs"
	default=$(cat dkms/bugs)
	bugs=${EFA_BUGS:-$default}
	echo "$bugs" | grep -qxE "[a-z]+:[^[:space:]\"'<>]+" || {
		echo "BUGS=$bugs is not an address to report bugs to: give one such as https://host/path or mailto:name@host." >&2
		exit 1
	}
	mkdir -p "$work/$name"
	$git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -x -C "$work/$name" --no-same-owner
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
	tar -c --sort=name --format=pax --pax-option=delete=atime,delete=ctime --mode=u=rwX,go=rX --owner=root:0 --group=root:0 \
		--mtime="@$($git -C /efa-rs log -1 --format=%ct)" "$name" | xz -6 -T 1 >"$OUT/$name.tar.xz"
}

unpacked() {
	mkdir -p "$work/source"
	tar -x -f "/run/built/dist/$name.tar.xz" -C "$work/source" --strip-components=1 --no-same-owner
	cd "$work/source"
	SOURCE_DATE_EPOCH=$(date +%s --reference=Kbuild)
	export SOURCE_DATE_EPOCH
}

# Neither the packages nor the address for bugs are Debian's.
checked() {
	lintian --fail-on error,warning --display-info --tag-display-limit 0 --allow-root \
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
	CARGO_TARGET_DIR=$EFA_KEEP/package
	export CARGO_TARGET_DIR
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

# The driver's package again on a machine that differs in all that could leak into it: the architecture of dpkg's tools and uname, host,
# user, folders, time zone, umask, the order of files in a folder, and the number of threads.
deb_elsewhere() {
	unpacked
	mkdir -p "$work/bin" "$work/elsewhere/source"
	# shellcheck disable=SC2016
	printf '#!/bin/sh\n[ "$*" != --print-architecture ] || exec echo arm64\nexec /usr/bin/dpkg "$@"\n' >"$work/bin/dpkg"
	printf '#!/bin/sh\necho aarch64\n' >"$work/bin/uname"
	chmod 755 "$work"/bin/*
	find . | sort --reverse | cpio --pass-through --make-directories --preserve-modification-time --quiet ../elsewhere/source
	chmod -R u=rwX,go= "$work/elsewhere"
	chown -R 1234:1234 "$work/elsewhere"
	cd "$work/elsewhere/source"
	export PATH="$work/bin:$PATH" HOME="$work/elsewhere" TZ=XYZ-13 LC_ALL=C DEB_BUILD_OPTIONS=parallel=1 DPKG_DEB_THREADS_MAX=1
	unshare --uts sh -ec 'hostname elsewhere; umask 077
		exec setpriv --reuid 1234 --regid 1234 --clear-groups dpkg-buildpackage --build=all --no-sign --no-check-builddeps'
	cp ../*.deb "$OUT"
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

rm -rf "$work"
case $1 in
dist | deb) "$1" ;;
deb-elsewhere) deb_elsewhere ;;
emulator-deb) emulator_deb ;;
rpm) rpm "$version" ;;
rpm-newer) rpm "$newer" ;;
esac
