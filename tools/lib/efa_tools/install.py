# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make check-install: installs, upgrades and removes the driver's package, or the emulator's, on machines.

Each scenario is a function that returns a Scenario. Most begin with the machine that an earlier one has left.
"""

import re

from . import cache, ktap, lab, namespace, package, qemu, running, steps, toolroot
from .failure import Failure, match_in
from .machine import Machine
from .suite import kselftest_devices
from .tally import Tally
from .verdict import check

# The Linux series of a stock machine's kernel.
FLOOR = toolroot.SERIES
PACKAGES = "/run/efa-rs/package"
PACKAGE = f"{PACKAGES}/efa-rs-dkms_*_all.deb"
INSTALL = f"apt-get install --yes {PACKAGE}"
NEW_KERNEL = "apt-get install --yes linux-image-cloud-amd64/trixie-backports linux-headers-cloud-amd64/trixie-backports"
OLD_IMAGE = "apt-get install --yes linux-image-cloud-amd64"
OLD_KERNEL = f"{OLD_IMAGE} linux-headers-cloud-amd64"
DRIVER = "/efa-rs/tests/install/driver.sh"
# A service of the early boot that needs a device.
SERVICE = "needs-efa.service"
ENABLE_SERVICE = f"install -m 644 /efa-rs/tests/install/{SERVICE} /etc/systemd/system && systemctl enable {SERVICE}"
DISABLE_SERVICE = f"systemctl disable {SERVICE} && rm /etc/systemd/system/{SERVICE}"
# The package again, with a version that dpkg and DKMS take for newer.
NEWER = "/var/tmp/newer.deb"
NEWER_SUBMINOR = 99
MAKE_NEWER = f"""
    set -eu
    dpkg-deb --raw-extract {PACKAGE} /tmp/package
    cd /tmp/package
    old=$(sed -n 's/^Version: //p' DEBIAN/control)
    new=${{old%.*}}.{NEWER_SUBMINOR}
    sed -i "s/$old/$new/g" DEBIAN/control DEBIAN/postinst DEBIAN/prerm
    mv usr/src/efa-rs-$old usr/src/efa-rs-$new
    sed -i 's/^#define EFA_VERSION_SUBMINOR .*/#define EFA_VERSION_SUBMINOR {NEWER_SUBMINOR}/' usr/src/efa-rs-$new/efa_rs/ffi/version.h
    dpkg-deb --build . {NEWER}
    rm -r /tmp/package
"""
KITS = "/var/cache/efa-rs/kits"
SOURCES = "/var/cache/efa-rs/sources"
# The same with a precompiled module, as compilation in an emulated guest takes long.
COMPILED = "/var/tmp/compiled.deb"
MAKE_COMPILED = f"""
    set -eu
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
TRACES = (
    "find / -xdev ! -path '/var/log/*' ! -path /efa-rs"
    " '(' -name '*efa-rs*' -o -name 'efa.ko*' -o -name 'efa-report*' -o -name 'efa.conf' ')'"
)
# README's commands for the user of an instance.
README_COMMANDS = re.compile(r"^## On EC2.*?```console\n(.*?)```", re.DOTALL | re.MULTILINE)
# The commands of the driver's guide for a module that was built by hand.
INSERT_COMMANDS = re.compile(r"^A module that was built by hand is loaded by `(modprobe [^`]*)` and `(insmod [^`]*)`", re.MULTILINE)
# The emulator's guide to two guests.
GUIDE = "Documentation/emulator-vmm.md"
GUIDE_COMMANDS = re.compile(r"^## Two guests.*?```console\n(.*?)```", re.DOTALL | re.MULTILINE)
GUIDE_IMAGE = "IMAGE.qcow2"
IMAGE = "/run/efa-rs/lab/image.qcow2"
# efa-emu-lab's output for a ping.
PING = re.compile(r"^guest1 to guest0 over EFA: .* us each way$", re.MULTILINE)
EMULATOR_TRACES = "find / -xdev -name '*efa-emu*' ! -path '/var/log/*' ! -path '/var/cache/*' ! -path '/efa-rs/*'"
# apt's changes of packages that build kernels' Rust code.
COMPILERS = re.compile(r"^Inst (?:rustc|rust-src|libstd-rust\S*|bindgen|gcc\S*) ", re.MULTILINE)
# The log that DKMS names after a failed build, and the driver's messages in it.
BUILD_LOG = re.compile(r"/var/lib/dkms/efa-rs/\S+/make\.log")
SENTENCE = re.compile(r"^efa-rs: .*$", re.MULTILINE)


class Scenario:
    """A machine and its test results."""

    def __init__(self, name, *lowers, **options):
        self.name = name
        self.tally = Tally()
        self.machine = Machine(name, lowers, **options)

    def check(self, what, problems):
        self.tally += check(f"{self.name}: {what}", problems)

    def does(self, what, script, binds=()):
        """Checks that a script succeeds on the machine, which is not booted; returns its output."""
        with steps.step(f"{self.name}: {what}"):
            status, text = self.machine.offline(script, binds)
        self.check(what, [] if status == 0 else [f"exit status {status}", *text.splitlines()[-25:]])
        return text

    def fails(self, what, script, sentence):
        """Checks that a script fails, and that DKMS names a log whose last message matches SENTENCE: the cause and the remedy."""
        with steps.step(f"{self.name}: {what}"):
            status, text = self.machine.offline(script)
        log = BUILD_LOG.search(text)
        said = SENTENCE.findall(self.machine.must(f"cat {log[0]}"))[-1:] if log else []
        good = status != 0 and any(re.search(sentence, line) for line in said)
        self.check(what, [] if good else [f"exit status {status}, said {said}", *text.splitlines()[-25:]])
        return text

    def boots(self, what, command, **options):
        """Checks that the machine boots, and that the KTAP of the command, or else its exit status, is good."""
        name = f"{self.name}: {what}"
        trouble, status, text = None, 0, ""
        with steps.step(name):
            try:
                status, text, _ = self.machine.boot(command, **options)
            except Failure as failure:
                trouble = failure
        if "KTAP version" in text:
            found = ktap.parse(text)
        else:
            found = Tally()
            if status or trouble:
                found.fail(name)
            else:
                found.passed += 1
        if trouble:
            steps.note(f"{name}: {trouble}")
            found.fail(f"{name}: the guest failed")
        if found.failed:
            steps.note(f"{name}: {found}\n" + "\n".join(f"    {line}" for line in text.splitlines()[-40:]))
        found.failures = [f"{name}: {failure}" for failure in found.failures]
        self.tally += found
        return text

    def is_repaired(self, command):
        """Checks that after a failed build the machine boots without driver, and one command installs it."""
        self.boots("the machine boots", f"{DRIVER} absent")
        self.does("one command repairs it", command)
        self.boots("the driver is there", f"{DRIVER} present")

    def has_built(self, text, series):
        """Checks that DKMS reports the installation of a module for a kernel of a series."""
        done = re.search(rf"Installing /lib/modules/{re.escape(series)}\..*/efa\.ko", text)
        self.check(f"DKMS has built for {series}", [] if done else text.splitlines()[-40:])

    def is_only(self, version):
        """Checks that DKMS and the kernels have this version of the driver and no other."""
        script = "dkms status; for kernel in /lib/modules/*; do modinfo --set-version ${kernel##*/} --field version efa; done"
        lines = self.machine.must(script).splitlines()
        module = package.module_version(version)
        good = [line for line in lines if line == module or re.match(rf"efa-rs/{re.escape(version)}, .*: installed", line)]
        self.check(f"{version} is the only one", [] if good[1:] and good == lines else [f"{script}:", *lines])

    def kernel_is(self, series):
        self.machine.choose_kernel()
        release = self.machine.release
        self.check(f"a {series} kernel is what boots", [] if release.startswith(f"{series}.") else [release])

    def release_of(self, which):
        """Returns the release of a kernel whose packages the machine has: floor, old or backports."""
        return dict(line.split() for line in self.machine.must("cat /kernels").splitlines())[which]

    def says_why_not(self, text, release, reason):
        """Checks that a message explains why a kernel gets no driver."""
        said = [line for line in SENTENCE.findall(text) if f"kernel {release} gets no driver, as {reason}" in line]
        self.check(f"it says why there is no driver for {release}", [] if said else text.splitlines()[-40:])

    def explains_return(self, text):
        """Checks that a removal says how to return to Amazon's driver."""
        said = [line for line in SENTENCE.findall(text) if "run Amazon's EFA installer again" in line]
        self.check("it says how to return to Amazon's driver", [] if said else text.splitlines()[-25:])

    def end(self):
        steps.note(f"{self.name}: {self.tally}")
        return self.tally


def layers(scenario):
    """Returns the layers of a scenario's machine, with which another scenario begins."""
    return [scenario.machine.folder / "upper", *scenario.machine.lowers[:-1]]


def fresh():
    """One apt command on a machine with only a kernel of the floor and its headers, without further input."""
    it = Scenario("install")
    text = it.does("one command installs all that is needed", INSTALL)
    it.has_built(text, FLOOR)
    changes = it.machine.must("apt-get install --simulate -t trixie-backports qemu-system-x86 qemu-utils")
    good = "Inst qemu-system-x86 " in changes and not COMPILERS.search(changes)
    it.check("the emulator's QEMU of backports leaves the compilers alone", [] if good else [changes])
    it.machine.must(ENABLE_SERVICE)
    it.boots("the driver is there after a reboot", f"{DRIVER} early")
    it.machine.must(DISABLE_SERVICE)
    it.boots("without a device, too", f"{DRIVER} idle", devices=())
    return it


def depends(installed):
    """A machine with the package's dependencies and the Rust kits of its kernels, but not the package."""
    it = Scenario("dependencies", *layers(installed))
    it.machine.must(
        f"apt-mark manual $(apt-mark showauto) >/dev/null; cp -a {KITS} /var/cache/kits; apt-get purge --yes efa-rs-dkms;"
        f" mkdir -p {KITS.rsplit('/', 1)[0]} && mv /var/cache/kits {KITS}"
    )
    return it


def in_guest(base):
    """Installs the package in a running machine. The driver is there at once, and after a reboot."""
    it = Scenario("install in a guest", *layers(base))
    text = it.boots("it installs and is there at once", f"{INSTALL} && {DRIVER} loaded", timeout=3600)
    it.check("DKMS says nothing of an error", re.findall(r".*Error!.*", text))
    it.boots("the driver is there after a reboot", f"{DRIVER} present")
    it.boots("it can be removed while it is in use", "apt-get purge --yes efa-rs-dkms")
    it.boots("there is none after a reboot", f"{DRIVER} absent")
    it.check("no file is left", it.machine.must(TRACES).splitlines())
    return it


def kernel_packages(series):
    """The packages of all kernels of a series, as patterns for apt."""
    return " ".join(f"'linux-{part}-{series}*'" for part in ("image", "headers", "binary", "modules"))


def cloud_image(_base):
    """Runs README's commands for EC2 verbatim, on a machine like a cloud image: Debian 13's own kernel, and no headers."""
    it = Scenario("cloud image")
    it.machine.must(f"{OLD_IMAGE} && apt-get purge --yes --autoremove {kernel_packages(FLOOR)}")
    it.kernel_is("6.12")
    block = match_in(README_COMMANDS, (cache.CLONE / "README.md").read_text(), "README.md")
    commands = [line.removeprefix("# ") for line in block[1].splitlines()]
    install = next((command for command in commands if command.startswith("apt install ")), "false")
    # `apt update` is not run: the machine has no network, but has apt's lists and the packages.
    good = commands == ["apt update", install, "reboot", "ibv_devinfo"]
    it.check("README has one command that installs", [] if good else commands)
    text = it.does("that installs a kernel and the driver", f"cd {PACKAGES} && yes | {install}")
    new = toolroot.series(it.release_of("backports"))
    it.has_built(text, new)
    it.kernel_is(new)
    it.boots("the driver is there after a reboot", f"{DRIVER} present")
    return it


def upgrade(base):
    """The package is installed on a machine whose kernel is too old. Then a kernel of backports is installed, and removed."""
    it = Scenario("upgrade", *layers(base))
    old, new = it.release_of("old"), toolroot.series(it.release_of("backports"))
    it.machine.must(f"apt-get install --yes linux-image-{old} linux-headers-{old} && apt-get purge --yes {kernel_packages(FLOOR)}")
    it.kernel_is(toolroot.series(old))
    text = it.does(f"the package is installed with {toolroot.series(old)}", INSTALL)
    it.says_why_not(text, old, f"that needs Linux {FLOOR} or newer")
    it.boots(f"the machine boots with {toolroot.series(old)}", f"{DRIVER} absent")
    text = it.does(f"a {new} kernel is installed", NEW_KERNEL)
    it.has_built(text, new)
    it.kernel_is(new)
    it.boots(f"the driver is there with {new}", f"{DRIVER} present")
    it.boots(f"the selftests pass with {new}", "/efa-rs/tests/kselftest/run.sh", devices=kselftest_devices())
    it.does(f"the {new} kernel is removed", f"apt-get purge --yes {kernel_packages(new)}")
    it.kernel_is(toolroot.series(old))
    it.boots(f"the machine boots with {toolroot.series(old)} again", f"{DRIVER} absent")
    return it


def newer_version():
    """Returns the version of the newer package."""
    return f"{package.version().rpartition('.')[0]}.{NEWER_SUBMINOR}"


def new_version(installed):
    """A newer version of the package is installed, and then this one again."""
    it = Scenario("new version", *layers(installed))
    it.machine.must(MAKE_NEWER)
    old, new = package.version(), newer_version()
    for version, command in ((new, f"apt-get install --yes {NEWER}"), (old, f"apt-get install --yes --allow-downgrades {PACKAGE}")):
        text = it.does(f"{version} is installed", command)
        it.has_built(text, FLOOR)
        it.is_only(version)
        it.boots(f"the driver is there with {version}", f"{DRIVER} present")
    return it


def broken_toolchain(base):
    """rustc is missing, although dpkg lists it as installed."""
    it = Scenario("broken toolchain", *layers(base))
    it.machine.must("mv /usr/bin/rustc /usr/bin/rustc.away")
    it.fails("it says which package is broken", INSTALL, "Rust compiler is missing: install the package rustc")
    it.is_repaired("rm /usr/bin/rustc.away; apt-get install --yes --reinstall rustc")
    return it


def full_disk(base):
    """The disk has no room for the kit."""
    it = Scenario("full disk", *layers(base))
    it.machine.must(f"rm -rf {KITS}/*")
    script = f"mount -t tmpfs -o size=60m tmpfs /var/cache/efa-rs && {INSTALL}"
    sentence = r"There is no room to build for kernel .* it needs \d+ MB in /var/cache"
    it.fails("it says how much it needs, and where", script, sentence)
    it.is_repaired("dpkg --configure -a")
    return it


def interrupted(base):
    """The power fails in the middle of a build."""
    it = Scenario("interrupted build", *layers(base))
    it.machine.must(f"rm -rf {KITS}/*")
    kill = "while ! ls -d /var/cache/efa-rs/work.*/rust-kit.*/object/rust >/dev/null 2>&1; do sleep 0.2; done; kill -KILL -1"
    status, text = it.machine.offline(f"({kill}) & {INSTALL}")
    it.check("the build was killed", [] if status and "Building module" in text else text.splitlines()[-25:])
    it.is_repaired("dpkg --configure -a")
    it.check("nothing is left of the killed build", it.machine.must("ls -d /var/cache/efa-rs/work.* 2>/dev/null || :").splitlines())
    return it


def older_kernel(installed):
    """Debian 13's own kernel, which is too old, beside one that has the driver."""
    it = Scenario("older kernel", *layers(installed))
    text = it.does("the kernel is installed", OLD_KERNEL)
    release = it.machine.must("ls /lib/modules | grep ^6.12").split()[-1]
    it.says_why_not(text, release, f"that needs Linux {FLOOR} or newer")
    it.boots(f"the {FLOOR} kernel still has the driver", f"{DRIVER} present")
    it.boots("the machine boots with the other kernel", f"{DRIVER} absent", release=release)
    it.boots("without a device, too", f"{DRIVER} absent", release=release, devices=())
    return it


def administrator(installed):
    """The administrator's files in /etc override the package's."""
    it = Scenario("administrator", *layers(installed))
    # No device: udev would load the driver for it, regardless of the unit.
    for what, script, found, devices in (
        ("its unit is masked", "systemctl mask modprobe@efa.service", "off", ()),
        (
            "the driver is on a blacklist",
            "systemctl unmask modprobe@efa.service; echo 'blacklist efa' >/etc/modprobe.d/local.conf",
            "blacklisted",
            ("profile=efa2",),
        ),
    ):
        it.machine.must(script)
        it.boots(what, f"{DRIVER} {found}", devices=devices)
    return it


def secure_boot(installed):
    """Secure Boot: first the firmware trusts Debian's kernel only, then also the key that DKMS signs with."""
    it = Scenario("Secure Boot", *layers(installed))
    it.machine.trust()
    it.boots("the machine boots without the key", f"{DRIVER} rejected")
    it.boots("without a device, too", f"{DRIVER} rejected", devices=())
    it.machine.trust("/var/lib/dkms/mok.pub")
    it.boots("the driver is there with the key", f"{DRIVER} trusted")
    return it


def insmod(base):
    """A module that was built by hand, and is loaded as the guide says; no package."""
    it = Scenario("insmod", *layers(base))
    commands = INSERT_COMMANDS.search((cache.CLONE / package.GUIDE).read_text())
    it.check("the guide has the commands", [] if commands else [package.GUIDE])
    release = it.release_of("floor")
    it.does("the module is built", f"cp -r /efa-rs/efa_rs /opt/efa_rs && make -C {KITS}/{release} M=/opt/efa_rs modules")
    load = " && ".join(commands.groups()) if commands else "false"
    it.boots("the driver is there once it is loaded", f"cd /opt/efa_rs && {load} && udevadm settle && {DRIVER} inserted")
    it.boots("there is none after a reboot", f"{DRIVER} absent")
    return it


def coexistence(base):
    """A kernel that has a C driver: ours takes precedence until it is removed."""
    it = Scenario("C driver", *layers(base))
    release = it.release_of("floor")
    it.machine.must(f"""
        set -eu
        cd "$(mktemp -d)"
        tar -x -f {toolroot.source(release)} --strip-components=4 --wildcards 'linux-*/drivers/infiniband/hw/efa/*'
        make -C /lib/modules/{release}/build M=$PWD/efa CONFIG_INFINIBAND_EFA=m modules
        cd /lib/modules/{release}
        mkdir -p kernel/drivers/infiniband/hw/efa
        xz --check=crc32 --stdout "$OLDPWD/efa/efa.ko" >kernel/drivers/infiniband/hw/efa/efa.ko.xz
        rm -r "$OLDPWD"
        depmod {release}
    """)
    it.boots("the C driver is loaded", f"{DRIVER} c")
    it.does("the package is installed", INSTALL)
    it.boots("ours is loaded", f"{DRIVER} present")
    it.does("the package is removed", "apt-get purge --yes efa-rs-dkms")
    it.boots("the C driver is loaded again", f"{DRIVER} c")
    return it


def amazons(base):
    """Another package of the C driver, which ours replaces; a message says how to return, and that way works."""
    it = Scenario("Amazon's package", *layers(base))
    release = it.release_of("floor")
    it.machine.must(MAKE_AMAZONS.format(source=toolroot.source(release), release=release))
    it.does("the package efa is installed", f"apt-get install --yes {AMAZONS}")
    it.boots("its driver is loaded", f"{DRIVER} amazons")
    it.does("ours is installed in its place", INSTALL)
    it.is_only(package.version())
    it.boots("ours is loaded", f"{DRIVER} present")
    purge = f'ls {AMAZONS_FILES} && dpkg --purge efa && [ -z "$(ls {AMAZONS_FILES} 2>/dev/null)" ]'
    it.does("the files of the package efa in /etc have remained, and a purge removes them", purge)
    it.explains_return(it.does("ours is removed", "apt-get purge --yes efa-rs-dkms"))
    it.does("the package efa is installed again", f"apt-get install --yes {AMAZONS}")
    it.boots("its driver is loaded again", f"{DRIVER} amazons")
    return it


def no_network(base):
    """The kernel's source is not installed, and there is no network."""
    it = Scenario("no network", *layers(base))
    source = "/var/cache/apt/archives/linux-source-*.deb"
    it.machine.must(f"apt-get purge --yes 'linux-source-*'; rm -rf {KITS}/*; mkdir /opt/kept && mv {source} /opt/kept")
    install = f"unshare --net {INSTALL} --no-install-recommends"
    it.fails("it says that a file of the source would do", install, f"could not be downloaded: .* the file of that package into {SOURCES}")
    it.machine.must(f"mkdir {SOURCES} && cp /opt/kept/* {SOURCES}")
    it.is_repaired("unshare --net dpkg --configure -a")
    return it


def in_use(installed):
    """A newer version is installed in a running machine while a program uses the device."""
    it = Scenario("upgrade in use", *layers(installed))
    it.machine.must(MAKE_NEWER + MAKE_COMPILED.format(release=it.release_of("floor")))
    new = package.module_version(newer_version())
    it.boots("the old module stays, and it says how to change it", f"{DRIVER} upgraded {COMPILED} {new}")
    it.boots("the new one is there after a reboot", f"{DRIVER} present")
    it.is_only(newer_version())
    return it


def two_kernels(base):
    """One apt command installs two kernels on a machine with the package and no kernel: one gets the driver, the other is too old."""
    it = Scenario("two kernels", *layers(base))
    old, new = it.release_of("old"), it.release_of("backports")
    it.machine.must(f"apt-get purge --yes {kernel_packages(FLOOR)}")
    it.does("the package is installed without a kernel", INSTALL)
    text = it.does("two kernels are installed", f"{NEW_KERNEL} linux-image-{old} linux-headers-{old}")
    it.has_built(text, toolroot.series(new))
    it.says_why_not(text, old, f"that needs Linux {FLOOR} or newer")
    it.boots(f"the driver is there with {new}", f"{DRIVER} present", release=new)
    return it


def rpm(base):
    """The RPM's scriptlets, run by rpm and DKMS on Debian, as no RPM distribution is available here."""
    it = Scenario("RPM", *layers(base))
    it.machine.must("apt-get install --yes rpm")
    text = it.does("the RPM is installed", f"rpm --install --nodeps {PACKAGES}/{package.rpm().name}")
    it.has_built(text, FLOOR)
    it.boots("the driver is there", f"{DRIVER} present")
    new = newer_version()
    text = it.does("a newer one is installed", f"rpm --upgrade --nodeps {PACKAGES}/{package.rpm(new).name}")
    it.has_built(text, FLOOR)
    it.is_only(new)
    it.boots(f"the driver is there with {new}", f"{DRIVER} present")
    it.explains_return(it.does("the RPM is removed", "rpm --erase efa-rs-dkms"))
    it.boots("there is none after a reboot", f"{DRIVER} absent")
    it.check("no file is left", it.machine.must(TRACES).splitlines())
    return it


def other_architecture(_base):
    """The same package on an arm64 machine. First only its programs are emulated, compilers included, and then the whole machine."""
    it = Scenario("arm64", architecture="arm64")
    package.deb()
    text = it.does("one command installs all that is needed", INSTALL)
    it.has_built(text, FLOOR)
    it.boots("the driver is there after a reboot", f"{DRIVER} present")
    it.does("the package is removed", "apt-get purge --yes efa-rs-dkms")
    it.check("no file is left", it.machine.must(TRACES).splitlines())
    return it


def emulator(_base):
    """Runs the guide's commands for two guests verbatim, as an ordinary user of a clean Debian 13, with an image that the tools make.

    The machine is not booted: its programs run on this host's CPU. Under TCG, guests of a guest would take hours.
    """
    it = Scenario("emulator", root=lab.host())
    deb, image = package.emulator_deb(), lab.image()
    block = match_in(GUIDE_COMMANDS, (cache.CLONE / GUIDE).read_text(), GUIDE)
    commands = [(line[0], line[2:]) for line in block[1].splitlines()]
    install, start = [command for user, command in commands if command != "apt update"]
    good = [user for user, _ in commands] == ["#", "#", "$"] and deb.name in install and start.endswith(f" {GUIDE_IMAGE}")
    it.check("the guide has a command that installs and one that starts", [] if good else [block[0]])
    it.does("one apt command installs all that is needed", f"cd {PACKAGES} && yes | {install}")
    it.machine.must("useradd --create-home user")
    options = f"--accel {qemu.accelerator()} --ssh-port {running.free_port(lab.GUESTS)}"
    script = f"cd && {start.replace(GUIDE_IMAGE, IMAGE)} {options}"
    text = it.does("one more gives two guests", f"runuser --user user -- env HOME=/home/user sh -c '{script}'", [(image, IMAGE, "ro")])
    it.check("they ping over EFA", [] if PING.search(text) else text.splitlines()[-25:])
    it.does("the package is removed", "rm -r /home/user/efa-lab; apt-get purge --yes efa-emu")
    it.check("no file is left", it.machine.must(EMULATOR_TRACES).splitlines())
    return it


def emulator_unit(_base):
    """Tests the emulator as a service."""
    it = Scenario("emulator's unit")
    deb = package.emulator_deb()
    it.does("the package is installed without what it recommends", f"apt-get install --yes --no-install-recommends {PACKAGES}/{deb.name}")
    it.boots("the unit works", f"/efa-rs/tests/install/emulator.py {PACKAGES}/{deb.name}", devices=())
    return it


# Scenarios, and whether they begin with a machine that has the driver's package. None: with a machine of their own.
SCENARIOS = {
    "emulator": (emulator, None),
    "emulator-unit": (emulator_unit, None),
    "in-guest": (in_guest, False),
    "cloud-image": (cloud_image, False),
    "upgrade": (upgrade, False),
    "new-version": (new_version, True),
    "broken-toolchain": (broken_toolchain, False),
    "full-disk": (full_disk, False),
    "interrupted": (interrupted, False),
    "older-kernel": (older_kernel, True),
    "administrator": (administrator, True),
    "secure-boot": (secure_boot, True),
    "insmod": (insmod, False),
    "coexistence": (coexistence, False),
    "amazons": (amazons, False),
    "no-network": (no_network, False),
    "in-use": (in_use, True),
    "two-kernels": (two_kernels, False),
    "rpm": (rpm, False),
    "arm64": (other_architecture, None),
}


def run(names=()):
    """Runs the scenarios, all or those that are named; returns the tally."""
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise Failure(f"There is no scenario {unknown[0]}: choose one of {', '.join(SCENARIOS)}.")
    chosen = {name: scenario for name, scenario in SCENARIOS.items() if not names or name in names}
    total, base, first = Tally(), None, None
    if any(after_install is not None for _, after_install in chosen.values()):
        package.deb()
        first = fresh()
        total += first.end()
        if first.tally.failed:
            return total
        base = depends(first)
    for name, (function, after_install) in chosen.items():
        try:
            it = function(first if after_install else base)
        except Failure as failure:
            steps.note(f"{name}: {failure}")
            total.fail(f"{name} could not run to its end")
            continue
        total += it.end()
        if not it.tally.failed:
            it.machine.remove()
    if first and not total.failed:
        for it in (base, first):
            namespace.remove(it.machine.folder)
    return total
