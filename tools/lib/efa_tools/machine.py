# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Machines: Debian systems with systemd that keep their changes from boot to boot, for the tests of packages.

A machine's root is an overlay of its changes over a root from the cache, so that a new machine costs nothing.
"""

import re
import shutil
import subprocess
from pathlib import Path

from . import build, cache, guest, layer, namespace, patience, qemu, steps, toolroot
from .failure import Failure, match_in

RECIPE = namespace.TOOLS / "machine"
LAYERS = "/run/efa-rs/layer"
MACHINE = "/run/efa-rs/machine"
# The id of the owner of keys in the firmware's variables.
OWNER = "0a1ef7a5-6d5b-4c0e-9f0e-0efa0efa0efa"
# Factor for a machine's time without output before its session, relative to a guest: systemd starts all other services before.
SLOW = 5
# Files of the firmware with Secure Boot: its code, and its variables.
FIRMWARE = ("firmware.code", "firmware.variables")
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
    virt-fw-vars --input /usr/share/OVMF/OVMF_VARS_4M.fd --output {MACHINE}/{{variables}} --secure-boot "$@"
    cp /usr/share/OVMF/OVMF_CODE_4M.secboot.fd {MACHINE}/{{code}}
"""
# The paragraph of the driver's package in debian/control, and its dependencies and recommendations.
PARAGRAPH = re.compile(r"^Package: efa-rs-dkms\n(?:.+\n)+", re.MULTILINE)
DEPENDS = re.compile(r"^(?:Depends|Recommends):((?:\n .*)+)", re.MULTILINE)


def wanted():
    """Returns the dependencies of the driver's package: the first of alternatives, without kernels and their sources."""
    text = match_in(PARAGRAPH, (cache.CLONE / "debian" / "control").read_text(), "debian/control")[0]
    fields = ",".join(DEPENDS.findall(text))
    names = {re.split(r"[|(]", field)[0].strip() for field in fields.split(",")}
    return sorted({"dkms", *(name for name in names if re.match(r"[a-z]", name) and not name.startswith("linux-"))})


def stock(architecture="amd64"):
    """The root of a machine on which nothing was installed."""
    packages = " ".join(wanted())
    files = [RECIPE / "root.sh", RECIPE / "efa-test.service"]

    def make(path):
        path.mkdir()
        with steps.step("machine") as log:
            command = ["sh", "/efa-rs/tools/machine/root.sh", f"{LAYERS}/root", packages, architecture]
            emulator = emulator_for(architecture)
            steps.run(layer.enter(command, [(path, LAYERS, "rw")], emulator=emulator), log, "Making the machine's root")

    key = cache.key(toolroot.key(), packages, architecture, *files)
    return cache.make(cache.folder("machine") / key, "the machine's root", 4, make) / "root"


def emulator_for(architecture):
    """Returns the emulator for programs of a machine that is not booted; None if this host's CPU runs them."""
    return toolroot.emulator() if architecture == "arm64" else None


class Boot(guest.Run):
    """One boot of a machine."""

    def __init__(self, machine, options):
        self.machine = machine
        super().__init__(options, qemu.accelerator())
        self.release = machine.release
        self.releases = [machine.release]

    def start_over(self):
        super().start_over()
        shutil.copy(self.machine.image, self.folder / "vmlinuz")
        for file in FIRMWARE if self.machine.secure else ():
            shutil.copy(self.machine.folder / file, self.folder / file)

    def serve_share(self, guest, tag, directory, policy, readonly, prefix=(), binds=()):
        """Serves the machine's own root, which is writable, in place of the toolroot."""
        if tag == "root":
            overlay = self.machine.overlay_inside()
            prefix = ("sh", "-c", f'mount -t overlay -o "{overlay.options()}" overlay {overlay.mount} && exec "$@"', "sh")
            directory, readonly, binds = str(overlay.mount), False, self.machine.binds()
        super().serve_share(guest, tag, directory, policy, readonly, prefix, binds)

    def image(self, guest):
        return f"{qemu.RUN}/vmlinuz", []

    def firmware(self):
        return qemu.secure_boot(*(f"{qemu.RUN}/{file}" for file in FIRMWARE)) if self.machine.secure else super().firmware()

    def init(self):
        """Returns parameters for systemd, whose limit of 90 seconds for the start of a service is too short for an emulated CPU.

        Units for updates after an exchange of /usr set the same limit. A machine from packages does not need them.
        """
        limit = patience.PATIENCE * self.boot_slowness()
        return f"rw efa-test systemd.default_timeout_start_sec={limit} systemd.condition_needs_update=0"

    def boot_slowness(self):
        return SLOW * super().boot_slowness()


class Machine:
    """A machine: a name for messages, and a root, which has LOWERS over ROOT, or over that of a stock machine."""

    def __init__(self, name, lowers=(), root=None, architecture="amd64"):
        self.name = name
        self.architecture = architecture
        self.emulator = emulator_for(architecture)
        self.lowers = [*lowers, root or stock(architecture)]
        self.folder = guest.new_folder()
        for part in ("upper", "work", "mount"):
            (self.folder / part).mkdir()
        self.image = self.folder / "vmlinuz"
        # Whether it boots with Secure Boot, see trust().
        self.secure = False
        self.release = ""
        self.count = 0

    def overlay(self):
        folder = self.folder
        return namespace.Overlay(self.lowers, folder / "mount", folder / "upper", folder / "work", user=bool(self.emulator))

    def overlay_inside(self):
        """Returns the overlay with its paths in the toolroot, which binds() mounts."""
        lowers = [Path(f"{LAYERS}{number}") for number in range(len(self.lowers))]
        upper, work = Path(MACHINE) / "upper", Path(MACHINE) / "work"
        return namespace.Overlay(lowers, Path("/mnt"), upper, work, user=bool(self.emulator))

    def binds(self):
        """Returns the mounts by which the toolroot has the parts of the root."""
        lowers = [(lower, f"{LAYERS}{number}", "ro") for number, lower in enumerate(self.lowers)]
        return [*lowers, (self.folder, MACHINE, "rw")]

    def offline(self, script, binds=()):
        """Runs a script in the machine's root without booting it; returns the exit status and the output."""
        own = [(self.folder, MACHINE, "rw"), (cache.CLONE, "/efa-rs", "ro"), (package_folder(), "/run/efa-rs/package", "ro")]
        binds = [*own, *binds]
        environment = {"DEBIAN_FRONTEND": "noninteractive"}
        command = namespace.enter(self.overlay(), ["sh", "-c", script], binds, environment, self.emulator)
        self.count += 1
        log = self.folder / f"offline{self.count}.log"
        with open(log, "w") as output:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        return status, log.read_text(errors="replace")

    def must(self, script):
        """Like offline(), for a script that must not fail; returns its output."""
        status, text = self.offline(script)
        if status:
            log = self.folder / f"offline{self.count}.log"
            what = f"{self.name}: '{script}' ended with status {status}"
            raise Failure(f"{steps.tail(log)}\n{what}. The end of its log is above, the rest is in {log}.")
        return text

    def choose_kernel(self, release=None):
        """Selects the kernel of a release, or, as GRUB does, the newest."""
        # The script has neither the mounts of a booted guest nor its /run.
        newest = "ls /boot/vmlinuz-* | sort -V | tail -n 1"
        choice = f"/boot/vmlinuz-{release}" if release else f"$({newest})"
        text = self.must(f"file={choice}; cp $file {MACHINE}/vmlinuz && echo $file")
        self.release = text.strip().split("vmlinuz-")[1]

    def trust(self, *certificates):
        """Enables Secure Boot for later boots. The firmware trusts the signers of the kernel, and CERTIFICATES, files in DER."""
        self.must(TRUST.format(code=FIRMWARE[0], variables=FIRMWARE[1], certificates=" ".join(certificates)))
        self.secure = True

    def boot(self, command, devices=("profile=efa2",), timeout=3600, memory="2G", release=None):
        """Boots the machine and runs a command; returns the exit status, the output, and the run."""
        self.choose_kernel(release)
        flavour = f"cloud-{self.architecture}"
        options = guest.Options(command, "none", flavour, list(devices), timeout=timeout, memory=memory, quiet=True)
        if options.devices:
            options.emulator = build.emulator()
        run = Boot(self, options)
        (run.shared / "package").mkdir()
        for file in package_folder().glob("*.deb"):
            shutil.copy(file, run.shared / "package")
        status = guest.execute(run)
        return status, (run.folder / "guest0.output.log").read_text(errors="replace"), run

    def remove(self):
        namespace.remove(self.folder)


def package_folder():
    return cache.clone_folder("package")
