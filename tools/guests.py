# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Guests: virtual machines with a stock kernel and emulated EFA devices, in which programs run over ssh.

    with Guests(2, ["profile=efa3"], fabric="realistic") as guests:
        print(guests.run("ibv_devinfo", guest=1))

Only for programs in the root that tools/enter enters. What guests need was built by tools/builds.mk.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import console
import topology

CACHE, BUILT = Path("/cache"), Path("/run/built")
# Where guests see the folder `shared` of a run.
SHARED = "/run/efa-rs"
# Timeout in seconds of each wait. A longer one counts as a hang.
PATIENCE = int(os.environ.get("EFA_PATIENCE") or 120)
# The same for one program with many tests: several times the duration on a busy host.
LIMIT = 3600
# Factors of both for kernels that are slower.
SLOW = {"debug": 5, "cloud-arm64": 3, "arm64": 3, "arm64-16k": 3}
ARM64 = ("cloud-arm64", "arm64", "arm64-16k")
MACHINE = platform.machine()
BOOTS = 3
# Runs whose folders are kept.
KEPT_RUNS = 40
# Limit on devices with a slot each. Of more, eight share a slot: the root bus has 32 slots, of which the guest needs some for itself.
OWN_SLOTS, FIRST_SHARED_SLOT = 16, 0x10
# CPU flags of hardware virtualization. Without these, KVM is not Linux's own, and a stock kernel seems to hang under it.
VIRTUALIZATION = re.compile(r"^flags\s*:.*\b(?:vmx|svm)\b", re.MULTILINE)
# The rate of this host's counter in MHz, until the host reboots.
RATE = CACHE / f"rate-{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
# Exit status of ssh if the connection was lost.
LOST = 255
# Variables of tools/enter that mean nothing in a guest.
OF_THE_HOST = ("EFA_CLONE", "EFA_CACHE", "EFA_ROOT", "EFA_KEEP", "EFA_BINDS")
# Ratios of the rates of a kernel's clock and of this host's counter between which it is the same, as the host may change its speed.
SAME_RATE = (0.4, 2.5)


class GuestFailed(Exception):
    """A guest, its kernel or the emulator had a fault, so that results of programs mean nothing."""


class BootFailed(GuestFailed):
    """A boot met a fault of the emulated machine, and is repeated."""


class ProgramFailed(Exception):
    """A program in a guest ended with a bad exit status."""

    def __init__(self, text, done):
        super().__init__(text)
        self.output = done.stdout
        self.status = done.returncode


def wait_until(condition, what, seconds=PATIENCE, interval=0.05):
    """Waits until a condition is true; returns its value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise GuestFailed(f"{what}: not within {seconds:.0f} s (EFA_PATIENCE is {PATIENCE})")
        time.sleep(interval)
    return found


def lines_of(path):
    """Returns the lines of a file that are no comments."""
    return [line for line in Path(path).read_text().splitlines() if line and not line.startswith("#")]


def result(name):
    """Returns the folder of a result of tools/builds.mk."""
    link = BUILT / name
    if not link.exists():
        raise GuestFailed(f"{name} is not built: make -f tools/builds.mk {name}")
    return link.resolve()


def release(flavour):
    """Returns the release of a flavour's kernel, such as 7.3.4+deb13-cloud-amd64."""
    if flavour == "debug":
        return release("cloud-amd64").split("+")[0] + "-debug"
    series = lines_of("/efa-rs/tools/series")[0].split()[0]
    found = sorted(path.name for path in modules_of(flavour).glob(f"{series}*[0-9]-{flavour}"))
    if not found:
        raise GuestFailed(f"There is no kernel flavour {flavour}: see tools/series.")
    return found[-1]


def foreign(flavour):
    """Returns whether the flavour is for arm64 and this host is not. Only image/hosts.py runs on arm64."""
    return flavour in ARM64 and MACHINE != "aarch64"


def modules_of(flavour):
    return result("arm64") / "layer/usr/lib/modules" if foreign(flavour) else Path("/usr/lib/modules")


def accelerator(flavour):
    """Returns "kvm" if a guest really boots with it, else "tcg". The answer holds until the host reboots."""
    able = flavour in ARM64 or VIRTUALIZATION.search(Path("/proc/cpuinfo").read_text())
    if foreign(flavour) or not able or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    answer = CACHE / f"kvm-{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    if not answer.exists():
        kernel = result("kernel-cloud-arm64" if flavour in ARM64 else "kernel-cloud-amd64") / "image"
        machine, console = ("virt", "ttyAMA0") if flavour in ARM64 else ("q35 -bios qboot.rom", "ttyS0")
        words = f"qemu-system-{MACHINE} -nodefaults -no-reboot -display none -machine {machine} -accel kvm -cpu host -serial stdio"
        command = [*words.split(), "-kernel", str(kernel), "-append", f"console={console} panic=-1"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout
            # Without a root file system, the kernel ends there.
            answer.write_text("kvm" if "Unable to mount root" in said else "tcg")
    return answer.read_text() if answer.exists() else "tcg"


def option(description):
    return ["-device", json.dumps(description)]


@dataclass
class Guests:
    """A set of guests on one network, each with the same devices, and the emulator that they share."""

    count: int = 1
    # Options of efa-emu --device, one for each device; or an EC2 instance whose devices each guest has, see efa-emu --instance.
    devices: list[str] = field(default_factory=list)
    instance: str | None = None
    # "rust", "c", "none", or the name of another build of the module, such as "no_kverbs".
    driver: str = "rust"
    flavour: str = "cloud-amd64"
    # The flavour of all guests but the first, if it differs.
    others: str | None = None
    # "stable", or "next" for Debian's testing, with its rdma-core.
    userland: str = "stable"
    # A folder with changes to the guests' root, see tools/vm root.
    overlay: Path | None = None
    # A folder that guests see at /share, read-only.
    share: Path | None = None
    memory: str = ""
    cpus: int = 2
    cpu: str = "qemu64"
    # Whether each emulated CPU has a thread. One thread for all takes at most half the CPU time: no CPU spins for a lock whose owner is
    # not scheduled, or interrupts another thread.
    threads: bool = False
    # Properties of the network between the devices, see efa-emu --fabric, and the seed of its choices.
    fabric: str = "ideal"
    seed: int = 0
    # Whether devices reject requests that real ones are guessed to reject.
    guesses: bool = True
    # The emulator's build, more words for efa-emu, and kernel parameters.
    build: str = "emulator"
    emulator: list[str] = field(default_factory=list)
    append: str = ""
    # Whether each device is in a slot of its own, and guests have QEMU's monitor: see tools/guest/monitor.py.
    hotplug: bool = False
    # Size of the memory in the BAR of a further device of guest 0, which then has an IOMMU, too.
    memory_device: str | None = None
    # A plugin of QEMU that counts instructions: it needs one CPU, and devices without activity of their own.
    plugin: Path | None = None
    # Warnings that the kernel may give, as pairs of the function that warns and a caller.
    known_reports: list[tuple[str, str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    # What systems of their own do otherwise, see tests/packages/machine.py.
    WRITABLE: ClassVar[tuple[str, ...]] = ()
    INIT = "ro init=/efa-rs/tools/guest/init"
    POWER_OFF = "exec busybox poweroff -f"

    def __post_init__(self):
        self.processes: dict[str, subprocess.Popen] = {}
        self.folder = Path()
        self.seed = self.seed or int(os.environ.get("EFA_SEED") or 1)
        self.flavours = [self.flavour, *[self.others or self.flavour] * (self.count - 1)]
        self.slow = max(SLOW.get(flavour, 1) for flavour in self.flavours)
        self.memory = self.memory or ("2G" if self.slow > 1 else "1G")
        # Timeout in seconds of a boot without output.
        self.boot_patience = PATIENCE * self.slow
        self.accelerator = "tcg" if self.plugin else accelerator(self.flavour)

    def __enter__(self):
        for attempt in range(1, BOOTS + 1):
            try:
                self.boot()
                return self
            except BaseException as failure:
                self.stop()
                if not isinstance(failure, BootFailed) or attempt == BOOTS:
                    raise
        raise AssertionError

    def boot(self):
        runs = CACHE / "runs"
        runs.mkdir(exist_ok=True)
        discard_runs(runs)
        self.folder = Path(tempfile.mkdtemp(prefix=time.strftime("%m%d-%H%M%S-"), dir=runs))
        (self.folder / "shared/out").mkdir(parents=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "shared/key"], check=True)
        for name, prefix in (("config", self.folder), ("ssh_config", Path(os.environ["EFA_CACHE"], "runs", self.folder.name))):
            (self.folder / name).write_text(self.ssh_config(prefix))
        if self.devices or self.instance:
            self.serve_devices()
        for guest in range(self.count):
            self.start_guest(guest)
        for guest in range(self.count):
            self.await_guest(guest)

    def start(self, name, command, **streams):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **streams)

    def serve_devices(self):
        """Starts one emulator with the devices of all guests."""
        command = [result(self.build) / "efa-emu", "--control", f"{self.folder}/control", "--trace", f"{self.folder}/trace.log"]
        command += ["--fabric", self.fabric, "--seed", self.seed, *["--file-memory"] * bool(self.memory_device), *self.emulator]
        for guest in range(self.count):
            sockets = f"{self.folder}/efa{guest}."
            command += ["--instance", f"{self.instance},socket={sockets}"] if self.instance else []
            # Options of a device override this one, so they follow it.
            strict = "strict=guesses," if self.guesses else ""
            for number, device in enumerate(self.devices):
                command += ["--device", f"{strict}{device},socket={sockets}{number}"]
        self.start("efa-emu", command)
        # The emulator makes this socket last.
        self.await_sockets("control")

    def await_sockets(self, *names):
        def ready():
            self.check_processes()
            return all((self.folder / name).exists() for name in names)

        wait_until(ready, f"sockets {names} in {self.folder}", interval=0.02)

    def serve(self, guest):
        """Serves the root, the run's folder and that of the host to a guest."""
        folders = {"root": self.root(guest), "run": f"{self.folder}/shared", **({"share": self.share} if self.share else {})}
        for tag, folder in folders.items():
            command = ["/usr/libexec/virtiofsd", "--sandbox", "none", "--modcaps=-mknod", "--no-announce-submounts", "--shared-dir", folder]
            command += ["--socket-path", f"{self.folder}/{tag}{guest}", "--cache", "always" if tag == "root" else "auto"]
            command += ["--readonly"] * (tag not in ("run", *self.WRITABLE))
            self.start(f"virtiofsd-{tag}-{guest}", command)
        self.await_sockets(*(f"{tag}{guest}" for tag in folders))

    def root(self, guest):
        """Returns the guest's root: this one, or another with the clone, the cache and the kernel's modules mounted in it."""
        flavour = self.flavours[guest]
        if self.userland == "stable" and not foreign(flavour) and not self.overlay:
            return "/"
        name = "arm64-userland" if foreign(flavour) else "next" if self.userland == "next" else ""
        lower = result(name) / "root" if name else Path("/")
        root = self.folder / f"mount{guest}"
        root.mkdir()
        if self.overlay:
            check_overlay(self.overlay, lower)
            options = f"lowerdir={self.overlay}/upper:{lower}{',userxattr' if in_user_namespace() else ''}"
            mount("-t", "overlay", "-o", options, "overlay", root)
        else:
            mount("--bind", lower, root)
        for source, target in ((modules_of(flavour), "usr/lib/modules"), ("/efa-rs", "efa-rs"), (CACHE, "cache")):
            mount("--bind", source, root / target)
        return root

    def start_guest(self, guest):
        flavour = self.flavours[guest]
        shared = self.folder / f"shared/guest{guest}"
        shared.mkdir()
        module = "" if self.driver == "none" else result(f"{self.driver}-{flavour}") / "efa.ko"
        kernel = result(f"kernel-{flavour}")
        environment = {
            **{name: value for name, value in os.environ.items() if name.startswith("EFA_") and name not in OF_THE_HOST},
            **{"EFA_DRIVER": "rust" if self.driver == "no_kverbs" else self.driver, "EFA_FLAVOUR": flavour, "EFA_KO": module},
            **{"EFA_GUEST": guest, "EFA_GUESTS": self.count, "EFA_SEED": self.seed},
            **({"EFA_SLOW_KERNEL": self.slow} if self.slow > 1 else {}),
            **self.environment,
        }
        modules = kernel / "build/lib/modules" / release(flavour) if flavour == "debug" else ""
        settings = {"ko": module, "guests": self.count, "modules": modules, "slots": "1" if self.hotplug else "", "share": self.share or ""}
        settings["environment"] = " ".join(f'"{name}={value}"' for name, value in environment.items())
        (shared / "settings").write_text("".join(f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items()))
        self.serve(guest)
        self.start(f"qemu-{guest}", self.qemu(guest, self.image(kernel)))

    def image(self, kernel):
        """Returns the image in the folder of a kernel."""
        return kernel / "image"

    def qemu(self, guest, kernel):
        """Returns the command line of a guest's QEMU."""
        run, flavour = self.folder, self.flavours[guest]
        arm64 = flavour in ARM64
        where = topology.of(None if arm64 or self.hotplug else self.instance)
        tty = "ttyAMA0" if arm64 else "ttyS0"
        append = f"{self.append} console={tty} no_timer_check root=root rootfstype=virtiofs {self.INIT} panic=-1"
        # On a busy host, a task may wait for longer than the 20 s after which the kernel reports a stall or a lockup.
        stall, lockup = min(300, self.boot_patience), min(60, self.boot_patience // 2)
        append = f"{append} rcupdate.rcu_cpu_stall_timeout={stall} watchdog_thresh={lockup}"
        turns = "" if self.accelerator == "kvm" or self.threads else ",thread=single"
        # Graviton2's CPU supports pages of 16 KiB, and has no feature that is expensive to emulate.
        cpu = "host" if self.accelerator == "kvm" else "neoverse-n1" if arm64 else self.cpu
        if self.plugin:
            # Otherwise it is random whether an interrupt finds the TSC unstable, or has to catch up with the clock because the idle loop
            # had stopped the tick. Memory is copied and cleared by one instruction, as on the CPUs of EC2.
            append, cpu = f"{append} tsc=unstable nohz=off", f"{cpu},+erms,+fsrm"
        if flavour == "debug":
            # This kernel is too slow to check the TSC's calibration, and would wait a minute for entropy.
            append, cpu = f"{append} tsc=unstable", f"{cpu},+rdrand"
        elif not arm64 and not self.plugin and RATE.exists():
            # A late timer of a busy host would spoil the kernel's measurement.
            append = f"{append} tsc_early_khz={float(RATE.read_text()) * 1000:.0f}"
        if self.memory_device and not guest:
            # Linux allows peer-to-peer DMA if it knows the host bridge, or if the CPU is one of AMD's since Zen (family 23).
            append, cpu = f"{append} iommu=pt", f"{cpu},family=23"
        accel = f"{self.accelerator}{turns}"
        program = result("arm64") / "layer/usr/bin/qemu-system-aarch64" if foreign(flavour) else f"qemu-system-{MACHINE}"
        command = [program, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
        if arm64:
            command += ["-machine", "virt,gic-version=3", "-accel", accel, "-cpu", cpu]
        else:
            # qboot sets up only the first root bus.
            command += ["-machine", "q35", "-accel", accel, "-cpu", cpu, *([] if where.buses else self.firmware())]
            # The instance's id, by which libfabric distinguishes hosts.
            command += ["-smbios", f"type=2,asset=i-{0xEFA000 + guest:017x}"]
        command += [*resources(self.memory, self.cpus, where.nodes), "-kernel", kernel]
        command += ["-append", f"{append.strip()} GUEST={guest}", "-serial", f"file:{run}/console{guest}"]
        for tag in ("root", "run", *["share"] * bool(self.share)):
            # virtiofsd limits requests to its host's idea of 1 MiB in pages, and a request has as many pages as the queue has entries.
            share = {"driver": "vhost-user-fs-pci", "chardev": tag, "tag": tag, "queue-size": 64 if flavour == "arm64-16k" else 1024}
            command += ["-chardev", f"socket,id={tag},path={run}/{tag}{guest}", *option(share)]
        command += ["-netdev", f"user,id=host,net=10.0.1.0/24,restrict=on,ipv6=off,hostfwd=unix:{run}/ssh{guest}-10.0.1.1:22"]
        command += option({"driver": "virtio-net-pci", "netdev": "host", "mac": "52:54:00:ef:a1:00", "romfile": ""})
        command += self.network(guest)
        if self.memory_device and not guest:
            command += memory_device(run / "shared/bar", self.memory_device)
        devices = [self.efa(path) for path in sorted(run.glob(f"efa{guest}.*"), key=lambda path: int(path.suffix[1:]))]
        command += ["-device", "virtio-serial-pci"]
        if devices:
            command += ["-chardev", f"socket,id=control,path={run}/control"]
            command += ["-device", "virtserialport,chardev=control,name=efa-emu.control"]
        if self.hotplug:
            (run / f"shared/guest{guest}/slots").write_text("".join(f"{json.dumps(device)}\n" for device in devices))
            command += hotplug(devices, f"{run}/monitor{guest}", arm64)
        else:
            parts, places = where.places(len(devices))
            places = places or [place(number, len(devices)) for number in range(len(devices))]
            for description in [*parts, *({**device, **at} for device, at in zip(devices, places, strict=True))]:
                command += option(description)
        if self.plugin:
            command += ["-plugin", f"file={self.plugin},output={run}/counts"]
        return command

    def firmware(self):
        """Returns the options for the firmware: qboot starts a kernel without delay."""
        return ["-bios", "qboot.rom"]

    def efa(self, path):
        # QEMU takes a device that does not answer for so long for a failed one. Its default of 5 s is too short on a busy host.
        device = {"driver": "vfio-user-pci", "rombar": 0, "x-msg-timeout": PATIENCE * 1000, "socket": {"type": "unix", "path": str(path)}}
        return {**device, "x-no-posted-writes": True} if self.plugin else device

    def network(self, guest):
        """Returns a network card on a hub, which is in guest 0 and to which the others connect."""
        if self.count == 1:
            return []
        command = option({"driver": "virtio-net-pci", "netdev": "card", "mac": f"52:54:00:ef:a0:{guest:02x}", "romfile": ""})
        if guest:
            return [*command, "-netdev", f"stream,id=card,server=off,addr.type=unix,addr.path={self.folder}/net{guest},reconnect-ms=200"]
        command += ["-netdev", "hubport,id=card,hubid=0"]
        for other in range(1, self.count):
            command += ["-netdev", f"stream,id=guest{other},server=on,addr.type=unix,addr.path={self.folder}/net{other}"]
            command += ["-netdev", f"hubport,id=port{other},hubid=0,netdev=guest{other}"]
        return command

    def await_guest(self, guest):
        """Waits until a guest accepts connections. Even a slow boot prints something from time to time."""
        shared, log = self.folder / f"shared/guest{guest}", self.folder / f"console{guest}"
        printed, end = 0, 0.0
        while not (shared / "ready").exists():
            self.check_boot(guest)
            self.check_processes()
            size = log.stat().st_size if log.exists() else 0
            if size != printed or not end:
                printed, end = size, time.monotonic() + self.boot_patience
            if time.monotonic() > end:
                raise GuestFailed(f"guest {guest} printed nothing for {self.boot_patience} s (EFA_PATIENCE): {self.console(guest)}")
            time.sleep(0.1)
        self.check_boot(guest)
        quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        master = [*self.ssh(guest), "-M", "-N", "-f", "-o", "ControlPersist=yes", f"guest{guest}"]
        what = f"guest {guest} accepts connections"
        wait_until(lambda: subprocess.run(master, **quiet, check=False).returncode == 0, what, PATIENCE * self.slow, 0.3)

    def check_boot(self, guest):
        """Fails if the emulated machine has misled the kernel, by a late timer or by an outdated instruction of another thread."""
        if self.accelerator == "kvm" or not (self.folder / f"console{guest}").exists():
            return
        text = self.log(guest)
        # A kernel that was told the rate measures it nevertheless, without effect.
        if "tsc_early_khz=" not in text and ("PIT calibration deviates" in text or self.clock_is_wrong(text)):
            raise BootFailed(f"guest {guest} has calibrated its clock wrongly: {self.console(guest)}")
        if "Oops: int3" in text and not (self.folder / f"shared/guest{guest}/ready").exists():
            raise BootFailed(f"guest {guest} ran an instruction that its kernel was patching: {self.console(guest)}")

    def clock_is_wrong(self, text):
        """Whether a kernel's clock has another rate than this host's counter, which is what an emulated CPU's is."""
        mine = re.search(r"^cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        found = re.search(r"tsc: Detected ([\d.]+) MHz processor", text)
        return bool(mine and found and not SAME_RATE[0] < float(found[1]) / float(mine[1]) < SAME_RATE[1])

    def learn_rate(self, guest):
        """Keeps the rate of the counter, which the kernel has measured in two ways, for later boots: they need not measure it."""
        if (found := re.search(r"tsc: Refined TSC clocksource calibration: ([\d.]+) MHz", self.log(guest))) and not RATE.exists():
            # At once, as others may read it.
            kept = self.folder / "rate"
            kept.write_text(found[1])
            kept.rename(RATE)

    def ssh_config(self, folder):
        """Returns the settings of ssh for programs that see the run at FOLDER. The proxy hands over a connection to QEMU's socket."""
        connect = (
            "import socket as s, sys; c = s.socket(s.AF_UNIX); c.connect(sys.argv[1]); s.send_fds(s.socket(fileno=1), [b'x'], [c.fileno()])"
        )
        common = f"""Host guest*
            User root
            StrictHostKeyChecking no
            UserKnownHostsFile /dev/null
            LogLevel ERROR
            IdentityFile "{folder}/shared/key"
            IdentitiesOnly yes
            ProxyUseFdpass yes
            ServerAliveInterval 60
            ServerAliveCountMax 30
        """
        hosts = (f'Host guest{guest}\nProxyCommand python3 -c "{connect}" "{folder}/ssh{guest}"\n' for guest in range(self.count))
        return "\n".join([common, *hosts])

    def ssh(self, guest):
        return ["ssh", "-F", f"{self.folder}/config", "-o", f"ControlPath={self.folder}/to{guest}"]

    def popen(self, command, guest=0, **options):
        """Starts a shell command in a guest; returns the process of ssh."""
        options = {"stdin": subprocess.DEVNULL, "text": True, "errors": "replace", **options}
        return subprocess.Popen([*self.ssh(guest), f"guest{guest}", command], **options)

    def tried(self, command, guest=0, timeout=LIMIT, **options):
        """Runs a shell command in a guest; returns its output and status. Fails if the guest or the emulator ends meanwhile."""
        with self.popen(command, guest, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options) as process:
            try:
                said, _ = process.communicate(timeout=timeout * self.slow)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
                raise GuestFailed(f"guest {guest}: {command}: no end within {timeout * self.slow:.0f} s\n{said[-3000:]}") from None
            except BaseException:
                process.kill()
                raise
        if process.returncode == LOST:
            # The end of a guest may be seen before that of its QEMU.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[f"qemu-{guest}"].wait(5)
            self.check_processes()
            self.check_console(guest)
            if self.processes[f"qemu-{guest}"].poll() is not None:
                raise GuestFailed(f"guest {guest} ended during: {command}\n{said[-2000:]}{self.console(guest)}")
        return subprocess.CompletedProcess(command, process.returncode, said.replace("\0", ""), "")

    def run(self, command, guest=0, timeout=LIMIT, **options):
        """Runs a shell command that has to succeed; returns its output."""
        done = self.tried(command, guest, timeout, **options)
        if done.returncode:
            raise ProgramFailed(f"guest {guest}: {command}: exit status {done.returncode}\n{done.stdout[-4000:]}", done)
        return done.stdout

    def control(self, *requests):
        """Sends requests to the emulator, dicts or JSON; returns the contents of the replies, of one request alone."""
        replies = []
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "control"))
            stream = connection.makefile("rw")
            for request in requests:
                stream.write((request if isinstance(request, str) else json.dumps(request)) + "\n")
                stream.flush()
                reply = json.loads(stream.readline())
                if "ok" not in reply:
                    raise GuestFailed(f"the emulator replies {reply} to {request}")
                replies.append(reply["ok"])
        return replies if len(requests) > 1 else replies[0]

    def log(self, guest):
        return (self.folder / f"console{guest}").read_text(errors="replace")

    def console(self, guest):
        """Returns the end of a guest's console, and where the rest is."""
        tail = "\n".join(f"    {line}" for line in self.log(guest).splitlines()[-40:])
        where = f"{os.environ['EFA_CACHE']}/runs/{self.folder.name}/console{guest}"
        return f"the console of guest {guest} ends with:\n{tail}\nthe rest is in {where}"

    def check_processes(self):
        """Fails if a program that serves the guests has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None and not name.startswith("qemu"):
                guest = name.rpartition("-")[2]
                if name == "efa-emu" or self.processes.get(f"qemu-{guest}") is None or self.processes[f"qemu-{guest}"].poll() is None:
                    tail = "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-20:])
                    raise GuestFailed(f"{name} ended with {process.returncode}:\n{tail}")
            elif process.poll() is not None and not (self.folder / f"shared/guest{name[5:]}/ready").exists():
                tail = (self.folder / f"{name}.log").read_text(errors="replace")
                said = f"{tail[-2000:]}{self.console(name[5:])}"
                raise GuestFailed(f"guest {name[5:]} ended before it had booted ({process.returncode}): {said}")

    def check_console(self, guest):
        """Fails if a guest's kernel reported trouble; returns the number of known reports."""
        text, dropped = console.without(self.log(guest), self.known_reports)
        if found := console.trouble(text):
            shown = "\n".join(f"    {line}" for line in found)
            raise GuestFailed(f"the kernel of guest {guest} reported trouble:\n{shown}\n{self.console(guest)}")
        return dropped

    def check(self):
        """Fails if a kernel or the emulator had a fault."""
        for guest in range(self.count):
            self.learn_rate(guest)
            dropped = self.check_console(guest)
            tainted = self.folder / f"shared/guest{guest}/tainted"
            if tainted.exists() and (taint := console.unexpected_taint(tainted.read_text(), console.WARNING_TAINT if dropped else 0)):
                raise GuestFailed(f"the kernel of guest {guest} ended with the unexpected taint {taint}: {self.console(guest)}")
        log = self.folder / "efa-emu.log"
        if log.exists() and "panicked at" in (said := log.read_text(errors="replace")):
            raise GuestFailed(f"efa-emu panicked:\n{said[-3000:]}")

    def power_off(self):
        """Powers the guests off, and waits for their ends."""
        for guest in range(self.count):
            if self.processes[f"qemu-{guest}"].poll() is None:
                off = f"cat /proc/sys/kernel/tainted >{SHARED}/guest{guest}/tainted; sync; {self.POWER_OFF}"
                with contextlib.suppress(GuestFailed):
                    self.tried(off, guest, timeout=PATIENCE)
        for guest in range(self.count):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[f"qemu-{guest}"].wait(PATIENCE)

    def __exit__(self, kind, *_):
        try:
            if kind is None or issubclass(kind, Exception):
                self.power_off()
        finally:
            self.stop()
        if kind is None:
            self.check()

    def stop(self):
        """Ends all processes: the emulator by SIGTERM, so that it completes its trace."""
        if (emulator := self.processes.get("efa-emu")) and emulator.poll() is None:
            emulator.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                emulator.wait(PATIENCE)
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()
        for path in self.folder.glob("*"):
            if path.is_socket():
                path.unlink(missing_ok=True)
            elif path.name.startswith("mount"):
                subprocess.run(["umount", "-R", path], check=False)


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)


def in_user_namespace():
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def check_overlay(folder, lower):
    """Fails unless a folder has changes to this root."""
    made_of = (folder / "of").read_text() if (folder / "of").exists() else ""
    if made_of != f"{os.environ['EFA_ROOT']} {lower.resolve()}":
        raise GuestFailed(f"{folder} has no changes to the present root: make them by tools/vm root {folder} COMMAND.")
    # Never closed: the end of this process releases the lock.
    lock = os.open(folder / "lock", os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise GuestFailed(f"The root {folder} is being changed: wait until that is over.") from None


def discard_runs(runs):
    """Removes the folders of old runs, as other programs may do at the same time."""
    ages = {}
    for folder in runs.iterdir():
        with contextlib.suppress(FileNotFoundError):
            ages[folder] = folder.stat().st_mtime
    for folder in sorted(ages, key=ages.__getitem__)[:-KEPT_RUNS]:
        if ages[folder] < time.time() - 3600:
            shutil.rmtree(folder, ignore_errors=True)


def resources(memory, cpus, nodes):
    """Returns the options for CPUs, and for memory that other processes can map, divided between nodes in their order."""
    if nodes == 1:
        backend = f"memory-backend-memfd,id=memory,size={memory},share=on"
        return ["-smp", str(cpus), "-m", memory, "-machine", "memory-backend=memory", "-object", backend]
    megabytes = int(memory[:-1]) * {"M": 1, "G": 1024}[memory[-1]]
    # Linux warns if CPUs of one socket, which share a cache, belong to several nodes.
    options = ["-m", memory, "-smp", f"{cpus},sockets={cpus}"]
    for node in range(nodes):
        first, end = cpus * node // nodes, cpus * (node + 1) // nodes
        share = megabytes * (node + 1) // nodes - megabytes * node // nodes
        options += ["-object", f"memory-backend-memfd,id=memory{node},size={share}M,share=on"]
        options += ["-numa", f"node,nodeid={node},memdev=memory{node}" + (f",cpus={first}-{end - 1}" if first < end else "")]
    return options


def place(number, count):
    """Returns where device NUMBER of COUNT is: in the next free slot or, if there are too many, the next function."""
    if count <= OWN_SLOTS:
        return {}
    return {"addr": f"{FIRST_SHARED_SLOT + number // 8:x}.{number % 8}", "multifunction": True}


def memory_device(file, size):
    """Returns a device with SIZE bytes of memory in its BAR 2, which is FILE, in a slot of its own, and an IOMMU for it."""
    return [
        # caching-mode lets devices outside of QEMU follow the IOMMU's mappings.
        *option({"driver": "intel-iommu", "caching-mode": True}),
        *("-object", f"memory-backend-file,id=bar,mem-path={file},size={size},share=on"),
        *option({"driver": "pcie-root-port", "id": "memory-port", "chassis": 2, "slot": 1}),
        *option({"driver": "ivshmem-plain", "id": "memory-device", "memdev": "bar", "bus": "memory-port"}),
    ]


def hotplug(devices, monitor, arm64):
    """Returns devices in slots of their own, which Linux's pciehp manages, and QEMU's monitor as a port of the guest.

    QEMU listens at MONITOR and connects to itself. See tools/guest/monitor.py.
    """
    # The port has no power controller: when a guest switches a slot off, QEMU deletes its device. Up to 11.1, QEMU aborts then for a
    # vfio-user device, as vfio_user_msix_teardown() tears MSI-X down twice.
    port = {"driver": "pcie-root-port", "chassis": 1, "power_controller_present": False, **topology.LINK}
    options = [] if arm64 else ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]
    # The firmware numbers buses from the last port on. In this order of ports, the devices' addresses are in order.
    for position, number in enumerate(reversed(range(len(devices)))):
        options += option({**port, "id": f"port{number}", "port": number, "slot": number + 1, **place(position, len(devices))})
    for number, description in enumerate(devices):
        options += option({**description, "id": f"efa{number}", "bus": f"port{number}"})
    return [
        *options,
        *("-chardev", f"socket,id=monitor,path={monitor},server=on,wait=off", "-object", "monitor-qmp,id=monitor,chardev=monitor"),
        *("-chardev", f"socket,id=monitor-port,path={monitor}", "-device", "virtserialport,chardev=monitor-port,name=qemu.monitor"),
    ]
