# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The packages on machines: installed, upgraded, removed, and with all that may fail meanwhile. A machine is a Debian with systemd.

Most tests begin with a machine that has the package's dependencies and the Rust kits of its kernels, or the package itself.
Compilations run in a machine that is not booted, as their compilers take long on an emulated CPU.
"""

import re
import sys

import pytest
from conftest import CLONE
from guests import accelerator, lines_of, result

sys.path.append(str(CLONE / "tests/packages"))

from machine import DRIVER, PACKAGES, Machine, has_built, module_version, remove_abandoned, says
from test_kselftest import GUESTS as KSELFTEST_GUESTS
from test_kselftest import KSELFTEST, PROGRAMS

MINUTES = 90
TIER = "named"
NEEDS = ["deb", "emulator", "kernel-cloud-amd64", "machine"]
VERSION_H = (CLONE / "efa_rs/ffi/version.h").read_text()
VERSION = ".".join(re.findall(r"^#define EFA_VERSION_(?:MAJOR|MINOR|SUBMINOR) (\d+)$", VERSION_H, re.MULTILINE))
EMULATOR_VERSION = re.findall(r"^## (\S+) ", (CLONE / "emulator/CHANGELOG.md").read_text(), re.MULTILINE)[0]
# The package again, with a version that dpkg and DKMS take for newer.
NEWER_VERSION = f"{VERSION.rpartition('.')[0]}.99"
# The Linux series of a stock machine's kernel.
FLOOR = lines_of(CLONE / "tools/series")[0].split()[0]
TOO_OLD = f"as that needs Linux {FLOOR} or newer"
RETURN = "run Amazon's EFA installer again"
PACKAGE = f"{PACKAGES}/efa-rs-dkms_*_all.deb"
INSTALL = f"apt-get install --yes {PACKAGE}"
NEW_KERNEL = "apt-get install --yes linux-image-cloud-amd64/trixie-backports linux-headers-cloud-amd64/trixie-backports"
OLD_IMAGE = "apt-get install --yes linux-image-cloud-amd64"
# A service of the early boot that needs a device.
SERVICE = "needs-efa.service"
NEWER = "/var/tmp/newer.deb"
MAKE_NEWER = f"""
    set -eu
    dpkg-deb --raw-extract {PACKAGE} /tmp/package
    cd /tmp/package
    sed -i "s/{VERSION}/{NEWER_VERSION}/g" DEBIAN/control DEBIAN/postinst DEBIAN/prerm
    mv usr/src/efa-rs-{VERSION} usr/src/efa-rs-{NEWER_VERSION}
    sed -i 's/^#define EFA_VERSION_SUBMINOR .*/#define EFA_VERSION_SUBMINOR 99/' usr/src/efa-rs-{NEWER_VERSION}/efa_rs/ffi/version.h
    dpkg-deb --build . {NEWER}
    rm -r /tmp/package
"""
KITS = "/var/cache/efa-rs/kits"
SOURCES = "/var/cache/efa-rs/sources"
# The same with a precompiled module, as compilation in an emulated guest takes long.
COMPILED = "/var/tmp/compiled.deb"
MAKE_COMPILED = f"""
    dpkg-deb --raw-extract {NEWER} /tmp/package
    cd /tmp/package/usr/src/efa-rs-*
    cp -r . /tmp/build
    make -C {KITS}/{{release}} M=/tmp/build modules
    cp /tmp/build/efa_rs/efa.ko .
    printf '#!/bin/sh\ncp efa.ko efa_rs/\n' >dkms/build
    dpkg-deb --build /tmp/package {COMPILED}
    rm -r /tmp/package /tmp/build
"""
# A package of the C driver with the name of Amazon's, which DKMS builds. As Amazon's, it has files in /etc that load the module.
AMAZONS = "/var/tmp/efa.deb"
AMAZONS_FILES = "/etc/modules-load.d/efa.conf /etc/modprobe.d/efa.conf"
MAKE_AMAZONS = f"""
    set -eu
    mkdir -p /tmp/package/DEBIAN /tmp/package/usr/src/efa-9.9.9 /tmp/package/etc/modules-load.d /tmp/package/etc/modprobe.d
    cd /tmp/package
    tar -x -f {{source}} -C usr/src/efa-9.9.9 --strip-components=5 --wildcards 'linux-*/drivers/infiniband/hw/efa/*'
    cat >usr/src/efa-9.9.9/dkms.conf <<'END'
PACKAGE_NAME=efa
PACKAGE_VERSION=9.9.9
BUILT_MODULE_NAME[0]=efa
DEST_MODULE_LOCATION[0]=/updates
MAKE[0]="make -C $kernel_source_dir M=$dkms_tree/efa/9.9.9/build CONFIG_INFINIBAND_EFA=m modules"
AUTOINSTALL=yes
END
    printf '%s\n' 'Package: efa' 'Version: 9.9.9' 'Architecture: all' 'Maintainer: a <a@b.example>' 'Description: C driver' >DEBIAN/control
    printf '%s\n' {AMAZONS_FILES} >DEBIAN/conffiles
    printf '%s\n' ib_uverbs efa >etc/modules-load.d/efa.conf
    echo 'softdep efa pre: ib_uverbs' >etc/modprobe.d/efa.conf
    printf '#!/bin/sh\ndkms add efa/9.9.9 && dkms install efa/9.9.9 -k {{release}}\n' >DEBIAN/postinst
    printf '#!/bin/sh\ndkms remove efa/9.9.9 --all\n' >DEBIAN/prerm
    chmod 755 DEBIAN/postinst DEBIAN/prerm
    dpkg-deb --build . {AMAZONS}
    rm -r /tmp/package
"""
# Finds all files that are named after the driver. In a guest, virtiofsd would run out of open files.
NAMES = "-name '*efa-rs*' -o -name 'efa.ko*' -o -name 'efa-report*' -o -name 'efa.conf'"
TRACES = f"find / -xdev ! -path '/var/log/*' ! -path /efa-rs '(' {NAMES} ')'"
EMULATOR_TRACES = "find / -xdev -name '*efa-emu*' ! -path '/var/log/*' ! -path '/var/cache/*' ! -path '/efa-rs/*'"
# README's commands for the user of an instance, those of the guide for a module that was built by hand, and for two guests.
README_COMMANDS = re.compile(r"^## On EC2.*?```console\n(.*?)```", re.DOTALL | re.MULTILINE)
INSERT_COMMANDS = re.compile(r"^A module that was built by hand is loaded by `(modprobe [^`]*)` and `(insmod [^`]*)`", re.MULTILINE)
GUIDE_COMMANDS = re.compile(r"^## Two guests.*?```console\n(.*?)```", re.DOTALL | re.MULTILINE)
PING = re.compile(r"^guest1 to guest0 over EFA: .* us each way$", re.MULTILINE)
# apt's changes of packages that build kernels' Rust code.
COMPILERS = re.compile(r"^Inst (?:rustc|rust-src|libstd-rust\S*|bindgen|gcc\S*) ", re.MULTILINE)


def series_of(kernel):
    """Returns the series of a kernel release, such as 7.3."""
    return ".".join(kernel.split(".")[:2])


def kernel_packages(series):
    """Returns the packages of all kernels of a series, as patterns for apt."""
    return " ".join(f"'linux-{part}-{series}*'" for part in ("image", "headers", "binary", "modules"))


@pytest.fixture(scope="module")
def installed():
    """A machine on which one apt command has installed the package, beside a kernel of the floor and its headers."""
    remove_abandoned()
    it = Machine()
    has_built(it.does(INSTALL), FLOOR)
    yield it.layers()
    it.remove()


@pytest.fixture(scope="module")
def base(installed):
    """A machine with the package's dependencies and the Rust kits of its kernels, but not the package."""
    it = Machine(installed)
    it.does(
        f"apt-mark manual $(apt-mark showauto) >/dev/null; cp -a {KITS} /var/cache/kits; apt-get purge --yes efa-rs-dkms;"
        f" mkdir -p {KITS.rsplit('/', 1)[0]} && mv /var/cache/kits {KITS}"
    )
    yield it.layers()
    it.remove()


@pytest.fixture
def machine(ktap):
    """Makes the test's machine."""
    made = []

    def make(lowers=(), **options):
        made.append(Machine(lowers, ktap=ktap, **options))
        return made[-1]

    yield make
    for it in made:
        it.remove()


def test_install(machine, installed):
    """The driver is loaded before any service."""
    it = machine(installed)
    changes = it.does("apt-get install --simulate -t trixie-backports qemu-system-x86 qemu-utils")
    # The emulator's QEMU leaves the compilers alone.
    assert "Inst qemu-system-x86 " in changes and not COMPILERS.search(changes), changes
    it.does(f"install -m 644 /efa-rs/tests/packages/{SERVICE} /etc/systemd/system && systemctl enable {SERVICE}")
    it.boots(f"{DRIVER} early")
    it.does(f"systemctl disable {SERVICE} && rm /etc/systemd/system/{SERVICE}")
    it.boots(f"{DRIVER} idle", devices=())


def test_in_guest(machine, base):
    """Installs the package in a running machine. The driver is there at once, and after a reboot."""
    it = machine(base)
    text = it.boots(f"{INSTALL} && {DRIVER} loaded", what="at once")
    assert "Error!" not in text
    it.boots(f"{DRIVER} present")
    it.boots("apt-get purge --yes efa-rs-dkms")
    it.boots(f"{DRIVER} absent")
    assert not it.does(TRACES)


def test_cloud_image(machine, base):
    """Runs README's commands for EC2 verbatim, on a machine like a cloud image: Debian 13's own kernel, and no headers."""
    it = machine(base)
    it.does(f"{OLD_IMAGE} && apt-get purge --yes --autoremove {kernel_packages(FLOOR)}")
    it.kernel_is("6.12")
    commands = [line.removeprefix("# ") for line in README_COMMANDS.findall((CLONE / "README.md").read_text())[0].splitlines()]
    install = next(command for command in commands if command.startswith("apt install "))
    # `apt update` is not run: the machine has no network, but has apt's lists and the packages.
    assert commands == ["apt update", install, "reboot", "ibv_devinfo"]
    text = it.does(f"cd {PACKAGES} && yes | {install}")
    new = series_of(it.release_of("backports"))
    has_built(text, new)
    it.kernel_is(new)
    it.boots(f"{DRIVER} present")


def test_upgrade(machine, base):
    """The package is installed on a machine whose kernel is too old. Then a kernel of backports is installed, and removed."""
    it = machine(base)
    old, new = it.release_of("old"), series_of(it.release_of("backports"))
    it.does(f"apt-get install --yes linux-image-{old} linux-headers-{old} && apt-get purge --yes {kernel_packages(FLOOR)}")
    it.kernel_is(series_of(old))
    says(it.does(INSTALL), f"kernel {old} gets no driver, {TOO_OLD}")
    it.boots(f"{DRIVER} absent", what="with the old kernel")
    has_built(it.does(NEW_KERNEL), new)
    it.kernel_is(new)
    it.boots(f"{DRIVER} present")
    programs = "; ".join(f"./{program}.py || [ $? = 4 ] || exit 1" for program in PROGRAMS)
    it.boots(f"cd {KSELFTEST}; {programs}", devices=KSELFTEST_GUESTS["devices"], what="selftests")
    it.does(f"apt-get purge --yes {kernel_packages(new)}")
    it.kernel_is(series_of(old))
    it.boots(f"{DRIVER} absent", what="with the old kernel again")


def test_new_version(machine, installed):
    """A newer version of the package is installed, and then this one again."""
    it = machine(installed)
    it.does(MAKE_NEWER)
    for version, command in ((NEWER_VERSION, NEWER), (VERSION, f"--allow-downgrades {PACKAGE}")):
        has_built(it.does(f"apt-get install --yes {command}"), FLOOR)
        it.is_only(version)
        it.boots(f"{DRIVER} present", what=version)


def test_broken_toolchain(machine, base):
    """rustc is missing, although dpkg lists it as installed."""
    it = machine(base)
    it.does("mv /usr/bin/rustc /usr/bin/rustc.away")
    it.fails(INSTALL, "Rust compiler is missing: install the package rustc")
    it.is_repaired("rm /usr/bin/rustc.away; apt-get install --yes --reinstall rustc")


def test_full_disk(machine, base):
    """The disk has no room for the kit."""
    it = machine(base)
    it.does(f"rm -rf {KITS}/*")
    full = f"mount -t tmpfs -o size=60m tmpfs /var/cache/efa-rs && {INSTALL}"
    it.fails(full, r"There is no room to build for kernel .* it needs \d+ MB in /var/cache")
    it.is_repaired("dpkg --configure -a")


def test_interrupted(machine, base):
    """The power fails in the middle of a build."""
    it = machine(base)
    it.does(f"rm -rf {KITS}/*")
    kill = "while ! ls -d /var/cache/efa-rs/work.*/rust-kit.*/object/rust >/dev/null 2>&1; do sleep 0.2; done; kill -KILL -1"
    status, text = it.tried(f"({kill}) & {INSTALL}")
    assert status and "Building module" in text, text[-4000:]
    it.is_repaired("dpkg --configure -a")
    assert not it.does("ls -d /var/cache/efa-rs/work.* 2>/dev/null || :")


def test_older_kernel(machine, installed):
    """Debian 13's own kernel, which is too old, beside one that has the driver."""
    it = machine(installed)
    text = it.does(f"{OLD_IMAGE} linux-headers-cloud-amd64")
    old = it.does("ls /lib/modules | grep ^6.12").split()[-1]
    says(text, f"kernel {old} gets no driver, {TOO_OLD}")
    it.boots(f"{DRIVER} present")
    it.boots(f"{DRIVER} absent", release=old)
    it.boots(f"{DRIVER} absent", release=old, devices=(), what="absent, without a device")


def test_administrator(machine, installed):
    """The administrator's files in /etc override the package's."""
    it = machine(installed)
    # No device: udev would load the driver for it, regardless of the unit.
    it.does("systemctl mask modprobe@efa.service")
    it.boots(f"{DRIVER} off", devices=())
    it.does("systemctl unmask modprobe@efa.service; echo 'blacklist efa' >/etc/modprobe.d/local.conf")
    it.boots(f"{DRIVER} blacklisted")


def test_secure_boot(machine, installed):
    """Secure Boot: first the firmware trusts Debian's kernel only, then also the key that DKMS signs with."""
    it = machine(installed)
    it.trust()
    it.boots(f"{DRIVER} rejected")
    it.boots(f"{DRIVER} rejected", devices=(), what="rejected, without a device")
    it.trust("/var/lib/dkms/mok.pub")
    it.boots(f"{DRIVER} trusted")


def test_insmod(machine, base):
    """A module that was built by hand, and is loaded as the guide says; no package."""
    it = machine(base)
    commands = INSERT_COMMANDS.findall((CLONE / "Documentation/install.md").read_text())[0]
    it.does(f"cp -r /efa-rs/efa_rs /opt/efa_rs && make -C {KITS}/{it.release_of('floor')} M=/opt/efa_rs modules")
    it.boots(f"cd /opt/efa_rs && {' && '.join(commands)} && udevadm settle && {DRIVER} inserted")
    it.boots(f"{DRIVER} absent")


def test_c_driver(machine, base):
    """A kernel that has a C driver: ours takes precedence until it is removed."""
    it = machine(base)
    kernel = it.release_of("floor")
    it.does(f"""
        set -eu
        cd "$(mktemp -d)"
        tar -x -f /usr/src/linux-source-{series_of(kernel)}.tar.xz --strip-components=4 --wildcards 'linux-*/drivers/infiniband/hw/efa/*'
        make -C /lib/modules/{kernel}/build M=$PWD/efa CONFIG_INFINIBAND_EFA=m modules
        cd /lib/modules/{kernel}
        mkdir -p kernel/drivers/infiniband/hw/efa
        xz --check=crc32 --stdout "$OLDPWD/efa/efa.ko" >kernel/drivers/infiniband/hw/efa/efa.ko.xz
        depmod {kernel}
    """)
    it.boots(f"{DRIVER} c")
    it.does(INSTALL)
    it.boots(f"{DRIVER} present")
    it.does("apt-get purge --yes efa-rs-dkms")
    it.boots(f"{DRIVER} c", what="c again")


def test_amazons(machine, base):
    """Another package of the C driver, which ours replaces; a message says how to return, and that way works."""
    it = machine(base)
    kernel = it.release_of("floor")
    it.does(MAKE_AMAZONS.format(source=f"/usr/src/linux-source-{series_of(kernel)}.tar.xz", release=kernel))
    it.does(f"apt-get install --yes {AMAZONS}")
    it.boots(f"{DRIVER} amazons")
    it.does(INSTALL)
    it.is_only(VERSION)
    it.boots(f"{DRIVER} present")
    # The files in /etc have remained.
    it.does(f'ls {AMAZONS_FILES} && dpkg --purge efa && [ -z "$(ls {AMAZONS_FILES} 2>/dev/null)" ]')
    says(it.does("apt-get purge --yes efa-rs-dkms"), RETURN)
    it.does(f"apt-get install --yes {AMAZONS}")
    it.boots(f"{DRIVER} amazons", what="amazons again")


def test_no_network(machine, base):
    """The kernel's source is not installed, and there is no network."""
    it = machine(base)
    source = "/var/cache/apt/archives/linux-source-*.deb"
    it.does(f"apt-get purge --yes 'linux-source-*'; rm -rf {KITS}/*; mkdir /opt/kept && mv {source} /opt/kept")
    it.fails(f"{INSTALL} --no-install-recommends", f"could not be downloaded: .* the file of that package into {SOURCES}")
    it.does(f"mkdir {SOURCES} && cp /opt/kept/* {SOURCES}")
    it.is_repaired("dpkg --configure -a")


def test_in_use(machine, installed):
    """A newer version is installed in a running machine while a program uses the device: the old module stays, until a reboot."""
    it = machine(installed)
    it.does(MAKE_NEWER + MAKE_COMPILED.format(release=it.release_of("floor")))
    it.boots(f"{DRIVER} upgraded {COMPILED} {module_version(NEWER_VERSION)}", what="upgraded")
    it.boots(f"{DRIVER} present")
    it.is_only(NEWER_VERSION)


def test_two_kernels(machine, base):
    """One apt command installs two kernels on a machine with the package and no kernel: one gets the driver, the other is too old."""
    it = machine(base)
    old, new = it.release_of("old"), it.release_of("backports")
    it.does(f"apt-get purge --yes {kernel_packages(FLOOR)}")
    it.does(INSTALL)
    text = it.does(f"{NEW_KERNEL} linux-image-{old} linux-headers-{old}")
    has_built(text, series_of(new))
    says(text, f"kernel {old} gets no driver, {TOO_OLD}")
    it.boots(f"{DRIVER} present", release=new)


@pytest.mark.needs("rpm", "rpm-newer")
def test_rpm(machine, base):
    """The RPM's scriptlets, run by rpm and DKMS on Debian, as no RPM distribution is available here."""
    it = machine(base)
    it.does("apt-get install --yes rpm")
    has_built(it.does(f"rpm --install --nodeps {PACKAGES}/efa-rs-dkms-{VERSION}-1.noarch.rpm"), FLOOR)
    it.boots(f"{DRIVER} present")
    has_built(it.does(f"rpm --upgrade --nodeps {PACKAGES}/efa-rs-dkms-{NEWER_VERSION}-1.noarch.rpm"), FLOOR)
    it.is_only(NEWER_VERSION)
    it.boots(f"{DRIVER} present", what=NEWER_VERSION)
    says(it.does("rpm --erase efa-rs-dkms"), RETURN)
    it.boots(f"{DRIVER} absent")
    assert not it.does(TRACES)


@pytest.mark.needs("emulator-deb", "clean-debian", "cloud-image")
def test_emulator(machine):
    """Runs the guide's commands for two guests verbatim, as an ordinary user of a clean Debian 13, with an image that the tests make.

    The machine is not booted: its programs run on this host's CPU. Under TCG, guests of a guest would take hours.
    """
    it = machine(root="clean-debian")
    block = GUIDE_COMMANDS.findall((CLONE / "Documentation/emulator-vmm.md").read_text())[0]
    commands = [(line[0], line[2:]) for line in block.splitlines()]
    (_, update), (_, install), (_, start) = commands
    assert [user for user, _ in commands] == ["#", "#", "$"] and update == "apt update" and start.endswith(" IMAGE.qcow2")
    it.does(f"cd {PACKAGES} && yes | {install}")
    it.does("useradd --create-home user")
    image = "/run/image.qcow2"
    script = f"cd && {start.replace('IMAGE.qcow2', image)} --accel {accelerator('cloud-amd64')}"
    text = it.does(f"runuser --user user -- env HOME=/home/user sh -c '{script}'", result("cloud-image") / "image.qcow2", image)
    assert PING.search(text), text[-4000:]
    it.does("rm -r /home/user/efa-lab; apt-get purge --yes efa-emu")
    assert not it.does(EMULATOR_TRACES)


@pytest.mark.needs("emulator-deb")
def test_emulator_unit(machine):
    """The emulator as a service of systemd."""
    it = machine()
    package = f"{PACKAGES}/efa-emu_{EMULATOR_VERSION}_amd64.deb"
    it.does(f"apt-get install --yes --no-install-recommends {package}")
    it.boots(f"/efa-rs/tests/packages/emulator.py {package}", devices=(), what="unit")
