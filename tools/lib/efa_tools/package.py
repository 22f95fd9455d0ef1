# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The source tarball and the packages that are built of it: the same files give the same bytes."""

import datetime
import io
import lzma
import os
import re
import tarfile
import textwrap
from pathlib import Path

from . import build, cache, laws, layer, steps, toolroot
from .failure import Failure, match_in

NAME = "efa-rs"
EMULATOR = "efa-emu"
BUILD = "/run/efa-rs/build"
VERSION = "efa_rs/ffi/version.h"
# File with the address for bug reports, which EFA_BUGS overrides. The guide has the address, too.
BUGS = "dkms/bugs"
ADDRESS = re.compile(r"[a-z]+:[^\s\"'<>]+")
GUIDE = "Documentation/install.md"
# lintian's tag to suppress: neither the packages nor the address for bugs are Debian's.
NOT_DEBIANS = "bugs-field-does-not-refer-to-debian-infrastructure"
# CHANGELOG.md: a version's heading, and the text up to the next.
RELEASE = re.compile(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def version(text=None):
    """Returns the version, from the only file that defines it."""
    text = text or (cache.CLONE / VERSION).read_text()
    return ".".join(re.findall(r"^#define EFA_VERSION_(?:MAJOR|MINOR|SUBMINOR) (\d+)$", text, re.MULTILINE))


def module_version(number):
    """Returns the version of the module in the package with this version."""
    interface = match_in(r'(?m)^#define EFA_INTERFACE "(.+)"$', (cache.CLONE / VERSION).read_text(), VERSION)
    return f"{interface[1]}-rs{number}"


def releases(text=None):
    """Parses CHANGELOG.md: (version, date, list of changes) for each version, newest first."""
    text = text or (cache.CLONE / "CHANGELOG.md").read_text()
    found = []
    for number, day, body in RELEASE.findall(text):
        changes = [" ".join(change.split()) for change in re.split(r"^- ", body, flags=re.MULTILINE)[1:]]
        found.append((number, datetime.date.fromisoformat(day), changes))
    if not found or found[0][0] != version():
        raise Failure(f"CHANGELOG.md does not begin with version {version()}, which efa_rs/ffi/version.h has: add what is new in it.")
    return found


def wrapped(change, first, rest):
    """A change as lines of a changelog."""
    return textwrap.wrap(change, 78, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)


def maintainer():
    """The packages' maintainer: the author of the commit that is packed. Bugs have an address of their own."""
    return laws.git("log", "-1", "--format=%an <%ae>").strip()


def bugs():
    """Returns where users of the packages report bugs: (the clone's default, the address)."""
    default = (cache.CLONE / BUGS).read_text().strip()
    address = os.environ.get("EFA_BUGS") or default
    if not ADDRESS.fullmatch(address):
        raise Failure(f"BUGS={address} is not an address to report bugs to: give one such as https://host/path or mailto:name@host.")
    return default, address


def debian_changelog(who):
    """debian/changelog, from CHANGELOG.md."""
    entries = []
    for number, day, changes in releases():
        lines = [f"{NAME} ({number}) unstable; urgency=medium", ""]
        for change in changes:
            lines += wrapped(change, "  * ", "    ")
        lines += ["", f" -- {who}  {day:%a, %d %b %Y} 00:00:00 +0000", ""]
        entries.append("\n".join(lines))
    return "\n".join(entries)


def rpm_spec():
    """The spec file, with version and changelog."""
    text = (cache.CLONE / "rpm" / f"{NAME}-dkms.spec").read_text()
    lines = []
    for number, day, changes in releases():
        lines.append(f"* {day:%a %b %d %Y} {maintainer()} - {number}-1")
        for change in changes:
            lines += wrapped(change, "- ", "  ")
        lines.append("")
    _, address = bugs()
    values = {"VERSION": version(), "BUGS": address.replace("%", "%%"), "CHANGELOG": "\n".join(lines).rstrip()}
    return re.sub("@([A-Z]+)@", lambda place: values[place[1]], text)


def generated():
    """Returns the files of the tarball that are not in the clone, or differ from those in it."""
    default, address = bugs()
    return {
        "debian/changelog": debian_changelog(maintainer()),
        "debian/control": (cache.CLONE / "debian/control").read_text().replace("@BUGS@", address).replace("@MAINTAINER@", maintainer()),
        f"{NAME}-dkms.spec": rpm_spec(),
        BUGS: f"{address}\n",
        GUIDE: (cache.CLONE / GUIDE).read_text().replace(default, address),
    }


def dist():
    """Makes the source tarball of the clone's files; returns it."""
    root = f"{NAME}-{version()}"
    output = cache.clone_folder("package") / f"{root}.tar.xz"
    # The time of the last commit: the same for each packager.
    when = int(laws.git("log", "-1", "--format=%ct"))
    if laws.git("status", "--porcelain"):
        steps.note("the clone has changes that are not committed: the tarball has them, too")
    contents = {name: (cache.CLONE / name) for name in laws.files(links=True) if not name.startswith("rpm/")}
    contents |= generated()
    with steps.step("source tarball"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, content in sorted(contents.items()):
                add(tar, f"{root}/{name}", content, when)
        temporary = output.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(lzma.compress(buffer.getvalue(), preset=6))
        temporary.rename(output)
    return output


def add(tar, name, content, when):
    """Adds a file, a link or a text, with no trace of the packager."""
    entry = tarfile.TarInfo(name)
    entry.mtime = when
    entry.mode = 0o644
    if isinstance(content, Path) and content.is_symlink():
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(content)
        tar.addfile(entry)
        return
    if isinstance(content, Path):
        entry.mode = 0o755 if os.access(content, os.X_OK) else 0o644
        content = content.read_bytes()
    else:
        content = content.encode()
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def deb():
    """Builds the driver's Debian package from the tarball, and checks it; returns it."""
    package = f"{NAME}-dkms_{version()}_all.deb"
    return built("deb", "Debian package", debian_script("deb", "all", package), package)


# Builds the package again on a machine that differs in all that could leak into it. That is the architecture of dpkg's tools and uname,
# time, host, user, folders, time zone, umask, the order of files in a folder, and the number of threads.
ELSEWHERE = f"""
    set -eu
    hostname elsewhere
    umask 077
    mkdir -p /tmp/bin /tmp/unpacked /tmp/elsewhere/source
    printf '#!/bin/sh\n[ "$*" != --print-architecture ] || exec echo arm64\nexec /usr/bin/dpkg "$@"\n' >/tmp/bin/dpkg
    printf '#!/bin/sh\necho aarch64\n' >/tmp/bin/uname
    chmod -R 755 /tmp/bin
    tar -x -f {BUILD}/{{tarball}} -C /tmp/unpacked --strip-components=1 --no-same-owner
    (cd /tmp/unpacked && find . | sort --reverse |
        cpio --pass-through --make-directories --preserve-modification-time --quiet ../elsewhere/source)
    chmod -R u=rwX,go= /tmp/elsewhere
    chown -R 1234:1234 /tmp/elsewhere
    cd /tmp/elsewhere/source
    export PATH=/tmp/bin:$PATH HOME=/tmp/elsewhere TZ=XYZ-13 LC_ALL=C DEB_BUILD_OPTIONS=parallel=1 DPKG_DEB_THREADS_MAX=1
    setpriv --reuid 1234 --regid 1234 --clear-groups sh -c '{{build}}'
    cp ../{{package}} {BUILD}/elsewhere/
"""


def deb_of_elsewhere():
    """Builds it as on an arm64 machine that shares only the tarball and the packaging tools with this one; returns it."""
    tarball, folder = dist(), cache.clone_folder("package")
    package = f"{NAME}-dkms_{version()}_all.deb"
    (folder / "elsewhere").mkdir(exist_ok=True)
    script = ELSEWHERE.format(tarball=tarball.name, build=BUILDPACKAGE.format("all"), package=package)
    with cache.lock(f"package-{cache.key(str(cache.CLONE))}"), steps.step("Debian package, as if elsewhere") as log:
        command = ["unshare", "--uts", "sh", "-c", script]
        steps.run(layer.enter(command, [(folder, BUILD, "rw")]), log, "Building the Debian package as if elsewhere")
    return folder / "elsewhere" / package


def emulator_deb():
    """Builds the emulator's Debian package, and checks it; returns it."""
    package = f"{EMULATOR}_{version()}_{toolroot.architecture()}.deb"
    # cargo's results are kept. cargo compares only times, and all files of the tarball have the time of the last commit.
    script = f"""
        export CARGO_HOME={build.CARGO} CARGO_TARGET_DIR={BUILD}/target
        cd {BUILD}/emulator-deb/source
        sources=$(find emulator efa_rs/hw -name '*.rs' -o -name 'Cargo.*' | sort)
        sum=$(sha256sum $sources | sha256sum)
        [ "$sum" = "$(cat $CARGO_TARGET_DIR/sources 2>/dev/null)" ] || touch $sources
        {debian_script("emulator-deb", "any", package)}
        echo "$sum" >$CARGO_TARGET_DIR/sources
    """
    return built("emulator-deb", "Debian package of the emulator", script, package, build.cargo_home())


# The build of an unpacked tarball.
BUILDPACKAGE = "SOURCE_DATE_EPOCH=$(date +%s --reference=Kbuild) dpkg-buildpackage --build={} --no-sign --no-check-builddeps"


def debian_script(kind, which, package):
    """The script that builds a Debian package and checks it."""
    return f"""
        cd {BUILD}/{kind}/source
        {BUILDPACKAGE.format(which)}
        cd ..
        lintian --fail-on error,warning --display-info --tag-display-limit 0 --allow-root --suppress-tags {NOT_DEBIANS} *.changes
        dpkg-deb --extract {package} unpacked
        cp {package} {BUILD}/
    """


def rpm(newer=None):
    """Builds the RPM of the tarball, and checks it; returns it. With NEWER, it has that version in place of its own."""
    number = newer or version()
    package = f"{NAME}-dkms-{number}-1.noarch.rpm"
    subminor = number.rpartition(".")[2]
    script = f"""
        cd {BUILD}/rpm
        export SOURCE_DATE_EPOCH=$(date +%s --reference=source/Kbuild)
        if [ {number} = {version()} ]; then
            cp {BUILD}/{NAME}-{number}.tar.xz .
        else
            sed -i 's/^#define EFA_VERSION_SUBMINOR .*/#define EFA_VERSION_SUBMINOR {subminor}/' source/efa_rs/ffi/version.h
            sed -i '/^Version:/s/{version()}/{number}/; s/ - {version()}-1$/ - {number}-1/' source/{NAME}-dkms.spec
            tar -c -J -f {NAME}-{number}.tar.xz --transform='s,^source,{NAME}-{number},' source
        fi
        rpmbuild -bb --define "_topdir $PWD" --define "_sourcedir $PWD" --define "_rpmdir $PWD" --define "_dbpath $PWD/db" \
            --define "_build_name_fmt %{{NAME}}-%{{VERSION}}-%{{RELEASE}}.%{{ARCH}}.rpm" \
            --define "_tmppath /tmp" --define "_unitdir /usr/lib/systemd/system" \
            --define "use_source_date_epoch_as_buildtime 1" --define "build_mtime_policy clamp_to_source_date_epoch" \
            --define "_buildhost localhost" source/{NAME}-dkms.spec
        rpmlint --strict --config source/.rpmlint.toml {package} source/{NAME}-dkms.spec
        mkdir unpacked
        rpm2cpio {package} | (cd unpacked && cpio --extract --make-directories --quiet)
        cp {package} {BUILD}/
    """
    return built("rpm", "RPM", script, package)


def broken_links(tree):
    """Returns the relative links in the documents of an unpacked package that lead to no file of it."""
    found = [(page, target) for page in sorted(tree.glob("usr/share/doc/*/*.md")) for target, _ in laws.LINK.findall(page.read_text())]
    return [f"{page.name} has {target}" for page, target in found if not (page.parent / target).exists()]


def built(kind, what, script, package, binds=()):
    """Unpacks the tarball and runs SCRIPT in the root with packaging tools, which also unpacks the package; returns the package."""
    tarball = dist()
    folder = cache.clone_folder("package")
    prepare = f"""
        set -eu
        rm -rf {BUILD}/{kind} && mkdir -p {BUILD}/{kind}/source
        tar -x -f {BUILD}/{tarball.name} -C {BUILD}/{kind}/source --strip-components=1 --no-same-owner
    """
    with cache.lock(f"package-{cache.key(str(cache.CLONE))}"), steps.step(what) as log:
        steps.run(layer.enter(["sh", "-c", prepare + script], [(folder, BUILD, "rw"), *binds]), log, f"Building the {what}")
        if broken := broken_links(folder / kind / "unpacked"):
            raise Failure(f"{package} lacks files that its documents link to ({'; '.join(broken)}): add them, or name them without a link.")
    return folder / package
