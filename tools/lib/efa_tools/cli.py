# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The command lines of the tools."""

import argparse
import functools
import os
import re
import sys
from pathlib import Path

from . import (
    abi,
    arm64,
    bench,
    build,
    cache,
    canary,
    check,
    check_arm64,
    data_bench,
    guest,
    host_diff,
    host_tests,
    install,
    interrupt,
    lives,
    namespace,
    overlay,
    package,
    qemu,
    remote,
    running,
    source_checks,
    srd_bench,
    steps,
    suite,
    times,
    toolroot,
    userland,
)
from .failure import Failure, sentence
from .schedule import Job


def guarded(main):
    """Prints a Failure or an OSError as a sentence, and returns exit status 1 then. For Ctrl-C see interrupt.py."""

    @functools.wraps(main)
    def wrapper():
        interrupt.watch()
        try:
            return main()
        except (Failure, OSError) as failure:
            print(sentence(failure), file=sys.stderr)
            return 1

    return wrapper


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def size(text):
    if not re.fullmatch(r"[1-9]\d*[MG]", text):
        raise argparse.ArgumentTypeError("must be a whole number of M or G, such as 512M")
    return text


def add_part(parser, what):
    """Adds the options that select a part of a suite."""
    parser.add_argument("--program", default="", metavar="NAME", help=f"run only this: {what}")
    parser.add_argument("--case", default="", metavar="PATTERN", help="run only the cases whose names match, such as 'create_qp*'")


def cloud_flavour(architecture):
    """The flavour of Debian's kernel for clouds, by the architecture."""
    if (flavour := f"cloud-{architecture}") not in toolroot.all_flavours():
        raise argparse.ArgumentTypeError("must be amd64 or arm64")
    return flavour


def add_combination(parser, drivers):
    parser.add_argument("--driver", choices=drivers, default="rust", help="the efa module to load (default: rust)")
    parser.add_argument("--flavour", choices=toolroot.all_flavours(), default="cloud-amd64", help="the kernel (default: cloud-amd64)")


def add_userland(parser):
    names = " or ".join(userland.ALL)
    text = f"the userland, with its rdma-core: {names} (default: {userland.STABLE}, the toolroot's)"
    parser.add_argument("--userland", default=userland.STABLE, metavar="NAME", help=text)


def add_guests(parser, guests=1):
    """Adds the options that describe guests."""
    add_combination(parser, ("rust", "c", "none"))
    text = "Debian's cloud kernel of this architecture"
    parser.add_argument("--arch", dest="flavour", type=cloud_flavour, metavar="amd64|arm64", help=text)
    add_userland(parser)
    text = "boot from a root that tools/vm root has made"
    parser.add_argument("--overlay", type=Path, metavar="DIR", help=text)
    parser.add_argument("--guests", type=positive, default=guests, metavar="N", help=f"number of guests (default: {guests})")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument(
        "--device",
        dest="devices",
        action="append",
        default=[],
        metavar="SPEC",
        help="an emulated device for each guest, such as profile=efa2",
    )
    devices.add_argument("--instance", metavar="SPEC", help="the emulated devices of an EC2 instance for each guest, such as p4d.24xlarge")
    parser.add_argument("--hotplug", action="store_true", help="devices in hot-plug slots, and QEMU's monitor in guests")
    parser.add_argument(
        "--memory-device", metavar="SIZE", help="an IOMMU for guest 0, and a device with memory of SIZE in a BAR, such as 16M"
    )
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="scenario that the emulator runs when it starts")
    parser.add_argument(
        "--fabric",
        default="realistic",
        metavar="SETTINGS",
        help="efa-emu's network between devices (default: realistic)",
    )
    text = "a further argument of efa-emu, as in --emulator-option=--file-memory; repeatable"
    parser.add_argument("--emulator-option", dest="emulator_options", action="append", default=[], metavar="WORD", help=text)
    parser.add_argument("--share", type=Path, metavar="FOLDER", help="a folder of the host that guests mount at /share, read-only")
    parser.add_argument("--memory", type=size, default="1G", help="memory of each guest, such as 512M (default: 1G)")
    parser.add_argument("--cpus", type=positive, default=2, metavar="N", help="CPUs of each guest (default: 2)")
    parser.add_argument("--append", default="", metavar="TEXT", help="further kernel parameters, such as swiotlb=force")
    text = "a new or empty folder for logs, traces and /run/efa-rs/out (default: in the cache)"
    parser.add_argument("--output", type=Path, metavar="DIR", help=text)
    parser.add_argument("--keep", action="store_true", help="never remove the run's folder")
    parser.add_argument("--emulator", type=Path, metavar="FILE", help="use this efa-emu instead of building one")
    parser.add_argument("--module", type=Path, metavar="FILE", help="use this efa.ko instead of building one")


def guest_options(arguments, **more):
    """Returns the options of guests on the command line, with MORE."""
    userland.require(arguments.userland)
    options = guest.Options(**{"guesses": False, "cpu": qemu.MOST, **vars(arguments), **more})
    for file in (options.emulator, options.module, options.scenario):
        if file and not file.is_file():
            raise Failure(f"There is no file {file}: name one that exists.")
    if options.share and not options.share.is_dir():
        raise Failure(f"There is no folder {options.share}: give --share one that exists.")
    return options


@guarded
def vm():
    """Runs a command of VM_COMMANDS if the first word is one. Otherwise the words are options and a command for guests."""
    first = sys.argv[1:2]
    return VM_COMMANDS[first[0]](sys.argv[2:]) if first and first[0] in VM_COMMANDS else boot()


def boot():
    parser = argparse.ArgumentParser(
        prog="vm",
        description="Boots guests, and runs a command or a shell in each. Their root file system is the toolroot, or the next userland."
        " They have this clone at /efa-rs, and a scratch folder at /run/efa-rs/out. The exit status is the command's.",
        epilog="vm lab has guests that stay; vm exec runs a command in guests that run, and vm ctl controls their devices; vm root changes"
        " what guests have: each has --help.",
    )
    add_guests(parser)
    text = "power off all guests when the command in guest 0 ends; it reaches the others by ssh"
    parser.add_argument("--leader", action="store_true", help=text)
    parser.add_argument("--agent", action="store_true", help="run an agent in guests, for tools/vm exec and for ssh between guests")
    parser.add_argument("--timeout", type=float, metavar="S", help="timeout in seconds (default: 600; a shell: none)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="passed to sh -c (default: a shell)")
    arguments = parser.parse_args()
    command = " ".join(arguments.command) or None
    timeout = arguments.timeout or (600 if command else float("inf"))
    return guest.execute_until_interrupted(guest.prepare(guest_options(arguments, command=command, timeout=timeout)))


def vm_lab(words):
    parser = argparse.ArgumentParser(
        prog="vm lab", description="Boots guests that stay until Ctrl-C. vm exec runs programs in them, vm ctl controls their devices."
    )
    add_guests(parser, 2)
    arguments = parser.parse_args(words)
    if not (arguments.devices or arguments.instance):
        arguments.devices = ["profile=efa3"]
    run = guest.prepare(guest_options(arguments, command="sleep infinity", timeout=float("inf"), agent=True))
    running.announce_when_ready(run)
    return guest.execute_until_interrupted(run)


def vm_root(words):
    parser = argparse.ArgumentParser(
        prog="vm root",
        description="Runs a command in a root of one's own, which is made if need be. Programs run on this host's CPU and reach its"
        " network. Guests of vm --overlay DIR have the changed root. The exit status is the command's.",
    )
    add_userland(parser)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder for the changes to the root")
    text = "passed to sh -c, such as 'apt-get update && apt-get install -y fio' (default: a shell)"
    parser.add_argument("command", nargs=argparse.REMAINDER, help=text)
    arguments = parser.parse_args(words)
    userland.require(arguments.userland)
    command = " ".join(arguments.command)
    return overlay.run(arguments.folder, arguments.userland, ["sh", "-c", command] if command else ["bash", "-l"])


def add_running(parser):
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="the run of the guests (default: the latest)")


def vm_exec(words):
    parser = argparse.ArgumentParser(
        prog="vm exec",
        description="Runs a command in a guest that runs, with this program's standard input, output and error, and its exit status:"
        f" {remote.LOST} if the guest ends before the command does.",
    )
    add_running(parser)
    parser.add_argument("--guest", type=int, default=0, metavar="N", help="number of the guest (default: 0)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command; a single word is passed to sh -c (default: a shell)")
    arguments = parser.parse_args(words)
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if len(command) == 1:
        command = ["sh", "-c", *command]
    return running.find(arguments.run).run(arguments.guest, command or None)


def vm_ctl(words):
    parser = argparse.ArgumentParser(prog="vm ctl", description="Sends requests to the emulator of guests that run: see emulator.md.")
    add_running(parser)
    parser.add_argument("requests", nargs="+", metavar="JSON", help='such as \'{"command":"devices"}\'')
    arguments = parser.parse_args(words)
    return running.find(arguments.run).control(arguments.requests)


VM_COMMANDS = {"lab": vm_lab, "root": vm_root, "exec": vm_exec, "ctl": vm_ctl}


@guarded
def build_command():
    parser = argparse.ArgumentParser(prog="build", description="Builds parts of efa-rs in the toolroot.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("toolroot", help="the Debian root in which all else is built")
    commands.add_parser("emulator", help="the program efa-emu")
    command = commands.add_parser("module", help="efa.ko")
    add_combination(command, ("rust", "c"))
    command.add_argument("--kernel", metavar="RELEASE", help="a kernel of the toolroot, in place of --flavour")
    command = commands.add_parser("sample", help="the modules of samples/: null_rdma.ko, a provider, and rdma_exchange.ko, a client")
    flavours = toolroot.all_flavours()
    command.add_argument("--flavour", choices=flavours, default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    commands.add_parser("dist", help="the source tarball")
    commands.add_parser("deb", help="the Debian package efa-rs-dkms")
    commands.add_parser("emulator-deb", help="the Debian package efa-emu")
    commands.add_parser("rpm", help="the RPM efa-rs-dkms")
    commands.add_parser("clean", help="remove the builds of this clone")
    commands.add_parser("distclean", help="remove the whole cache, also that of other clones")
    arguments = parser.parse_args()
    match arguments.command:
        case "toolroot":
            print(toolroot.root())
        case "emulator":
            print(build.emulator(release=True))
        case "module":
            print(build.module(arguments.driver, arguments.kernel or toolroot.kernel(arguments.flavour)))
        case "sample":
            release = toolroot.kernel(arguments.flavour)
            print(*(build.sample(name, release) for name in build.SAMPLES), sep="\n")
        case "dist" | "deb" | "emulator-deb" | "rpm" as what:
            print(getattr(package, what.replace("-", "_"))())
        case "clean":
            namespace.remove(cache.clone_folder())
        case "distclean":
            namespace.remove(cache.folder())
    return 0


def failed_jobs(jobs, name):
    """Returns the jobs that failed in the last run of the suite NAME."""
    failed = times.failed(name)
    if not failed:
        raise Failure(f"Nothing failed in the last run of {name}: leave --failed out to run all of it.")
    chosen = [job for job in jobs if job.name in failed]
    if not chosen:
        raise Failure(
            f"The jobs that failed in the last run of {name} ({'; '.join(sorted(failed))}) are none of those that these options select"
            f" ({'; '.join(job.name for job in jobs)}): give the options of that run."
        )
    return chosen


def check_parser():
    """The parser of tools/check, and those of the suites by their names."""
    parser = argparse.ArgumentParser(
        prog="check", description="Runs tests and checks; the last line says how many passed, failed and were skipped."
    )
    suites = parser.add_subparsers(dest="suite", metavar="SUITE")
    for name, text in (
        ("check", "the suite of CI (the default)"),
        ("check-all", "make check, and more: the C driver, a second kernel, bad networks, recovery, peer memory"),
    ):
        suites.add_parser(name, help=text)
    suites.add_parser("check-arm64", help="modules, selftests, abi-diff and data between guests on kernels of arm64")
    suites.add_parser("lint", help="format, warnings and laws")
    suites.add_parser("deny", help="licences and sources of the emulator's dependencies, and advisories about them")
    suites.add_parser("test-host", help="the tests that need no guest")
    command = suites.add_parser("test-tools", help="the tests of the tools")
    add_part(command, "a file of tests/tools, such as test_cache")
    attack = suites.add_parser("attack", help="hostile machines, peers and control clients against an emulator")
    attack.add_argument("--seconds", type=positive, default=10, metavar="N", help="duration of each attack (default: 10)")
    attack.add_argument("--rounds", type=positive, metavar="N", help="number of kills of one of two emulators (default: few)")
    suites.add_parser("cargo-install", help="install the emulator with cargo from the clone, and run it")
    suites.add_parser("wireshark", help="Wireshark's dissection of the emulator's captures")
    fuzz = suites.add_parser("fuzz", help="coverage-guided fuzzing of the emulator")
    fuzz.add_argument("--seconds", type=positive, default=600, metavar="N", help="duration of each target (default: 600)")
    schedules = suites.add_parser("schedules", help="random schedules with the driver as a program")
    schedules.add_argument("--seconds", type=positive, default=60, metavar="N", help="duration (default: 60)")
    fuzz = suites.add_parser("fuzz-driver", help="the same with libFuzzer")
    fuzz.add_argument("--seconds", type=positive, default=600, metavar="N", help="duration (default: 600)")
    fuzz.add_argument("--keep", action="store_true", help="replace the repository's corpus")
    diff = suites.add_parser("host-diff", help="sequences of verbs and faults in a guest and with the driver as a program")
    diff.add_argument("--count", type=positive, default=1000, metavar="N", help="number of sequences (default: 1000)")
    diff.add_argument("--flavour", choices=toolroot.all_flavours(), default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    for name, text in (
        ("kselftest", "the kernel selftests in a guest"),
        ("stress", "the long kernel selftests"),
        ("rdma-core", "rdma-core's own tests in a guest"),
        ("interop", "data between guests: contents, perftest, libfabric and Open MPI"),
        ("soak", "a million messages between four guests"),
        ("power-off", "a power-off resets the devices in use"),
    ):
        command = suites.add_parser(name, help=text)
        add_combination(command, ("rust", "c"))
        if name == "kselftest":
            add_part(command, "programs of tests/kselftest, separated by commas, such as limits")
        if name == "interop":
            command.add_argument("--short", action="store_true", help="only the part that make check runs")
            add_part(command, "a part of tests/interop/run.py: contents, efa4, perftest, libfabric, mpi or soak")
            command.add_argument("--rounds", type=positive, metavar="N", help="how often each test runs (default: once)")
        if name in ("interop", "rdma-core"):
            add_userland(command)
    command = suites.add_parser("rdma-core-diff", help="compare the results of rdma-core's tests with both drivers")
    command.add_argument("--flavour", choices=toolroot.all_flavours(), default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    add_userland(command)
    command = suites.add_parser("life", help="failure, recovery and removal of devices in use")
    add_combination(command, ("rust", "c"))
    command.add_argument("--rounds", type=positive, metavar="N", help="rounds of each test (default: few)")
    command.add_argument("--tests", default="", metavar="NAMES", help="parts of names of tests, separated by semicolons (default: all)")
    command = suites.add_parser("sample", help="the provider and the client of samples/, each in a guest")
    command.add_argument("--flavour", choices=toolroot.all_flavours(), default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    command = suites.add_parser("kverbs", help="a client of kernel verbs, in guests")
    command.add_argument("--flavour", choices=toolroot.all_flavours(), default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    command.add_argument("--rounds", type=positive, metavar="N", help="number of removals of a device (default: few)")
    command = suites.add_parser("guides", help="the commands of the guides, in guests and on the host")
    command.add_argument("--flavour", choices=toolroot.all_flavours(), default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    command = suites.add_parser("peer-memory", help="dma-buf registration and revocation")
    command.add_argument("--flavour", choices=toolroot.all_flavours(), default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    command = suites.add_parser("abi-diff", help="compare the uverbs interface with the C driver's, case by case")
    names = [*toolroot.FLAVOURS, *arm64.FLAVOURS]
    command.add_argument("--flavour", choices=names, default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    text = "profile of the device in most cases; repeatable (default: each)"
    command.add_argument("--profile", action="append", choices=abi.PROFILES, help=text)
    command.add_argument("--case", default="", metavar="PATTERN", help="run only the cases that match or begin with this, such as 'cq: *'")
    text = "the package on machines with systemd: install, kernel upgrades, removal, failures"
    command = suites.add_parser("check-install", help=text)
    text = f"one of {', '.join(install.SCENARIOS)} (default: all)"
    command.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=text)
    debug = suites.add_parser("check-debug", help="selftests, stress, the ABI and kernel clients on a debug kernel")
    debug.add_argument("--driver", choices=("rust", "c"), default="rust", help="the efa module to load (default: rust)")
    suites.add_parser("upstream", help="the RDMA abstractions as a patch series for Linux, and their tests in that kernel")
    command = suites.add_parser("canary", help="the module for Debian's newest kernel")
    text = "the Debian suite, also if its kernel is not newer (default: the newest, if its kernel is newer)"
    command.add_argument("--debian", choices=canary.SUITES, default="", help=text)
    for command in suites.choices.values():
        file = os.environ.get("EFA_JUNIT") or None
        command.add_argument("--junit", type=Path, metavar="FILE", default=file, help="also write the results as JUnit XML")
        command.add_argument("--failed", action="store_true", help="only what failed in the previous run")
    return parser


def jobs_of(arguments):
    """Returns the jobs of a suite."""
    match arguments.suite:
        case "abi-diff":
            return check.abi_diffs(arguments.flavour, arguments.profile or abi.PROFILES, arguments.case)
        case None | "check":
            return check.fast()
        case "check-all":
            return check.everything()
        case "check-arm64":
            return check_arm64.everything()
        case "lint":
            return check.lint()
        case "deny":
            return [Job("deny", source_checks.deny)]
        case "test-host":
            return [Job("host tests", host_tests.test_host), Job("host tests of the driver", host_tests.test_driver)]
        case "test-tools":
            name = check.part("tests of the tools", arguments.program, arguments.case)
            return [Job(name, lambda: host_tests.test_tools(arguments.program, arguments.case))]
        case "attack":
            return [check.attack(arguments.seconds, arguments.rounds)]
        case "cargo-install":
            return [check.cargo_install()]
        case "wireshark":
            return [Job("wireshark", host_tests.wireshark)]
        case "upstream":
            return check.upstream_series()
        case "canary":
            return [Job("canary", lambda: canary.run(arguments.debian))]
        case "fuzz":
            return [Job("fuzzing", lambda: host_tests.fuzz(arguments.seconds))]
        case "schedules":
            return [Job("schedules", lambda: lives.schedules(arguments.seconds))]
        case "fuzz-driver":
            return [Job("fuzzing the driver", lambda: lives.fuzz(arguments.seconds, arguments.keep))]
        case "host-diff":
            return [Job("host-diff", lambda: host_diff.run(arguments.count, arguments.flavour))]
        case "kselftest":
            return check.kselftests(arguments.driver, arguments.flavour, arguments.program, arguments.case)
        case "stress":
            name = f"stress {arguments.driver} {arguments.flavour}"
            return [Job(name, lambda: suite.kselftest(arguments.driver, arguments.flavour, "run_stress", timeout=7200))]
        case "soak":
            name = f"soak {arguments.driver} {arguments.flavour}"
            return [Job(name, lambda: suite.soak(arguments.driver, arguments.flavour))]
        case "check-debug":
            return check.check_debug(arguments.driver)
        case "check-install":
            return [Job("install", lambda: install.run(arguments.scenarios))]
        case "guides":
            return check.guides(arguments.flavour)
        case "power-off":
            return [check.power_off(arguments.driver, arguments.flavour)]
        case "life":
            chosen = [text.strip() for text in arguments.tests.split(";") if text.strip()]
            return check.life_jobs(arguments.driver, arguments.flavour, arguments.rounds, chosen, measured=True)
        case "sample":
            return [check.sample(name, arguments.flavour) for name in build.SAMPLES]
        case "kverbs":
            return [check.kverbs(arguments.flavour, arguments.rounds)]
        case "peer-memory":
            return [check.peer_memory(arguments.flavour)]
        case "interop":
            which = arguments.short, arguments.userland, arguments.program, arguments.case, arguments.rounds
            return [check.interop(arguments.driver, arguments.flavour, *which)]
        case "rdma-core":
            return [check.rdma_core((arguments.driver,), arguments.flavour, arguments.userland)]
        case "rdma-core-diff":
            return [check.rdma_core(("rust", "c"), arguments.flavour, arguments.userland)]


@guarded
def check_command():
    arguments = check_parser().parse_args()
    userland.require(getattr(arguments, "userland", userland.STABLE))
    steps.note(f"the cache is {cache.folder()}")
    jobs, name = jobs_of(arguments), arguments.suite or "check"
    if getattr(arguments, "failed", False):
        jobs = failed_jobs(jobs, name)
    return check.status(check.run(jobs, name, getattr(arguments, "junit", None)))


@guarded
def bench_command():
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Compares the costs of both drivers on the same kernel and devices: instructions, commands and round trips of each"
        " verb, memory of each object, a probe, the module. Kernel verbs are compared with Amazon's C driver, whose figures are in"
        " bench-amazon.json. Writes bench.json and bench.svg, too.",
    )
    parser.add_argument("--flavour", choices=toolroot.FLAVOURS, default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    folder = cache.CLONE / "Documentation"
    parser.add_argument("--output", type=Path, default=folder, metavar="FOLDER", help="folder for the results (default: Documentation)")
    text = "only show the functions in which the drivers differ, or those of the Rust driver for a kernel verb"
    parser.add_argument("--profile", metavar="VERB", help=text)
    parser.add_argument("--lines", type=positive, default=40, metavar="N", help="number of functions that --profile shows (default: 40)")
    arguments = parser.parse_args()
    steps.note(f"the cache is {cache.folder()}")
    if arguments.profile:
        return bench.profile(arguments.flavour, arguments.profile, arguments.lines)
    return bench.run(arguments.flavour, arguments.output)


@guarded
def bench_data_command():
    parser = argparse.ArgumentParser(
        prog="bench-data",
        description="Measures how fast data moves between two guests over emulated EFAs, over rdma_rxe in the same guests, and how"
        " fast a memcpy is; then what bench-srd does. Writes bench-data.json and bench-data.svg, too.",
    )
    parser.add_argument("--driver", choices=("rust", "c"), default="rust", help="the efa module to load (default: rust)")
    folder = cache.CLONE / "Documentation"
    parser.add_argument("--output", type=Path, default=folder, metavar="FOLDER", help="folder for the results (default: Documentation)")
    arguments = parser.parse_args()
    steps.note(f"the cache is {cache.folder()}")
    return data_bench.run(arguments.driver, arguments.output)


@guarded
def bench_srd_command():
    parser = argparse.ArgumentParser(
        prog="bench-srd",
        description="Simulates what the emulated devices' transport does when many send at once, beside TCP on the same network."
        " Writes bench-srd.json and bench-srd.svg, too.",
    )
    folder = cache.CLONE / "Documentation"
    parser.add_argument("--output", type=Path, default=folder, metavar="FOLDER", help="folder for the results (default: Documentation)")
    arguments = parser.parse_args()
    steps.note(f"the cache is {cache.folder()}")
    print(srd_bench.line(srd_bench.run(arguments.output)), flush=True)
    return 0
