# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Boots guests with emulated EFA devices, and runs a command in each of them, or a shell in the first. See tools/vm."""

import argparse
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append("/efa-rs/tests")

import traffic
from guests import ARM64, CACHE, GuestFailed, Guests, ProgramFailed, in_user_namespace, mount, result

EPILOG = """Guests have Debian's userland, this clone at /efa-rs, and a folder for results at /run/efa-rs/out. ssh guest1 reaches the
second one. The exit status is the command's. tools/vm root FOLDER [COMMAND] changes what guests with --overlay FOLDER have.
tools/vm ctl JSON... controls the devices of the guests that started last."""
MESSAGE = 1 << 20


def build(*targets):
    """Builds targets of tools/builds.mk."""
    if status := subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "-f", "tools/builds.mk", *targets], check=False).returncode:
        sys.exit(status)


def number(text):
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def size(text):
    if not re.fullmatch(r"[1-9]\d*[MG]", text):
        raise argparse.ArgumentTypeError("must be a whole number of M or G, such as 512M")
    return text


def parser():
    found = argparse.ArgumentParser(prog="tools/vm", description=__doc__, epilog=EPILOG)

    def add(name, text, **options):
        found.add_argument(name, help=text, **options)

    add("--guests", "number of guests (default: 1)", dest="count", type=number, default=1, metavar="N")
    add("--device", "a device of each guest, such as profile=efa2; repeatable", dest="devices", action="append", default=[], metavar="SPEC")
    add("--instance", "the devices of an EC2 instance for each guest, such as p5.48xlarge", metavar="NAME")
    add("--driver", "the module: rust (default), c, or none", choices=("rust", "c", "none"), default="rust")
    flavours = ("cloud-amd64", "amd64", "debug", *ARM64)
    add("--flavour", f"the kernel: {', '.join(flavours)} (default: cloud-amd64)", choices=flavours, default="cloud-amd64", metavar="NAME")
    add("--userland", "stable (default), or next: Debian testing's, with its rdma-core", choices=("stable", "next"), default="stable")
    add("--overlay", "a folder with changes to the root, which tools/vm root has made", type=Path, metavar="FOLDER")
    add("--share", "a folder of the host that guests see at /share, read-only", type=Path, metavar="FOLDER")
    add("--fabric", "the network between devices, see efa-emu (default: realistic)", default="realistic", metavar="SETTINGS")
    add("--scenario", "requests that the emulator executes from its start on", type=Path, metavar="FILE")
    add("--emulator-option", "a further argument of efa-emu; repeatable", dest="emulator", action="append", default=[], metavar="WORD")
    add("--hotplug", "devices in hot-plug slots, and QEMU's monitor in guests", action="store_true")
    add("--memory-device", "an IOMMU for guest 0, and a device with memory of SIZE in a BAR", type=size, metavar="SIZE")
    add("--memory", "memory of each guest (default: 1G)", type=size, metavar="SIZE")
    add("--cpus", "CPUs of each guest (default: 2)", type=number, default=2, metavar="N")
    add("--append", "further kernel parameters, such as swiotlb=force", default="", metavar="TEXT")
    add("--demo", "show data between two guests", action="store_true")
    add("command", "a command for the shell of each guest", nargs=argparse.REMAINDER)
    return found


def main(words):
    options = vars(parser().parse_args(words))
    command, demo, scenario = " ".join(options.pop("command")), options.pop("demo"), options.pop("scenario")
    if options["instance"] and options["devices"]:
        sys.exit("tools/vm: --instance has devices of its own: leave --device out.")
    if not (command or demo or sys.stdin.isatty()):
        sys.exit("tools/vm: a shell needs a terminal: run this in one, or give a command.")
    driver, flavour, userland = options["driver"], options["flavour"], options["userland"]
    modules = [] if driver == "none" else [f"{driver}-{flavour}"]
    build("emulator", f"kernel-{flavour}", *modules, *(["next"] if userland == "next" else []))
    options["emulator"] += ["--scenario", scenario] if scenario else []
    with Guests(**options, cpu="max", guesses=False) as guests:
        file = Path(os.environ["EFA_CACHE"], "runs", guests.folder.name, "ssh_config")
        how = f"ssh -F {file} guest{0 if guests.count == 1 else f'0 to guest{guests.count - 1}'}; tools/vm ctl JSON"
        print(f"==> the guests run ({guests.accelerator.upper()}). In another terminal: {how}", file=sys.stderr, flush=True)
        try:
            return show(guests) if demo else run(guests, command)
        except KeyboardInterrupt:
            for guest in range(guests.count):
                guests.check_console(guest)
            raise


def run(guests, command):
    """Runs a command in all guests, or a shell in the first one; returns the worst exit status."""
    if not command:
        return subprocess.run([*guests.ssh(0), "-t", "guest0"], check=False).returncode
    programs = [guests.popen(command, guest) for guest in range(guests.count)]
    return max(program.wait() for program in programs)


def show(guests):
    """Shows the device, fi_pingpong, ib_write_bw, and figures."""
    device = traffic.device(guests)
    show_output(f"ibv_devinfo -v -d {device}", guests.run(f"ibv_devinfo -v -d {device}"))
    options = f"{traffic.EFA} -S 64"
    pingpong, mean = traffic.pingpong(guests, options, 200)
    show_output(f"fi_pingpong -p efa -c -I 200 {options} guest1", pingpong)
    options = f"{traffic.SRD} -s {MESSAGE} -n 500"
    write, rows = traffic.measure(guests, f"ib_write_bw {options}")
    show_output(f"ib_write_bw -d {device} -F {options} guest1", write)
    _, latencies = traffic.measure(guests, f"ib_send_lat {traffic.SRD} -s 64 -n 500")
    print("\nBetween two guests, over two emulated EFAs:")
    for what, value in (
        ("SRD send of 64 B, ib_send_lat, typical", f"{latencies[64][traffic.TYPICAL]:.1f} us"),
        ("message of 64 B over libfabric, fi_pingpong, mean", f"{mean:.1f} us"),
        ("RDMA write of 1 MiB, ib_write_bw, average", f"{rows[MESSAGE][traffic.AVERAGE]:.0f} MiB/s"),
    ):
        print(f"  {what:<52}{value:>12}", flush=True)
    return 0


def show_output(command, said):
    print(f"\n$ {command}\n{said.strip()}", flush=True)


def control(requests):
    """Sends requests to the emulator of the guests that started last; returns the exit status."""
    for path in sorted((CACHE / "runs").glob("*/control"), key=lambda path: path.parent.stat().st_mtime, reverse=True):
        with socket.socket(socket.AF_UNIX) as connection:
            if connection.connect_ex(str(path)) == 0:
                build("emulator")
                return subprocess.run([result("emulator") / "efa-emu", "ctl", path, *requests], check=False).returncode
    sys.exit("tools/vm: no guests run.")


def root(folder, words):
    """Runs a command in a guests' root with the changes in a folder; returns the exit status."""
    chosen = argparse.ArgumentParser(prog="tools/vm root FOLDER")
    chosen.add_argument("--userland", choices=("stable", "next"), default="stable")
    chosen.add_argument("command", nargs=argparse.REMAINDER)
    options = chosen.parse_args(words)
    if options.userland == "next":
        build("next")
    lower = Path("/") if options.userland == "stable" else result("next") / "root"
    for part in ("upper", "work"):
        (folder / part).mkdir(exist_ok=True)
    lock = open(folder / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("tools/vm: the root is in use: wait for what changes it, or for the guests that have it.")
    if not (folder / "of").exists():
        (folder / "of").write_text(f"{os.environ['EFA_ROOT']} {lower.resolve()}")
    place = Path("/tmp/root")
    place.mkdir()
    userxattr = ",userxattr" if in_user_namespace() else ""
    mount("-t", "overlay", "-o", f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work{userxattr}", "overlay", place)
    for name in ("proc", "dev", "efa-rs"):
        mount("--rbind", f"/{name}", place / name)
    mount("--bind", "/etc/resolv.conf", place / "etc/resolv.conf")
    for name in ("run", "tmp", "root"):
        mount("-t", "tmpfs", "tmpfs", place / name)
    command = " ".join(options.command)
    try:
        return subprocess.run(["chroot", place, *(["sh", "-c", command] if command else ["bash", "-l"])], check=False).returncode
    finally:
        subprocess.run(["umount", "-R", place], check=False)
        place.rmdir()


if __name__ == "__main__":
    # A signal ends guests as a failure does: their consoles are checked.
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.default_int_handler)
    try:
        match sys.argv[1:]:
            case ["ctl", request, *requests]:
                sys.exit(control([request, *requests]))
            case ["root", folder, *words]:
                sys.exit(root(Path(folder), words))
            case words:
                sys.exit(main(words))
    except (GuestFailed, ProgramFailed, AssertionError, OSError, json.JSONDecodeError) as failure:
        sys.exit(f"tools/vm: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
