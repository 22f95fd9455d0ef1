#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""EFA without EC2: boots hosts with emulated EFA devices, and runs a command in each of them.

The hosts are virtual machines with Debian's kernel, rdma-core, libfabric, perftest and Open MPI. Their names are guest0, guest1 and so on;
ssh needs no password between them. EFA_GUEST is a host's number, and /share the folder that was mounted there:

    podman run --rm -v "$PWD:/share" IMAGE run --hosts 2 --instance p5.48xlarge -- ./my-test

With --device /dev/kvm, hosts are fast. Without, their CPUs are emulated, and a boot takes about a minute."""

import argparse
import os
import pwd
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

sys.dont_write_bytecode = True
sys.path.append("/efa-rs/tools")

import guests
from guests import GuestFailed
from vm import number, size

SHARE = Path("/share")
# For programs that need a name of the user, of whom the image knows nothing.
NAMES = "libnss_wrapper.so"
# Seconds between two lines about a boot, and bytes that a host takes besides its memory.
HEARTBEAT, OVERHEAD = 10, 256 << 20
# Bytes that logs, traces and results of a run may take.
SPACE = 64 << 20
UNITS = {"M": 1 << 20, "G": 1 << 30}


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


class Hosts(guests.Guests):
    """Guests that may write to the share, if its owner lets them."""

    WRITABLE = ("share",) if os.access(SHARE, os.W_OK) else ()


class Unusable(Exception):
    """What the container lacks."""


def parser():
    found = argparse.ArgumentParser(prog="IMAGE", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = found.add_subparsers(dest="what", metavar="run | shell")
    for name, text in (("run", "run a command in each host; the status is the worst one"), ("shell", "a shell in guest0")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--hosts", help="number of hosts (default: 2)", type=number, default=2, metavar="N")
        command.add_argument("--instance", help="whose devices each host has (default: p5.48xlarge)", default="p5.48xlarge")
        command.add_argument("--fabric", help="the network (default: realistic): see efa-emu", default="realistic", metavar="SETTINGS")
        command.add_argument("--memory", help="memory of each host (default: 1G)", type=size, default="1G", metavar="SIZE")
        if name == "run":
            command.add_argument("--limit", help="seconds after which the command counts as hung (default: 3600)", type=int, default=3600)
            command.add_argument("--junit", help="a file in /share for results as JUnit", type=Path, metavar="FILE")
            command.add_argument("command", help="the command and its arguments, for the shell of each host", nargs="+")
    return found


def prepare(options, work):
    """Checks what the container has, and returns the hosts, which do not run yet. Their files are in the folder WORK."""
    need = options.hosts * (int(options.memory[:-1]) * UNITS[options.memory[-1]] + OVERHEAD)
    if (have := available()) < need:
        lack = f"{options.hosts} hosts need {need >> 20} MiB, and {have >> 20} MiB are free"
        raise Unusable(f"{lack}: ask for fewer --hosts or less --memory.")
    if (free := shutil.disk_usage(work).free) < SPACE:
        raise Unusable(f"A run needs {SPACE >> 20} MiB in /tmp, and {free >> 20} MiB are free: mount a tmpfs there, as --tmpfs /tmp does.")
    if getattr(options, "junit", None) and not Hosts.WRITABLE:
        raise Unusable("/share cannot be written, where --junit belongs: make the mounted folder writable for this user.")
    os.environ.update({"EFA_CACHE": str(work), "HOME": str(work)})
    know_user(work)
    guests.CACHE, guests.BUILT, guests.RATE = work, Path("/usr/lib/efa-rs"), work / "rate"

    chosen = {name: getattr(options, name) for name in ("instance", "fabric", "memory")}
    flavour = "cloud-arm64" if guests.MACHINE == "aarch64" else "cloud-amd64"
    hosts = Hosts(options.hosts, **chosen, flavour=flavour, share=SHARE, cpu="max", guesses=False)
    how = "KVM" if hosts.accelerator == "kvm" else "TCG, slowly, as the container has no /dev/kvm that works"
    say(f"booting {options.hosts} hosts as {options.instance} ({how})")
    return hosts


def available():
    """Returns the bytes of memory that are free, for the machine and for the container."""
    found = [int(re.findall(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[0]) << 10]
    group = Path("/sys/fs/cgroup")
    limit, used = ((group / name).read_text().strip() if (group / name).exists() else "max" for name in ("memory.max", "memory.current"))
    if limit != "max" and used != "max":
        found.append(int(limit) - int(used))
    return min(found)


def know_user(work):
    """Gives the user a name, without which ssh refuses to run."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        user, group = work / "passwd", work / "group"
        user.write_text(f"user:x:{os.getuid()}:{os.getgid()}::{work}:/bin/sh\n")
        group.write_text(f"user:x:{os.getgid()}:\n")
        os.environ.update({"LD_PRELOAD": NAMES, "NSS_WRAPPER_PASSWD": str(user), "NSS_WRAPPER_GROUP": str(group)})


def boot(hosts):
    """Boots the hosts, and shows the progress."""
    booted, begin = threading.Event(), time.monotonic()

    def show():
        while not booted.wait(HEARTBEAT):
            logs = sorted(hosts.folder.glob("console*")) if hosts.folder != Path() else []
            last = [log.read_text(errors="replace").splitlines()[-1:] for log in logs]
            say(f"{time.monotonic() - begin:.0f} s: {'; '.join(line[0][:60] for line in last if line) or 'no output yet'}")

    heartbeat = threading.Thread(target=show, daemon=True)
    heartbeat.start()
    try:
        hosts.__enter__()
    finally:
        booted.set()
        heartbeat.join()
    say(f"the hosts run, after {time.monotonic() - begin:.0f} s")


def run(hosts, options):
    """Runs the command in all hosts; returns the worst status."""
    # A single word is a command line.
    command = options.command[0] if len(options.command) == 1 else shlex.join(options.command)
    command = f"cd /share && {command}"
    said = {guest: [] for guest in range(hosts.count)}

    def follow(guest, stream):
        for line in stream:
            said[guest].append(line)
            print(f"guest{guest}: {line}", end="", flush=True)

    begin = time.monotonic()
    programs = [hosts.popen(command, guest, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for guest in range(hosts.count)]
    threads = [threading.Thread(target=follow, args=(guest, program.stdout), daemon=True) for guest, program in enumerate(programs)]
    for thread in threads:
        thread.start()
    for program in programs:
        try:
            program.wait(max(0, begin + options.limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            explain_hang(hosts, [guest for guest, other in enumerate(programs) if other.poll() is None], options)
            for other in programs:
                other.kill()
            break
    statuses = [program.wait() for program in programs]
    for thread in threads:
        # ssh's master keeps the stream of a program that has not ended.
        thread.join(None if min(statuses) >= 0 else HEARTBEAT)
    output = {guest: "".join(lines) for guest, lines in said.items()}
    if options.junit:
        write_junit(options, output, statuses, time.monotonic() - begin)
    if missing := re.findall(r"version `(GLIBC_[\d.]+)' not found", "".join(output.values())):
        library = os.confstr("CS_GNU_LIBC_VERSION")
        say(f"The program was built for a newer C library ({missing[0]}): build it in Debian 13, whose {library} hosts have.")
    return max(status if status >= 0 else 124 for status in statuses)


def explain_hang(hosts, hung, options):
    """Shows where the processes of hosts are that have not ended, and keeps the consoles."""
    for guest in hung:
        shown = hosts.tried("ps -eo pid,stat,wchan:24,etimes,args --sort=-etimes | grep -v '\\[\\|ps -eo'", guest, timeout=60).stdout
        say(f"guest{guest} has not ended after {options.limit} s:\n{shown}")
    kept = keep_consoles(hosts)
    names = ", ".join(f"guest{guest}" for guest in hung)
    say(f"No end after {options.limit} s on {names}: its processes are above{kept}, --limit sets the time.")


def keep_consoles(hosts):
    """Copies the hosts' consoles to the share, if it can be written; returns where they are."""
    if not hosts.WRITABLE:
        return ""
    for log in [*hosts.folder.glob("console*"), *hosts.folder.glob("efa-emu.log")]:
        shutil.copy(log, SHARE / f"efa-{log.name}")
    return ", consoles in /share/efa-console*"


def write_junit(options, output, statuses, seconds):
    suite = ElementTree.Element("testsuite", name=" ".join(options.command), tests=str(len(statuses)), time=f"{seconds:.0f}")
    suite.set("failures", str(sum(map(bool, statuses))))
    for guest, status in enumerate(statuses):
        case = ElementTree.SubElement(suite, "testcase", classname=options.instance, name=f"guest{guest}", time=f"{seconds:.0f}")
        if status:
            ElementTree.SubElement(case, "failure", message="no end" if status < 0 else f"exit status {status}")
        printable = re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd]", "?", output[guest])
        ElementTree.SubElement(case, "system-out").text = printable
    ElementTree.ElementTree(suite).write(SHARE / options.junit, encoding="utf-8", xml_declaration=True)


def main(words):
    options = parser().parse_args(words or ["--help"])
    if options.what is None:
        parser().parse_args(["--help"])
    # A core of a program of the host would fill /tmp.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with tempfile.TemporaryDirectory(prefix="efa-rs-") as work:
            return serve(options, Path(work))
    except Unusable as error:
        say(str(error))
    except OSError as error:
        say(f"{error}: make /tmp and /share writable, such as by --tmpfs /tmp, and free space there.")
    except KeyboardInterrupt:
        return 130
    return 125


def serve(options, work):
    """Boots hosts, and runs what the options say; returns its status."""
    hosts = prepare(options, work)
    try:
        boot(hosts)
        if options.what == "shell":
            return subprocess.run([*hosts.ssh(0), "-t", "guest0"], check=False).returncode
        return run(hosts, options)
    except (GuestFailed, AssertionError) as error:
        said = str(error).partition("For more information, try")[0].rstrip()
        raise Unusable(f"The hosts failed{keep_consoles(hosts)}: {said}") from None
    finally:
        if hosts.processes:
            hosts.__exit__(Exception, None, None)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
