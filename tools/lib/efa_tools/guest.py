# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Boots guests with emulated devices, runs a command in them and says how it went."""

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
# Runs that are kept of each clone: the newest, and those of the last seconds.
KEPT_RUNS, YOUNG = 20, 3600
# In a run folder: its clone. A folder without it has none any more.
CLONE_FILE = "clone"
# In a run folder that is never removed.
KEEP_FILE = "keep"
# The factor by which the debug kernel is slower.
DEBUG_SLOW = 5
BOOT_ATTEMPTS = 3
# Of each boot that this process has repeated: what was wrong with it.
boots_repeated = []


class BootFailed(Failure):
    """A kernel met QEMU's known fault before its first process, after which the boot is repeated.

    Under TCG with several threads, a CPU can run an instruction as it was a moment before. It can be a breakpoint that stood there while
    another CPU patched the kernel, which does not know it any more.
    """


@dataclass
class Options:
    """What to run. No command means an interactive shell."""

    command: str | None
    driver: str = "rust"
    flavour: str = "cloud-amd64"
    devices: list[str] = field(default_factory=list)
    # The devices of each guest are instead those of this instance of EC2, see efa-emu --instance.
    instance: str | None = None
    userland: str = userland.STABLE
    # The folder of a root that was changed, see overlay.py.
    overlay: Path | None = None
    guests: int = 1
    # The end of guest 0's command is the end of all. Until then it can run programs in the others, by their agents.
    leader: bool = False
    timeout: float = 600
    memory: str = "1G"
    cpus: int = 2
    emulator: Path | None = None
    module: Path | None = None
    scenario: Path | None = None
    # Whether each emulated CPU has a TCG thread. One thread for all (`thread=single`) takes half the CPU time or less. No CPU spins
    # for a lock whose owner is not scheduled, or interrupts another thread.
    threads: bool = False
    # What the network between the devices is like, see efa-emu --fabric.
    fabric: str = "ideal"
    # Devices refuse what they are guessed to refuse, see efa-emu --device. No client of the suites does any of that.
    guesses: bool = True
    # More words of its command line.
    emulator_options: list[str] = field(default_factory=list)
    # A folder of the host that guests see at /share.
    share: Path | None = None
    # The run folder, which is made, or empty; without it, one in the cache.
    output: Path | None = None
    # The run folder stays, however many runs come after it.
    keep: bool = False
    quiet: bool = False
    # Of what is random in the run, first of all in the network: by default it depends on what is run.
    seed: int | None = None
    # Is called with each line that the commands print.
    watch: Callable[[str], None] | None = None
    known_reports: list[tuple[str, str]] = field(default_factory=list)
    # More parameters of the kernel.
    append: str = ""
    # Guests run what they are asked for from outside, too: see running.py.
    agent: bool = False
    # Each device is in a slot of its own, and the guest has QEMU's monitor, see tools/guest/monitor.py.
    hotplug: bool = False
    # Memory in the BAR of a device of guest 0, which also has an IOMMU then: see tests/peer.
    memory_device: str | None = None
    # Whether guests can read the host's stalls, see stalls.py.
    stalls: bool = False
    # Counts instructions, which needs TCG, one CPU and a device that does nothing at a time of its own.
    plugin: Path | None = None
    # The kernel of all guests but the first, if that is another one, and the module for it.
    others: str | None = None
    others_module: Path | None = None

    def flavours(self):
        """The kernel of each guest."""
        return [self.flavour, *[self.others or self.flavour] * (self.guests - 1)]

    def emulated(self):
        """Whether guests have devices."""
        return bool(self.devices or self.instance)


def seed_of(name):
    """The seed of something's random choices: that of EFA_SEED, or one that depends on nothing but a name."""
    return int(os.environ.get("EFA_SEED") or int(cache.key(name), 16) % (1 << 24))


class Run:
    """A run folder and the processes of one run."""

    def __init__(self, options, accelerator):
        self.options = options
        self.accelerator = accelerator
        self.release = toolroot.kernel(options.flavour)
        self.releases = [toolroot.kernel(flavour) for flavour in options.flavours()]
        # start_over() makes it.
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
        self.told = set()
        # How long what depends on a program that has ended may still go on.
        self.ends = {}
        # What did not end when it was asked to.
        self.hung = []
        # How many devices each guest has.
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
        # A group of its own: the terminal's Ctrl-C is for this program, which then ends the others in order.
        group = None if streams["stdin"] is None else 0
        # The root of another architecture has the same programs as the toolroot.
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
        """The userland, the clone, the run's results and --share, each by a virtiofsd of its own for this guest."""
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
        """One emulator with the devices of all guests."""
        options = self.options
        command = [f"{RUN}/efa-emu", "--control", f"{RUN}/control", "--trace", f"{RUN}/trace.log", "--fabric", options.fabric]
        command += ["--seed", str(self.seed)]
        # What a device is asked for by name counts more, so it comes later.
        strict = "strict=guesses," if options.guesses else ""
        for guest in range(options.guests):
            sockets = f"{RUN}/efa{guest}."
            if options.instance:
                command += ["--instance", f"{options.instance},socket={sockets}"]
            for number, device in enumerate(options.devices):
                command += ["--device", f"{strict}{device},socket={sockets}{number}"]
        if options.memory_device:
            # The memory of its BAR is a file in the run's folder, which guests have by virtiofs.
            command += ["--file-memory"]
        if options.scenario:
            shutil.copy(options.scenario, self.folder / "scenario")
            command += ["--scenario", f"{RUN}/scenario"]
        self.start("efa-emu", [*command, *options.emulator_options])
        # It makes this one last, and only it knows how many devices an instance has.
        self.await_sockets("efa-emu", ["control"])
        self.devices = len(list(self.folder.glob("efa0.*")))

    def image(self, guest):
        """A guest's kernel: its file as seen by QEMU, and what has to be mounted for that."""
        return build.image(self.releases[guest])

    def init(self):
        """The kernel's parameters that say what its first process is."""
        return 'init=/usr/bin/busybox -- sh -c "/usr/bin/busybox mount -t virtiofs efa-rs /efa-rs && exec /efa-rs/tools/guest/init"'

    def firmware(self):
        """QEMU's options for the firmware."""
        return qemu.QBOOT

    def parameters(self, guest):
        """Tells a guest what it is to do, and returns the kernel's parameters with which its first process finds that."""
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
            # The token of the guest's agent, if there is one.
            "EFA_AGENT": "host" if options.agent else "guests" if options.leader else "",
            "TERM": os.environ.get("TERM", "dumb") if options.command is None else "dumb",
        }
        if (slow := arm64.slowness(*options.flavours())) > 1:
            environment["EFA_SLOW_KERNEL"] = slow
        return " ".join([options.append, *(f"{name}={value}" for name, value in environment.items())])

    def boot(self, guest):
        """Starts a guest, with its console in a file, and its command's terminal on our standard output."""
        options = self.options
        image, binds = self.image(guest)
        append = self.parameters(guest)
        if options.plugin:
            # Else it is chance whether an interrupt finds the TSC unstable, and whether it has to catch up with the clock as
            # the idle loop had stopped the tick.
            append += " tsc=unstable nohz=off"
        # As the CPUs of EC2 do, copy and clear memory by one instruction.
        features = ",+erms,+fsrm" if options.plugin else ""
        if options.memory_device and not guest:
            # Linux lets devices reach each other's memory if it knows the host bridge, or the CPU as one of AMD's since Zen.
            features += ",family=23"
            append += " iommu=pt"
        if options.flavour == toolroot.DEBUG:
            # It is so slow that it takes the TSC for unstable, and would wait a minute for chance to gather by itself.
            append += " tsc=reliable"
            features += ",+rdrand"
        append += f" {self.init()}"
        foreign = arm64.is_release(self.releases[guest])
        # A slot is of the machine's own root bus, and its number is that of the device.
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
            # The terminal of a guest that follows another notifies it of that one's end.
            told = subprocess.PIPE if options.leader and guest else subprocess.DEVNULL
            self.start_with_output(guest, command, binds, stdin=told, stderr=errors)

    def name_of(self, guest):
        """What the program is called that a guest is."""
        return f"qemu-{guest}"

    def start_with_output(self, guest, command, binds, **streams):
        """Starts a guest whose standard output is passed on."""
        process = self.start(self.name_of(guest), command, binds, stdout=subprocess.PIPE, **streams)
        copier = threading.Thread(target=self.copy_output, args=(guest, process.stdout), daemon=True)
        copier.start()
        self.copiers.append(copier)

    def module_of(self, guest):
        """Where a guest finds the module, if there is one."""
        if not self.options.module:
            return ""
        return f"/run/efa-rs/efa{'.others' if guest and self.options.others_module else ''}.ko"

    def copy_output(self, guest, stream):
        """Passes on what the command prints, and keeps it."""
        # The leader speaks for all.
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
        """Waits for the guests to power off, and no longer than the time limit."""
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
            # However slow a boot is, it prints something from time to time.
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
            # One that the end of its guest has ended may be gone before that. One that was killed has not seen such an end.
            killed = process.returncode < 0 or process.returncode > steps.BY_SIGNAL
            if name == "efa-emu" or (guests[int(served)].poll() is None and (killed or self.end_of(name).over())):
                log = self.folder / f"{name}.log"
                said = f"{steps.tail(log)}\n{name} ended during the run ({steps.ending(process.returncode)}): see above"
                raise Failure(f"{said}. The rest is in {log}.")

    def end_of(self, name):
        """How long what depends on a program may go on that was seen to have ended."""
        return self.ends.setdefault(name, patience.Deadline())

    def check_boot(self, guests):
        """Fails if a kernel has met a breakpoint of its own before its first process."""
        for guest, process in enumerate(guests):
            log = self.folder / f"guest{guest}.console.log"
            booted = (self.shared / f"guest{guest}" / "booted").exists()
            if process.poll() is not None and not booted and "Oops: int3" in log.read_text(errors="replace"):
                raise BootFailed(f"Guest {guest} ran an instruction that its kernel was patching: its console is in {log}.")

    def boot_slowness(self):
        """How many times longer than a stock kernel on x86-64 it may print nothing before its first process."""
        return DEBUG_SLOW if self.options.flavour == toolroot.DEBUG else arm64.slowness(*self.options.flavours())

    def left_alone(self, guests):
        """What is wrong if a guest outlives the one that it works with, if that is so."""
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
        # Until guest 0 has ended, another guest only ends if its command fails, or it itself: see follow() of tools/guest/init.
        self.check_console(ended[0])
        log = self.folder / f"guest{ended[0]}.output.log"
        return f"{steps.tail(log)}\nGuest {ended[0]} ended while guest 0 still ran: see above. The rest is in {log}."

    def end_followers(self, guests):
        """Tells those that guest 0 has ended, as soon as they listen: see follow() of tools/guest/init."""
        for guest, process in enumerate(guests[1:], 1):
            if guest not in self.told and (self.shared / f"guest{guest}" / "follows").exists():
                self.told.add(guest)
                with contextlib.suppress(OSError):
                    process.stdin.write(b"0\n")
                    process.stdin.flush()

    def booted(self):
        """Whether the kernels have come as far as to the first process."""
        return all((self.shared / f"guest{guest}" / "booted").exists() for guest in range(self.options.guests))

    def verdict(self):
        """The first bad exit status, or a failure if a guest, its kernel or the emulator was not well."""
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
        """Fails if a guest's kernel or the emulator has reported trouble so far, in a run that did not come to its end."""
        for guest in range(self.options.guests):
            if (self.folder / f"guest{guest}.console.log").exists():
                self.check_console(guest)
        self.check_emulator()

    def check_emulator(self):
        log = self.folder / "efa-emu.log"
        if log.exists() and "panicked at" in log.read_text(errors="replace"):
            raise Failure(f"{steps.tail(log)}\nefa-emu panicked: see above.")

    def check_console(self, guest):
        """Fails if a guest's kernel reported trouble; returns how many reports were known ones."""
        log = self.folder / f"guest{guest}.console.log"
        text, dropped = console.without(log.read_text(errors="replace"), self.options.known_reports)
        if found := console.trouble(text):
            shown = "\n".join(f"    {line}" for line in found)
            raise Failure(f"{shown}\nThe kernel of guest {guest} reported trouble. The end of its log is above, the rest is in {log}.")
        return dropped

    def logs(self):
        """The logs that may tell why something failed: those that are not empty, by what they are of."""
        names = {"the emulator": "efa-emu.log", "its trace": "trace.log"}
        for guest in range(self.options.guests):
            names |= {f"guest {guest}'s console": f"guest{guest}.console.log", f"guest {guest}'s QEMU": f"{self.name_of(guest)}.log"}
        return {what: self.folder / name for what, name in names.items() if size_of(self.folder / name)}

    def stop(self):
        """Ends what still runs: the emulator by SIGTERM, so that it completes its trace, the rest at once."""
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
    """Removes what programs of a run, which has ended, could be reached by."""
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
    """When a folder was changed: first of all, if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0


def new_folder(keep=False):
    """A new run folder, which stays as long as this process lives.

    Of those of this clone that have ended, only the newest are kept; those of others are left alone, unless their clone is gone.
    """
    runs = cache.folder("runs")
    old = [folder for folder in sorted(runs.iterdir(), key=last_change) if last_change(folder) < time.time() - YOUNG]
    ours = [folder for folder in old if clone_of(folder) == str(cache.CLONE)]
    for folder in runs.iterdir():
        # A process that was killed did not remove its own.
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
    """The path of the clone that a run folder is of; one that is not there if it is of none."""
    try:
        return (folder / CLONE_FILE).read_text()
    except OSError:
        return "/nonexistent"


def output_folder(path, before):
    """The folder of --output. BEFORE is the same folder if an earlier attempt has filled it."""
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
    """Builds what the guests need."""
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
    """Boots the guests and waits for their end; returns the exit status. If that is bad, how the run is repeated has been said."""
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
    """A signal ends this program: its number."""


def execute_until_interrupted(run):
    """The same; a signal that ends this program ends the guests first, whose consoles are then looked at. A second one does not wait."""

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
    watched = stalls.told(run.shared / "stalls") if options.stalls else contextlib.nullcontext()
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
