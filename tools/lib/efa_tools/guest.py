# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Boots guests with emulated devices, runs a command in them and reports the result."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from . import arm64, build, cache, console, namespace, overlay, patience, qemu, running, stalls, steps, times, toolroot, topology, userland
from .failure import Failure, sentence
from .processes import Process

RUN = qemu.RUN
SHARE = "/run/efa-rs/share"
# Runs that are kept of each clone: the newest KEPT_RUNS, and those of the last YOUNG seconds.
KEPT_RUNS, YOUNG = 20, 3600
# File in a run folder with the path of its clone. A folder without it has no clone any more.
CLONE_FILE = "clone"
# File in a run folder that is never removed.
KEEP_FILE = "keep"
# The factor by which the debug kernel is slower.
DEBUG_SLOW = 5
BOOT_ATTEMPTS = 3
# The error of each boot that this process has repeated.
boots_repeated = []


class BootFailed(Failure):
    """A kernel met QEMU's known fault before its first process, after which the boot is repeated.

    Under TCG with several threads, a CPU can run an outdated instruction. It can be a breakpoint of another CPU that patched the kernel.
    The kernel does not expect this breakpoint any more.
    """


@dataclass
class Options:
    """The configuration of a run. Without a command, a guest runs an interactive shell."""

    command: str | None
    driver: str = "rust"
    flavour: str = "cloud-amd64"
    devices: list[str] = field(default_factory=list)
    # An EC2 instance whose devices each guest has, in place of `devices`: see efa-emu --instance.
    instance: str | None = None
    userland: str = userland.STABLE
    # The folder of a changed root: see overlay.py.
    overlay: Path | None = None
    guests: int = 1
    # Whether all guests end with the command of guest 0, which can run programs in the others through their agents.
    leader: bool = False
    timeout: float = 600
    memory: str = "1G"
    cpus: int = 2
    # The CPU's model without KVM. The suites need the least.
    cpu: str = qemu.LEAST
    emulator: Path | None = None
    module: Path | None = None
    scenario: Path | None = None
    # Whether each emulated CPU has a TCG thread. One thread for all (`thread=single`) takes at most half the CPU time: no CPU spins
    # for a lock whose owner is not scheduled, or interrupts another thread.
    threads: bool = False
    # Properties of the network between the devices: see efa-emu --fabric.
    fabric: str = "ideal"
    # Whether devices reject requests that real devices are guessed to reject: see efa-emu --device. The suites make no such request.
    guesses: bool = True
    # Further words of efa-emu's command line.
    emulator_options: list[str] = field(default_factory=list)
    # A folder of the host that guests see at /share.
    share: Path | None = None
    # The run folder, which is new or empty. None: a folder in the cache.
    output: Path | None = None
    # Whether the run folder is kept regardless of the number of later runs.
    keep: bool = False
    quiet: bool = False
    # Seed of the run's random choices, mainly those of the network. By default it depends on the command.
    seed: int | None = None
    # Called with each line of the commands' output.
    watch: Callable[[str], None] | None = None
    known_reports: list[tuple[str, str]] = field(default_factory=list)
    # Further kernel parameters.
    append: str = ""
    # Whether guests also run programs on request from outside: see running.py.
    agent: bool = False
    # Whether each device is in a slot of its own, and the guest has QEMU's monitor: see tools/guest/monitor.py.
    hotplug: bool = False
    # Size of the memory in the BAR of a further device of guest 0, which then also has an IOMMU: see tests/peer.
    memory_device: str | None = None
    # Whether guests can read the host's stalls, see stalls.py.
    stalls: bool = False
    # QEMU plugin that counts instructions. It needs TCG, one CPU and devices without activity of their own.
    plugin: Path | None = None
    # The kernel flavour of all guests but the first, if it differs, and the module for that kernel.
    others: str | None = None
    others_module: Path | None = None

    def flavours(self):
        """Returns the kernel flavour of each guest."""
        return [self.flavour, *[self.others or self.flavour] * (self.guests - 1)]

    def emulated(self):
        """Whether guests have devices."""
        return bool(self.devices or self.instance)


def seed_of(name):
    """Returns a seed for random choices: EFA_SEED, or else a number that depends only on NAME."""
    return int(os.environ.get("EFA_SEED") or int(cache.key(name), 16) % (1 << 24))


class Run:
    """A run folder and the processes of one run."""

    def __init__(self, options, accelerator):
        self.options = options
        self.accelerator = accelerator
        self.release = toolroot.kernel(options.flavour)
        self.releases = [toolroot.kernel(flavour) for flavour in options.flavours()]
        # Set by start_over().
        self.folder: Path = None  # type: ignore[assignment]
        self.seed = options.seed if options.seed is not None else seed_of(options.command or "")
        self.start_over()

    def start_over(self):
        """Makes the run folder."""
        options = self.options
        self.folder = output_folder(options.output, self.folder) if options.output else new_folder(options.keep)
        self.shared = self.folder / "shared"
        (self.shared / "out").mkdir(parents=True)
        self.processes = {}
        self.copiers = []
        # The guests that were notified of guest 0's end.
        self.notified = set()
        # Deadlines for dependants of programs that have ended.
        self.ends = {}
        # Programs that did not end on request.
        self.hung = []
        # Number of devices of each guest.
        self.devices = 0
        if modules := build.modules(self.release):
            shutil.copytree(modules, self.shared / "modules", ignore=shutil.ignore_patterns("build", "efa.ko"))
        # Copies: another run may rebuild these meanwhile.
        if options.module:
            shutil.copy(options.module, self.shared / "efa.ko")
        if options.others_module:
            shutil.copy(options.others_module, self.shared / "efa.others.ko")
        if options.emulated():
            shutil.copy(options.emulator, self.folder / "efa-emu")
        if options.plugin:
            shutil.copy(options.plugin, self.folder / "plugin.so")
        if options.agent or options.leader:
            running.make_token(self.shared)
        if options.agent:
            running.announce(self.folder, options.guests)

    def start(self, name, command, binds=(), **streams):
        """Starts a program of the toolroot, with the run folder at RUN."""
        binds = [(self.folder, RUN, "rw"), *binds]
        log = self.folder / f"{name}.log"
        if "stdout" not in streams:
            streams["stdout"] = open(log, "w")
        if "stderr" not in streams:
            streams["stderr"] = open(log, "a")
        streams.setdefault("stdin", subprocess.DEVNULL)
        # The program has a process group of its own: the terminal's Ctrl-C reaches only this process, which ends the others in order.
        group = None if streams["stdin"] is None else 0
        # The root for another architecture also has the programs of the toolroot.
        release = next(filter(arm64.is_release, self.releases), self.release)
        process = Process(build.in_toolroot(command, binds, release=release), process_group=group, **streams)
        self.processes[name] = process
        return process

    def await_sockets(self, name, sockets):
        def ready():
            if self.processes[name].poll() is not None:
                raise Failure(f"{steps.tail(self.folder / f'{name}.log')}\n{name} did not start: see above.")
            return all((self.folder / socket).exists() for socket in sockets)

        patience.wait_until(ready, f"{name}, whose log is {self.folder / f'{name}.log'}, did not start", interval=0.02)

    def serve_shares(self, guest):
        """Serves the userland, the clone, the run's results and --share to a guest, each by a virtiofsd of its own."""
        options, prefix = self.options, ()
        if options.overlay:
            root, binds, prefix = overlay.share(options.overlay, options.userland, self.releases[guest])
        else:
            root, binds = userland.share(options.userland, self.releases[guest])
        shares = {"root": (root, "always"), "efa-rs": ("/efa-rs", "auto"), "run": (f"{RUN}/shared", "auto")}
        if self.options.share:
            shares["share"] = (SHARE, "auto")
            binds = [*binds, (self.options.share.resolve(), SHARE, "ro")]
        for tag, (directory, policy) in shares.items():
            before = prefix if tag == "root" else ()
            self.serve_share(guest, tag, directory, policy, readonly=tag != "run", prefix=before, binds=binds)
        for tag in shares:
            self.await_sockets(f"virtiofsd-{tag}-{guest}", [f"{tag}{guest}"])

    def serve_share(self, guest, tag, directory, policy, readonly, prefix=(), binds=()):
        """Starts a virtiofsd; PREFIX is a command that runs it."""
        command = [
            *("/usr/libexec/virtiofsd", "--shared-dir", directory, "--socket-path", f"{RUN}/{tag}{guest}"),
            *("--sandbox", "none", "--no-announce-submounts", "--cache", policy),
        ]
        self.start(f"virtiofsd-{tag}-{guest}", [*prefix, *command, *["--readonly"] * readonly], binds)

    def serve_devices(self):
        """Starts one emulator with the devices of all guests."""
        options = self.options
        command = [f"{RUN}/efa-emu", "--control", f"{RUN}/control", "--trace", f"{RUN}/trace.log", "--fabric", options.fabric]
        command += ["--seed", str(self.seed)]
        # The options of a device override this one, so they follow it.
        strict = "strict=guesses," if options.guesses else ""
        for guest in range(options.guests):
            sockets = f"{RUN}/efa{guest}."
            if options.instance:
                command += ["--instance", f"{options.instance},socket={sockets}"]
            for number, device in enumerate(options.devices):
                command += ["--device", f"{strict}{device},socket={sockets}{number}"]
        if options.memory_device:
            # The BAR's memory is a file in the run's folder, which virtiofs shares. The emulator maps files on disks only with this.
            command += ["--file-memory"]
        if options.scenario:
            shutil.copy(options.scenario, self.folder / "scenario")
            command += ["--scenario", f"{RUN}/scenario"]
        self.start("efa-emu", [*command, *options.emulator_options])
        # The emulator creates this socket last. Only the emulator knows the number of devices of an instance.
        self.await_sockets("efa-emu", ["control"])
        self.devices = len(list(self.folder.glob("efa0.*")))

    def image(self, guest):
        """Returns the path of a guest's kernel for QEMU, and the mounts that it requires."""
        return build.image(self.releases[guest])

    def init(self):
        """Returns the kernel parameters that select the first process."""
        return 'init=/usr/bin/busybox -- sh -c "/usr/bin/busybox mount -t virtiofs efa-rs /efa-rs && exec /efa-rs/tools/guest/init"'

    def firmware(self):
        """QEMU's options for the firmware."""
        return qemu.QBOOT

    def parameters(self, guest):
        """Writes the files with a guest's command, and returns the kernel parameters for its first process."""
        options = self.options
        results = self.shared / f"guest{guest}"
        results.mkdir()
        (results / "command").write_text(options.command or "exec bash -l")
        if options.command is None:
            size = os.get_terminal_size(sys.stdin.fileno())
            (results / "interactive").write_text(f"rows {size.lines} cols {size.columns}")
        environment = {
            "EFA_DRIVER": options.driver,
            "EFA_FLAVOUR": options.flavours()[guest],
            "EFA_KO": self.module_of(guest),
            "EFA_GUEST": guest,
            "EFA_GUESTS": options.guests,
            "EFA_SHARE": "/share" if options.share else "",
            "EFA_PATIENCE": os.environ.get("EFA_PATIENCE", ""),
            "EFA_SEED": self.seed,
            "EFA_LEADER": "1" if options.leader else "",
            # Clients of the guest's agent, if it runs one: the host and guests, or only guests.
            "EFA_AGENT": "host" if options.agent else "guests" if options.leader else "",
            "TERM": os.environ.get("TERM", "dumb") if options.command is None else "dumb",
        }
        if (slow := arm64.slowness(*options.flavours())) > 1:
            environment["EFA_SLOW_KERNEL"] = slow
        return " ".join([options.append, *(f"{name}={value}" for name, value in environment.items())])

    def boot(self, guest):
        """Starts a guest. Its console is a file, and its command's terminal is our standard output."""
        options = self.options
        image, binds = self.image(guest)
        append = self.parameters(guest)
        if options.plugin:
            # Otherwise it is random whether an interrupt finds the TSC unstable, or has to catch up with the clock because
            # the idle loop had stopped the tick.
            append += " tsc=unstable nohz=off"
        # Memory is copied and cleared by one instruction, as on the CPUs of EC2.
        features = options.cpu + ",+erms,+fsrm" * bool(options.plugin)
        if options.memory_device and not guest:
            # Linux allows peer-to-peer DMA if it knows the host bridge, or if the CPU is one of AMD's since Zen (family 23).
            features += ",family=23"
            append += " iommu=pt"
        if options.flavour == toolroot.DEBUG:
            # On a busy host, the calibration of the TSC may be wrong by a factor of ten. This kernel is too slow to check it: the
            # watchdog finds a correct TSC unstable. With the HPET as the clock, neither matters. It would also wait a minute for entropy.
            append += " tsc=unstable"
            features += ",+rdrand"
        append += f" {self.init()}"
        foreign = arm64.is_release(self.releases[guest])
        # Hotplug slots are on the machine's own root bus, and have the numbers of their devices.
        where = topology.of(None if foreign or options.hotplug else options.instance)
        if foreign:
            machine = arm64.machine(image, options.memory, options.cpus, append, options.threads)
        else:
            cpus, firmware = options.cpus, qemu.SEABIOS if where.buses else self.firmware()
            machine = qemu.machine(image, self.accelerator, options.memory, cpus, append, features, options.threads, firmware, where.nodes)
        command = [
            *machine,
            *("-serial", f"file:{RUN}/guest{guest}.console.log"),
            *("-device", "virtio-serial-pci", "-chardev", "stdio,id=terminal,signal=off"),
            *("-device", "virtconsole,chardev=terminal"),
            *qemu.network(guest, options.guests),
            *(qemu.agent(f"{RUN}/{running.agent_socket(guest)}") if options.agent else []),
            *([] if foreign else qemu.host_id(guest)),
        ]
        if options.memory_device and not guest:
            command += qemu.memory_device(f"{RUN}/shared/bar", options.memory_device)
        for tag in ("root", "efa-rs", "run", *(["share"] if options.share else [])):
            command += qemu.share(tag, f"{RUN}/{tag}{guest}", arm64.share_queue(options.flavours()[guest]))
        devices = [qemu.efa(f"{RUN}/efa{guest}.{number}", bool(options.plugin)) for number in range(self.devices)]
        if options.hotplug:
            (self.shared / f"guest{guest}" / "slots").write_text("".join(f"{json.dumps(device)}\n" for device in devices))
            command += qemu.hotplug(devices, f"{RUN}/monitor{guest}", foreign)
        else:
            command += qemu.endpoints(devices, where)
        if self.devices:
            command += qemu.control(f"{RUN}/control")
        if options.plugin:
            command += qemu.count_instructions(f"{RUN}/plugin.so", f"{RUN}/counts")
        errors = open(self.folder / f"{self.name_of(guest)}.log", "w")
        if options.command is None:
            self.start(self.name_of(guest), command, binds, stdin=None, stdout=None, stderr=errors)
        else:
            # The terminal of a follower notifies it of the end of guest 0.
            source = subprocess.PIPE if options.leader and guest else subprocess.DEVNULL
            self.start_with_output(guest, command, binds, stdin=source, stderr=errors)

    def name_of(self, guest):
        """Returns the name of a guest's QEMU process."""
        return f"qemu-{guest}"

    def start_with_output(self, guest, command, binds, **streams):
        """Starts a guest, and forwards its standard output."""
        process = self.start(self.name_of(guest), command, binds, stdout=subprocess.PIPE, **streams)
        copier = threading.Thread(target=self.copy_output, args=(guest, process.stdout), daemon=True)
        copier.start()
        self.copiers.append(copier)

    def module_of(self, guest):
        """Returns the path of the module in a guest, or an empty text."""
        if not self.options.module:
            return ""
        return f"/run/efa-rs/efa{'.others' if guest and self.options.others_module else ''}.ko"

    def copy_output(self, guest, stream):
        """Forwards the output of the command, and saves it."""
        # With a leader, its output has no prefix.
        prefix = f"guest{guest}: ".encode() if guest or (self.options.guests > 1 and not self.options.leader) else b""
        with open(self.folder / f"guest{guest}.output.log", "wb", buffering=0) as log:
            for line in stream:
                log.write(line)
                if self.options.watch:
                    self.options.watch(line.decode(errors="replace"))
                if not self.options.quiet:
                    sys.stdout.buffer.write(prefix + line)
                    sys.stdout.buffer.flush()

    def wait(self):
        """Waits for the guests to power off. Fails after the time limit."""
        guests = [self.processes[self.name_of(guest)] for guest in range(self.options.guests)]
        end = patience.Deadline(self.options.timeout)
        boot, printed = patience.Deadline(patience.PATIENCE * self.boot_slowness()), 0
        while any(process.poll() is None for process in guests):
            if end.over():
                raise Failure(
                    f"The guests did not end within {self.options.timeout:.0f} s (--timeout):"
                    f" their consoles are in {self.folder}/guest*.console.log."
                )
            self.check_boot(guests)
            # Even a slow boot prints something from time to time, which restarts the deadline.
            before, printed = printed, sum(size_of(self.console_of(guest)) for guest in range(self.options.guests))
            if printed != before or self.booted():
                boot.again()
            if boot.over():
                raise Failure(
                    f"The guests did not boot: for {boot.seconds} s (EFA_PATIENCE) they have printed nothing;"
                    f" their consoles are in {self.folder}/guest*.console.log."
                )
            self.check_helpers(guests)
            if self.options.leader and (late := self.left_alone(guests)):
                raise Failure(late)
            time.sleep(patience.INTERVAL)
        self.check_boot(guests)

    def console_of(self, guest):
        return self.folder / f"guest{guest}.console.log"

    def check_helpers(self, guests):
        """Fails if a program that serves the guests has ended: the emulator, or a guest's virtiofsd while the guest still runs."""
        for name, process in self.processes.items():
            if process in guests or process.poll() is None:
                continue
            served = name.rpartition("-")[2]
            # A virtiofsd that exits due to the end of its guest may be gone before the guest's QEMU. A killed one did not exit for that.
            killed = process.returncode < 0 or process.returncode > steps.BY_SIGNAL
            if name == "efa-emu" or (guests[int(served)].poll() is None and (killed or self.end_of(name).over())):
                log = self.folder / f"{name}.log"
                said = f"{steps.tail(log)}\n{name} ended during the run ({steps.ending(process.returncode)}): see above"
                raise Failure(f"{said}. The rest is in {log}.")

    def end_of(self, name):
        """Returns the deadline for dependants of a program that has ended. It begins at the first call."""
        return self.ends.setdefault(name, patience.Deadline())

    def check_boot(self, guests):
        """Fails if a kernel ran into an outdated breakpoint before its first process."""
        for guest, process in enumerate(guests):
            log = self.folder / f"guest{guest}.console.log"
            booted = (self.shared / f"guest{guest}" / "booted").exists()
            if process.poll() is not None and not booted and "Oops: int3" in log.read_text(errors="replace"):
                raise BootFailed(f"Guest {guest} ran an instruction that its kernel was patching: its console is in {log}.")

    def boot_slowness(self):
        """Returns the factor for the time without output before the first process, relative to a stock kernel on x86-64."""
        return DEBUG_SLOW if self.options.flavour == toolroot.DEBUG else arm64.slowness(*self.options.flavours())

    def left_alone(self, guests):
        """Returns an error message if a guest outlives guest 0 for too long, or ends before it; otherwise None."""
        ended, running = [], []
        for guest, process in enumerate(guests):
            (running if process.poll() is None else ended).append(guest)
        if not ended or not running:
            return None
        if 0 not in running:
            self.end_followers(guests)
            if not self.end_of("guest 0").over():
                return None
            log = self.console_of(running[0])
            return f"Guest {running[0]} did not end within {patience.PATIENCE} s (EFA_PATIENCE) after guest 0: its console is in {log}."
        # Before the end of guest 0, another guest ends only if its command or its system fails: see follow() of tools/guest/init.
        self.check_console(ended[0])
        log = self.folder / f"guest{ended[0]}.output.log"
        return f"{steps.tail(log)}\nGuest {ended[0]} ended while guest 0 still ran: see above. The rest is in {log}."

    def end_followers(self, guests):
        """Notifies followers of the end of guest 0, as soon as they listen: see follow() of tools/guest/init."""
        for guest, process in enumerate(guests[1:], 1):
            if guest not in self.notified and (self.shared / f"guest{guest}" / "follows").exists():
                self.notified.add(guest)
                with contextlib.suppress(OSError):
                    process.stdin.write(b"0\n")
                    process.stdin.flush()

    def booted(self):
        """Whether all guests have reached their first process."""
        return all((self.shared / f"guest{guest}" / "booted").exists() for guest in range(self.options.guests))

    def verdict(self):
        """Returns the first bad exit status, or 0. Fails if a guest, its kernel or the emulator had a fault."""
        status = 0
        for guest in range(self.options.guests):
            log = self.folder / f"guest{guest}.console.log"
            dropped = self.check_console(guest)
            try:
                status = status or int((self.shared / f"guest{guest}" / "status").read_text())
                expected = console.WARNING_TAINT if dropped else 0
                taint = console.unexpected_taint((self.shared / f"guest{guest}" / "tainted").read_text(), expected)
            except (OSError, ValueError):
                name = self.name_of(guest)
                said = self.folder / f"{name}.log"
                raise Failure(
                    f"{steps.tail(log) if log.exists() else ''}\n{steps.tail(said) if said.exists() else ''}\n"
                    f"Guest {guest} ended before its command did ({name}: {steps.ending(self.processes[name].returncode)}):"
                    f" the end of its console is above, the rest is in {log}."
                ) from None
            if taint:
                raise Failure(f"The kernel of guest {guest} ended with the unexpected taint {taint}: see {log}.")
        self.check_emulator()
        if self.hung:
            raise Failure(f"{' and '.join(self.hung)} did not end within {patience.PATIENCE} s (EFA_PATIENCE): see {self.folder}.")
        return status

    def check_health(self):
        """Fails if a guest's kernel or the emulator has reported trouble so far, in a run that was interrupted."""
        for guest in range(self.options.guests):
            if (self.folder / f"guest{guest}.console.log").exists():
                self.check_console(guest)
        self.check_emulator()

    def check_emulator(self):
        log = self.folder / "efa-emu.log"
        if log.exists() and "panicked at" in log.read_text(errors="replace"):
            raise Failure(f"{steps.tail(log)}\nefa-emu panicked: see above.")

    def check_console(self, guest):
        """Fails if a guest's kernel reported trouble; returns the number of known reports."""
        log = self.folder / f"guest{guest}.console.log"
        text, dropped = console.without(log.read_text(errors="replace"), self.options.known_reports)
        if found := console.trouble(text):
            shown = "\n".join(f"    {line}" for line in found)
            raise Failure(f"{shown}\nThe kernel of guest {guest} reported trouble. The end of its log is above, the rest is in {log}.")
        return dropped

    def logs(self):
        """Returns the non-empty logs that may show the cause of a failure, by description."""
        names = {"the emulator": "efa-emu.log", "its trace": "trace.log"}
        for guest in range(self.options.guests):
            names |= {f"guest {guest}'s console": f"guest{guest}.console.log", f"guest {guest}'s QEMU": f"{self.name_of(guest)}.log"}
        return {what: self.folder / name for what, name in names.items() if size_of(self.folder / name)}

    def stop(self):
        """Ends all processes: the emulator by SIGTERM, so that it completes its trace, the others by SIGKILL."""
        emulator = self.processes.get("efa-emu")
        if emulator and emulator.poll() is None:
            for child in Path(f"/proc/{emulator.pid}/task/{emulator.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGTERM)
            try:
                emulator.wait(patience.PATIENCE)
            except subprocess.TimeoutExpired:
                self.hung.append("efa-emu")
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            times.spent(process.cpu)
        for copier in self.copiers:
            copier.join()
        remove_sockets(self.folder)


def remove_sockets(folder):
    """Removes the sockets of a run that has ended."""
    # Another process may have removed the folder.
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)


def size_of(path):
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_change(path):
    """Returns the time of a folder's last change; 0 if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0


def new_folder(keep=False):
    """Makes a run folder, which is kept while this process lives.

    Of the ended runs of this clone, only the newest are kept. Those of other clones are kept unless the clone is deleted.
    """
    runs = cache.folder("runs")
    old = [folder for folder in sorted(runs.iterdir(), key=last_change) if last_change(folder) < time.time() - YOUNG]
    ours = [folder for folder in old if clone_of(folder) == str(cache.CLONE)]
    for folder in runs.iterdir():
        # A killed process did not remove its sockets.
        if clone_of(folder) == str(cache.CLONE) and not cache.in_use(folder):
            remove_sockets(folder)
    for folder in [folder for folder in old if not Path(clone_of(folder)).exists()] + ours[:-KEPT_RUNS]:
        if not (folder / KEEP_FILE).exists():
            cache.discard(folder)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%m%d-%H%M%S-"), dir=runs))
    cache.use(folder)
    (folder / CLONE_FILE).write_text(str(cache.CLONE))
    if keep:
        (folder / KEEP_FILE).touch()
    return folder


def clone_of(folder):
    """Returns the path of a run folder's clone; a path that does not exist if the folder names none."""
    try:
        return (folder / CLONE_FILE).read_text()
    except OSError:
        return "/nonexistent"


def output_folder(path, before):
    """Returns the folder of --output, emptied if it is BEFORE, the folder of an earlier attempt."""
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if path == before:
            for part in path.iterdir():
                namespace.remove(part)
        elif any(path.iterdir()):
            raise Failure(f"The folder {path} is not empty: give --output one that is, or a new one.")
    except OSError as error:
        raise Failure(f"The folder {path} cannot be used ({error.strerror}): give --output another one.") from error
    if before is None:
        cache.use(path)
    return path


def prepare(options):
    """Builds all that the guests need; returns the Run."""
    if options.command is None and not sys.stdin.isatty():
        raise Failure("A shell needs a terminal: run this in one, or give a command.")
    if options.command is None and options.guests > 1:
        raise Failure("A shell can be had in one guest only: leave --guests out, or give a command.")
    release = toolroot.kernel(options.flavour)
    others = toolroot.kernel(options.others) if options.others else None
    for kernel in filter(None, (release, others)):
        userland.root(options.userland, kernel)
    if others and options.driver != "none" and options.others_module is None:
        options.others_module = build.module(options.driver, others)
    if options.overlay:
        overlay.use(options.overlay, options.userland, release)
    with ThreadPoolExecutor(2) as pool:
        is_missing = options.driver != "none" and options.module is None
        module = pool.submit(times.within(build.module), options.driver, release) if is_missing else None
        if options.emulated() and options.emulator is None:
            options.emulator = pool.submit(times.within(build.emulator)).result()
        if module:
            options.module = module.result()
    return Run(options, "tcg" if options.plugin else qemu.accelerator(release))


def execute(run):
    """Boots the guests and waits for their end; returns the exit status. After a failure, it prints the seed for a repetition."""
    status = None
    try:
        for attempt in range(1, BOOT_ATTEMPTS + 1):
            try:
                status = execute_once(run)
                break
            except BootFailed as failed:
                if run.accelerator == "kvm" or attempt == BOOT_ATTEMPTS:
                    raise
                boots_repeated.append(str(failed))
                steps.note(f"{failed} Booting again ({len(boots_repeated)} boots were repeated so far).")
                run.start_over()
    except (Failure, OSError) as failure:
        if not steps.is_full(run.folder):
            raise
        raise Failure(f"{sentence(failure)}\n{sentence(OSError(errno.ENOSPC, 'full', run.folder))}") from failure
    finally:
        if status != 0 and run.options.emulated():
            steps.note(f"the run's random choices were those of EFA_SEED={run.seed}")
    return status


class Interrupted(Exception):
    """A signal ends this program. The argument is its number."""


def execute_until_interrupted(run):
    """Like execute(), but a signal first ends the guests, whose consoles are then checked. A second signal ends the program at once."""

    def interrupt(number, _):
        for other in before:
            signal.signal(other, lambda number, _: os._exit(128 + number))
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return execute(run)
    except Interrupted as interrupted:
        (number,) = interrupted.args
    finally:
        for other, handler in before.items():
            signal.signal(other, handler)
    run.check_health()
    steps.note(f"interrupted by {signal.Signals(number).name}; until then no kernel reported trouble: see {run.folder}")
    return 128 + number


def execute_once(run):
    """One attempt of execute()."""
    options = run.options
    guests = "guests" if options.guests > 1 else "guest"
    steps.note(
        f"{guests}: {', '.join(dict.fromkeys(run.releases))}, driver {options.driver}, {run.accelerator.upper()}, logs in {run.folder}"
    )
    terminal = termios.tcgetattr(sys.stdin) if options.command is None else None
    start = time.monotonic()
    watched = stalls.recorded(run.shared / "stalls") if options.stalls else contextlib.nullcontext()
    if options.emulated() and options.fabric != "ideal":
        steps.note(f"network: --fabric {options.fabric} --seed {run.seed}")
    try:
        if options.emulated():
            run.serve_devices()
        for guest in range(options.guests):
            run.serve_shares(guest)
            run.boot(guest)
        with watched:
            run.wait()
    finally:
        run.stop()
        if terminal:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, terminal)
    status = run.verdict()
    steps.note(f"{guests}: exit status {status}, {time.monotonic() - start:.1f} s")
    return status
