# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests that run in guests. Each is a function that returns its tally, and raises a Failure only if it cannot run."""

import json
import os
import re
import shlex
import shutil

from . import arm64, build, cache, console, guest, ktap, steps, toolroot, userland
from .failure import Failure
from .tally import Tally
from .verdict import check

KSELFTEST = cache.CLONE / "tests" / "kselftest"
DEBUG = cache.CLONE / "tests" / "debug"


# Targets of the kernel selftests' Makefile, with the names of their results.
KSELFTESTS = {"run_tests": ("kselftest", ""), "run_slow": ("kselftest", " timeouts"), "run_stress": ("stress", "")}
# Timeout of a suite in a guest, in seconds: several times the duration on a busy host.
LIMIT = 3600


def kselftest(driver, flavour, target="run_tests", timeout=LIMIT):
    """The kernel selftests in a guest that has the devices they ask for."""
    kind, what = KSELFTESTS[target]
    name = f"{kind} {driver} {flavour}{what}"
    if not (KSELFTEST / "Makefile").exists():
        raise Failure("tests/kselftest/Makefile is missing: this clone has no kernel selftests to run.")
    command = f"make -s -C /efa-rs/tests/kselftest {target}"
    tally, _ = in_guest(name, command, driver, flavour, timeout=timeout)
    return tally


def programs(name):
    """Returns the programs of tests/kselftest with these names, which are separated by commas and need no suffix."""
    known = sorted(file.stem for file in KSELFTEST.glob("*.py") if os.access(file, os.X_OK))
    chosen = [part.removesuffix(".py") for part in name.split(",")]
    if missing := [part for part in chosen if part not in known]:
        raise Failure(f"There is no program {missing[0]} in tests/kselftest: choose of {', '.join(known)}.")
    return [f"{part}.py" for part in chosen]


def all_programs():
    """Returns the programs that make kselftest runs, and those that wait for timeouts. The last one checks the kernel log of all."""
    found = re.findall(r"^TEST_PROGS(?:_SLOW)? \+= (\S+)$", (KSELFTEST / "Makefile").read_text(), re.MULTILINE)
    return list(dict.fromkeys(reversed(found)))[::-1]


def cases(pattern):
    """Returns the setting by which programs run only the test cases that match a pattern."""
    return f"EFA_CASES={shlex.quote(pattern)} " if pattern else ""


def repeated(rounds):
    """Returns the setting of how many rounds programs run, if that is not their own choice."""
    return f"EFA_ROUNDS={rounds} " if rounds else ""


def kselftest_part(driver, flavour, program, case=""):
    """Some of the kernel selftests, or of the test cases of one."""
    chosen = programs(program)
    # Single test cases run without the check of the kernel log.
    command = f"{cases(case)}/efa-rs/tests/kselftest/run.sh {' '.join([*chosen, *([] if case else ['dmesg.py'])])}"
    append = "swiotlb=force" if chosen == ["bounce.py"] else ""
    tally, _ = in_guest(f"kselftest {driver} {flavour} {program}", command, driver, flavour, append=append)
    return tally


def bounce(driver, flavour):
    """Runs the selftest of bounce buffers, in a guest of its own."""
    name = f"kselftest {driver} {flavour} swiotlb=force"
    command = "/efa-rs/tests/kselftest/run.sh bounce.py dmesg.py"
    tally, _ = in_guest(name, command, driver, flavour, append="swiotlb=force")
    return tally


def programs_without_kverbs(flavour):
    """Runs selftests with a module without kernel verbs, which must not affect programs."""
    name = f"kselftest rust {flavour} KVERBS=0"
    command = "/efa-rs/tests/kselftest/run.sh queues.py resource_details.py dmesg.py"
    module = build.module_without_kverbs(toolroot.kernel(flavour))
    tally, _ = in_guest(name, command, "rust", flavour, module=module)
    return tally


# Devices of tests that are not about keep-alives. A busy host may delay those for so long that the driver resets a device.
EFA3, EFA4 = (f"profile={profile},keep_alive_ms=0" for profile in ("efa3", "efa4"))

# The guest of each sample: the provider's has no other provider.
SAMPLE_OPTIONS = {
    "null_rdma": {"driver": "none", "devices": []},
    "rdma_exchange": {"driver": "rust", "devices": [EFA3, EFA4]},
}


def sample(name, flavour):
    """Runs a sample in a guest."""
    module = build.sample(name, toolroot.kernel(flavour))
    command = f"/efa-rs/tests/samples/{name}.py"
    tally, _ = in_guest(f"{name} {flavour}", command, flavour=flavour, share=module.parent, **SAMPLE_OPTIONS[name])
    return tally


# Timeout in seconds for a round of the two tests of device removal: several times the need.
KVERBS_ROUND = 60


def client_modules(release):
    """A folder with the modules of clients in the kernel, for guests to share."""
    folder = cache.clone_folder("clients", release)
    folder.mkdir(parents=True, exist_ok=True)
    for module in (build.kverbs_client(release), *(build.sample(name, release) for name in build.SAMPLES)):
        shutil.copy(module, folder)
    return folder


def kernel_clients(flavour):
    """Runs kernel verbs and both samples in one guest."""
    command = "/efa-rs/tests/kselftest/run.sh ../kverbs/kverbs.py ../samples/rdma_exchange.py ../samples/null_rdma.py dmesg.py"
    options = {"share": client_modules(toolroot.kernel(flavour))}
    tally, _ = in_guest(f"kernel clients {flavour}", command, "rust", flavour, [EFA3, EFA4], **options)
    return tally


def kverbs(flavour, rounds=None):
    """Runs clients in the kernel: with two devices of one guest, and in two guests, where the C client talks to the Rust client.

    A device is removed `rounds` times, or as often as the tests choose.
    """
    options = {"share": client_modules(toolroot.kernel(flavour)), "timeout": LIMIT + KVERBS_ROUND * (rounds or 0)}
    local = f"{repeated(rounds)}/efa-rs/tests/kverbs/kverbs.py"
    between = "/efa-rs/tests/kverbs/between.py /share/kverbs_client.ko /share/rdma_exchange.ko"
    if flavour == toolroot.DEBUG:
        between = f"EFA_SLOW_KERNEL=4 {between}"
    devices = [EFA3, EFA4]
    tally, _ = in_guest(f"kverbs {flavour}", local, "rust", flavour, devices, **options)
    removals, _ = in_guest(f"kverbs {flavour} removals", "/efa-rs/tests/kverbs/lnd.py", "rust", flavour, devices, **options)
    two, _ = in_guest(f"kverbs {flavour} between guests", between, "rust", flavour, [EFA4], guests=2, cpus=1, leader=True, **options)
    tally += removals
    tally += two
    return tally


def peer_memory(flavour):
    """Tests RDMA of one guest to and from memory of another device in the other guest."""
    options = {"devices": [EFA3], "guests": 2, "cpus": 1, "leader": True, "hotplug": True, "memory_device": "16M"}
    tally, _ = in_guest(f"peer memory {flavour}", "/efa-rs/tests/peer/peer.py", "rust", flavour, **options)
    return tally


# The device with the most features.
RDMA_CORE_DEVICES = [EFA3]
# Lists of the expected results, by the rdma-core of a userland.
RDMA_CORE_LISTS = {userland.STABLE: "expected", userland.NEXT: "expected.next"}


def rdma_core(drivers, flavour, chosen=userland.STABLE):
    """Runs rdma-core's own tests with each of the drivers, and checks that they end alike."""
    where = f"{flavour}{' next' * (chosen == userland.NEXT)}"
    total, results = Tally(), {}
    for driver in drivers:
        name = f"rdma-core {driver} {where}"
        command = f"/efa-rs/tests/rdma-core/run.py /run/efa-rs/out/results.json {RDMA_CORE_LISTS[chosen]}"
        steps.note(f"{name}: {', '.join(toolroot.versions_in(userland.root(chosen, toolroot.kernel(flavour)), 'rdma-core'))}")
        tally, run = in_guest(name, command, driver, flavour, RDMA_CORE_DEVICES, userland=chosen)
        total += tally
        file = run.shared / "out" / "results.json"
        results[driver] = json.loads(file.read_text()) if file.exists() else {}
    if len(drivers) > 1:
        total += check(f"rdma-core's tests end alike with {' and '.join(drivers)} on {where}", unlike(results))
    return total


# Devices for all ways to transfer data.
INTEROP_DEVICES = [EFA3, EFA4]


def between_guests(name, guests, arguments, driver, flavour, timeout=LIMIT, environment="", **options):
    """Runs tests/interop/run.py on several guests, between which packets overtake each other as on EC2; returns its tally."""
    options = {"guests": guests, "cpus": 1, "leader": True, "timeout": timeout, "fabric": "realistic", **options}
    command = f"{environment}/efa-rs/tests/interop/run.py {' '.join(arguments)}"
    tally, _ = in_guest(name, command, driver, flavour, INTEROP_DEVICES, **options)
    return tally


def pair(flavour):
    """Tests data between two guests on a network that reorders packets: contents, perftest, libfabric and Open MPI."""
    arguments = ["short", "good", "contents", "perftest", "libfabric", "mpi"]
    return between_guests(f"pair of guests {flavour}", 2, arguments, "rust", flavour)


def interop(driver, flavour, short=False, chosen=userland.STABLE, program="", case="", rounds=None):
    """Tests data between guests: contents, and third-party software, of which libfabric and MPI run only with our driver. With the
    next userland, only software that uses its rdma-core runs. Each test runs `rounds` times, or once.
    """
    name = f"interop {driver} {flavour}{' short' * short}{' next' * (chosen == userland.NEXT)}"
    length = ["short"] * short
    if chosen == userland.NEXT:
        parts = {2: ["perftest", "inline", *(["libfabric"] if driver == "rust" else [])]}
    elif driver == "rust":
        parts = {2: [], 4: ["soak"] if short else []}
    else:
        # Four guests take ten minutes of CPU time: `make soak DRIVER=c` runs them.
        parts = {2: ["contents", "perftest"], **({} if short else {4: ["soak"]})}
    if program:
        parts = {4: [program]} if program == "soak" else {2: [program]}
    elif case:
        # The test of four guests has no test cases to choose from.
        parts.pop(4, None)
    environment = repeated(rounds) + cases(case)
    total = Tally()
    for guests, what in parts.items():
        timeout = (LIMIT if short else 2 * LIMIT) * (rounds or 1)
        total += between_guests(f"{name} {guests} guests", guests, length + what, driver, flavour, timeout, environment, userland=chosen)
    return total


def soak(driver, flavour):
    """A million messages between four guests."""
    return between_guests(f"soak {driver} {flavour}", 4, ["soak"], driver, flavour, 7200, "EFA_MESSAGES=1000000 ")


def unlike(results):
    """Returns the tests that did not end alike with all drivers, or not for the same reason."""
    one, *others = results.values()
    return [
        f"{name}: {', '.join(f'{driver}: {ending(its.get(name))}' for driver, its in results.items())}"
        for name in sorted(set().union(*results.values()))
        if any(other.get(name) != one.get(name) for other in others)
    ] or ["no test ran"] * (not one)


def ending(result):
    """Describes how a test ended, in a line."""
    if result is None:
        return "did not run"
    # The ends of a test that ran several times. Details of a failed test are in the output.
    draws = f" ({result['more']})" if " " in result["more"] and "\n" not in result["more"] else ""
    return f"{result['outcome']} {result['reason']}".strip() + draws


# Events of a driver that waits for the end of a reset, and acknowledges it.
OF_A_RESET = ("read ", "write MMIO_RESP_", "write DEV_CTL = 0x0")
TRACED = re.compile(r"^ *[\d.]+ (?P<device>\d+) (?P<event>.*)$", re.MULTILINE)


def power_off(driver, flavour):
    """Checks the effect of a power-off on the devices of tests/power-off/prepare.py, which no test in the guest can observe."""
    name = f"power-off {driver} {flavour}"
    devices = ["profile=efa3", "profile=efa2", "profile=efa2"]
    options = guest.Options("/efa-rs/tests/power-off/prepare.py", driver, flavour, devices, timeout=LIMIT, quiet=True)
    run = guest.prepare(options)
    with steps.step(name):
        status = guest.execute(run)
    tally = check(f"{name}: devices are prepared", [f"exit status {status}: see {run.folder}"] if status else [])
    for what, problems in power_off_problems((run.folder / "trace.log").read_text()).items():
        tally += check(f"{name}: {what}", problems)
    if tally.failed:
        steps.note(f"{name}: further logs:{listed(run.logs())}")
    return tally


def power_off_problems(trace):
    """Returns the problems in the devices' traces of a power-off, by requirement."""
    events = {"0": [], "1": [], "2": []}
    for match in TRACED.finditer(trace):
        events[match["device"]].append(match["event"])
    used, unbound, silent = events.values()
    last = "reset SHUTDOWN"
    told = silent.count(last)
    after = [event for event in used[used.index(last) + 1 :] if not event.startswith(OF_A_RESET)] if last in used else ["no reset"]
    return {
        "a device in use is reset for a shutdown, and left alone then": [f"after {last}: {after}"] if after != ["reset end"] else [],
        "a device without driver is left alone": [last] * unbound.count(last),
        # The second reset may follow a reset of the bus.
        "a device that does not answer gets two resets at most": [f"{told} times {last}"] if told not in (1, 2) else [],
        "no device sees what a correct driver never does": re.findall(r"protocol error.*", trace),
    }


def debug(driver, at_once):
    """Runs the selftests and the tests of the debug kernel in a guest with it: those that do many things AT_ONCE, or the others.

    In the guest of the others, emulated CPUs take turns.
    """
    name = f"debug kernel {driver}{', at once' * at_once}"
    command = f"/efa-rs/tests/debug/run.sh {'--at-once' if at_once else '--others'}"
    tally, _ = in_debug_guest(name, command, driver, threads=at_once)
    return tally


def known_reports(folder):
    """The warnings that the kernel may give in the tests of a folder."""
    return console.known_reports((folder / "known-reports").read_text())


def in_debug_guest(name, command, driver="rust", timeout=4 * LIMIT, **options):
    """Runs tests/debug/run.sh in a guest with the debug kernel; returns the same as in_guest()."""
    # KASAN's shadow is an eighth of the memory, and freed memory stays in its quarantine for a while.
    options |= {"timeout": timeout, "memory": "2G", "known_reports": known_reports(DEBUG)}
    return in_guest(name, command, driver, toolroot.DEBUG, **options)


# The progress lines of tests that have rounds.
PROGRESS = re.compile(r"^\s*# (.*: \d+ of \d+ rounds.*?)\s*$")


def show_progress(name, line):
    if found := PROGRESS.match(line):
        steps.note(f"{name}: {found[1]}")


def kselftest_devices():
    """The devices that the selftests ask for."""
    lines = (KSELFTEST / "devices").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def listed(logs):
    """A line for each log."""
    return "".join(f"\n    {what}: {file}" for what, file in logs.items())


def in_guest(name, command, driver, flavour, devices=None, progress=False, **options):
    """Runs a command that prints KTAP in a guest; returns its tally, and the run. The devices are those of the selftests.

    With PROGRESS, progress lines of a test are shown as they arrive.
    """
    if devices is None:
        devices = kselftest_devices()
    options = {"memory": arm64.memory(flavour), "timeout": LIMIT, **options}
    if progress:
        options["watch"] = lambda line: show_progress(name, line)
    chosen = guest.Options(command, driver, flavour, devices, quiet=True, **options)
    chosen.timeout *= arm64.slowness(*chosen.flavours())
    run, trouble, status = guest.prepare(chosen), None, 0
    with steps.step(name, lambda: run.folder / "guest0.output.log"):
        try:
            status = guest.execute(run)
        except Failure as failure:
            trouble = failure
    log = run.folder / "guest0.output.log"
    output = log.read_text(errors="replace") if log.exists() else ""
    tally = ktap.parse(output)
    if trouble:
        steps.note(f"{name}: {trouble}")
        tally.fail(f"{name}: the guest failed")
    if status and not tally.failed:
        tally.fail(f"{name}: exit status {status} in spite of its results")
    if tally.failed:
        said = "".join(f"\n    {line}" for line in ktap.failures(output))
        steps.note(f"{name}: the output is in {log}, and what else may tell the cause in{listed(run.logs())}{said}")
    steps.note(f"{name}: {tally}")
    return tally, run
