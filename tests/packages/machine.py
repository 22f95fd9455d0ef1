# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Machines: Debian systems with systemd that keep their changes from boot to boot, and how packages and kernels change them.

A machine's root is an overlay of its changes over a root that tools/builds.mk has made, so that a new machine costs nothing.
"""

import contextlib
import fcntl
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from conftest import CLONE
from guests import BUILT, CACHE, Guests, in_user_namespace, mount, result

MACHINES = CACHE / "machines"
PACKAGES = "/run/efa-rs/package"
FOLDER = "/run/efa-rs/machine"
DRIVER = "/efa-rs/tests/packages/driver.sh"
# Factor for the time without output of a boot, relative to other guests: systemd starts all other services before.
SLOW = 5
# The id of the owner of keys in the firmware's variables.
OWNER = "0a1ef7a5-6d5b-4c0e-9f0e-0efa0efa0efa"
# The certificates of Debian's signature are in the kernel. The owner of the machine has a key of its own, which nothing is signed with.
TRUST = f"""
    set -eu
    apt-get install --yes --no-install-recommends ovmf openssl python3-virt-firmware sbsigntool
    cd "$(mktemp -d)"
    cp "$(ls /boot/vmlinuz-* | sort -V | tail -n 1)" kernel
    sbattach --detach signature kernel
    openssl pkcs7 -inform DER -in signature -print_certs -out kernel.pem
    openssl req -x509 -newkey rsa:2048 -nodes -days 36500 -subj /CN=owner -keyout owner.key -out owner.pem
    csplit --quiet --elide-empty-files --prefix=trusted. kernel.pem '/^-----BEGIN/' '{{{{*}}}}'
    for certificate in {{certificates}}; do
        openssl x509 -inform DER -in "$certificate" -out "trusted.$(basename "$certificate")"
    done
    set -- --set-pk {OWNER} owner.pem --add-kek {OWNER} owner.pem
    for certificate in $(grep -l '^-----BEGIN' trusted.*); do
        set -- "$@" --add-db {OWNER} "$certificate"
    done
    virt-fw-vars --input /usr/share/OVMF/OVMF_VARS_4M.fd --output {FOLDER}/variables --secure-boot "$@"
    cp /usr/share/OVMF/OVMF_CODE_4M.secboot.fd {FOLDER}/code
"""
# Runs a script in a machine's root, without network: "$1" has the overlay's options, "$2" the machine's folder, "$3" the script, and
# "$4" may be a file that is mounted at "$5".
OFFLINE = f"""
    set -e
    ip link set lo up
    mount -t overlay -o "$1" overlay "$2/mount"
    cd "$2/mount"
    mount -t proc proc proc
    mount --rbind /dev dev
    for folder in run tmp root; do
        mount -t tmpfs -o mode=1777 tmpfs $folder
    done
    mkdir -p .{PACKAGES} .{FOLDER}
    mount --bind "$2/package" .{PACKAGES}
    mount --bind "$2" .{FOLDER}
    mount --bind /efa-rs efa-rs
    [ -z "$4" ] || {{ : >".$5"; mount --bind "$4" ".$5"; }}
    exec chroot . env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 TERM=dumb DEBIAN_FRONTEND=noninteractive sh -c "$3"
"""
# The log that DKMS names after a failed build, and the driver's messages in it.
BUILD_LOG = re.compile(r"/var/lib/dkms/efa-rs/\S+/make\.log")
SENTENCE = re.compile(r"^efa-rs: .*$", re.MULTILINE)
# The release of Amazon's driver that is part of the module's version.
INTERFACE = re.findall(r'^#define EFA_INTERFACE "(.+)"$', (CLONE / "efa_rs/ffi/version.h").read_text(), re.MULTILINE)[0]


class Boot(Guests):
    """One boot of a machine."""

    WRITABLE = ("root",)
    POWER_OFF = "systemctl poweroff"

    def __init__(self, machine, **options):
        super().__init__(**options)
        self.machine = machine
        self.boot_patience *= SLOW
        # systemd's limit of 90 seconds for the start of a service is too short for an emulated CPU. Units for updates after an exchange
        # of /usr set the same limit. A machine from packages does not need them, nor ssh over a socket of VMs.
        self.INIT = f"rw efa-test systemd.default_timeout_start_sec={self.boot_patience}"
        self.INIT += " systemd.condition_needs_update=0 systemd.ssh_auto=no"

    def firmware(self):
        """Returns the options for the firmware, which has Secure Boot if the machine has."""
        if not self.machine.secure:
            return super().firmware()
        return [
            # Only the firmware, in system management mode, may write the variables.
            *("-machine", "smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on"),
            *("-drive", f"if=pflash,format=raw,unit=0,file={self.machine.folder}/code,readonly=on"),
            *("-drive", f"if=pflash,format=raw,unit=1,file={self.machine.folder}/variables,snapshot=on"),
        ]

    def root(self, _guest):
        """Mounts the machine's root."""
        shutil.copytree(self.machine.folder / "package", self.folder / "shared/package", dirs_exist_ok=True)
        root = self.folder / "mount0"
        root.mkdir()
        mount("-t", "overlay", "-o", self.machine.overlay(), "overlay", root)
        mount("--bind", "/efa-rs", root / "efa-rs")
        return root

    def image(self, _kernel):
        """Returns the kernel that the machine boots."""
        return self.machine.folder / "vmlinuz"


class Machine:
    """A machine: its root has LOWERS over ROOT, or over that of a Debian on which nothing was installed."""

    def __init__(self, lowers=(), root="machine", ktap=None):
        MACHINES.mkdir(exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(dir=MACHINES))
        self.lock = open(self.folder / "lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        for part in ("upper", "work", "mount", "package"):
            (self.folder / part).mkdir()
        for package in (file for name in ("deb", "emulator-deb", "rpm", "rpm-newer") for file in (BUILT / name).glob("efa-*")):
            shutil.copy(package, self.folder / "package")
        self.lowers = [*lowers, result(root) / "root"]
        self.ktap = ktap
        # Whether it boots with Secure Boot, see trust().
        self.secure = False
        self.release = ""

    def layers(self):
        """Returns the layers of this machine, with which another one begins."""
        return [self.folder / "upper", *self.lowers[:-1]]

    def overlay(self):
        """Returns the options of the root's mount."""
        upper = f"lowerdir={':'.join(map(str, self.lowers))},upperdir={self.folder}/upper,workdir={self.folder}/work"
        return upper + (",userxattr" if in_user_namespace() else "")

    def tried(self, script, source="", target=""):
        """Runs a script in the machine's root, which is not booted; returns its status and output."""
        isolate = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        command = [*isolate, "sh", "-c", OFFLINE, "sh", self.overlay(), self.folder, script, source, target]
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            status = subprocess.run([*map(str, command)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
            output.seek(0)
            return status, output.read()

    def does(self, script, *bind):
        """Runs a script that has to succeed; returns its output."""
        status, text = self.tried(script, *bind)
        assert status == 0, f"{script}: exit status {status}\n{text[-4000:]}"
        return text

    def fails(self, script, sentence):
        """Fails unless a script fails, and DKMS names a log whose last message matches SENTENCE: the cause and the remedy."""
        status, text = self.tried(script)
        assert status, f"{script} did not fail"
        log = BUILD_LOG.search(text)
        said = SENTENCE.findall(self.does(f"cat {log[0]}"))[-1:] if log else []
        assert said and re.search(sentence, said[0]), f"said {said}:\n{text[-4000:]}"

    def boots(self, command, devices=("profile=efa2",), release=None, what=""):
        """Boots the machine and runs a command, whose KTAP, or else exit status, has to be good; returns its output."""
        self.choose_kernel(release)
        environment = {"EFA_DRIVER": "rust"}
        with Boot(self, driver="none", devices=list(devices), memory="2G", environment=environment) as guests:
            done = guests.tried(command)
            if "KTAP version" in done.stdout:
                self.ktap(done, f"{what or command.split('/')[-1]}: ")
            assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout[-4000:]}"
        return done.stdout

    def choose_kernel(self, release=None):
        """Chooses the kernel of a release, or, as GRUB does, the newest."""
        choice = f"/boot/vmlinuz-{release}" if release else "$(ls /boot/vmlinuz-* | sort -V | tail -n 1)"
        text = self.does(f"file={choice}; cp $file {FOLDER}/vmlinuz && echo $file")
        self.release = text.strip().split("vmlinuz-")[1]

    def trust(self, *certificates):
        """Enables Secure Boot for later boots. The firmware trusts the signers of the kernel, and CERTIFICATES, files in DER."""
        self.does(TRUST.format(certificates=" ".join(certificates)))
        self.secure = True

    def release_of(self, which):
        """Returns the release of a kernel whose packages the machine has: floor, old or backports."""
        return dict(line.split() for line in self.does("cat /kernels").splitlines())[which]

    def kernel_is(self, series):
        """Fails unless a kernel of a series is what boots."""
        self.choose_kernel()
        assert self.release.startswith(f"{series}."), self.release

    def is_only(self, version):
        """Fails unless DKMS and the kernels have this version of the driver and no other."""
        module = module_version(version)
        script = "dkms status; for kernel in /lib/modules/*; do modinfo --set-version ${kernel##*/} --field version efa; done"
        lines = self.does(script).splitlines()
        assert lines[1:] and all(line == module or re.match(rf"efa-rs/{re.escape(version)}, .*: installed", line) for line in lines), lines

    def is_repaired(self, command):
        """Fails unless after a failed build the machine boots without driver, and one command installs it."""
        self.boots(f"{DRIVER} absent", what="after the failure")
        self.does(command)
        self.boots(f"{DRIVER} present", what="once it is repaired")

    def remove(self):
        """Removes the machine."""
        self.lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_abandoned():
    """Removes the machines of killed runs."""
    for folder in MACHINES.glob("*"):
        with contextlib.suppress(OSError), open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def module_version(version):
    """Returns the version of the module in the package with this version."""
    return f"{INTERFACE}-rs{version}"


def has_built(text, series):
    """Fails unless DKMS reports the installation of a module for a kernel of a series."""
    assert re.search(rf"Installing /lib/modules/{re.escape(series)}\..*/efa\.ko", text), f"not built for {series}:\n{text[-4000:]}"


def says(text, sentence):
    """Fails unless the driver's package says a sentence."""
    assert any(sentence in line for line in SENTENCE.findall(text)), f"'{sentence}' is not in:\n{text[-4000:]}"
