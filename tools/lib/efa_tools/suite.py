# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The tests and checks: each is a function that returns its tally, and fails only if it cannot run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from . import arm64, build, cache, console, guest, ktap, laws, steps, toolroot, userland
from .failure import Failure
from .tally import FAILED, PASSED, SKIPPED, Case, Tally

KSELFTEST = cache.CLONE / "tests" / "kselftest"
DEBUG = cache.CLONE / "tests" / "debug"


def check(name, problems):
    """One check that passes if it has found no problem."""
    tally = Tally()
    if problems:
        steps.note(f"{name}: failed\n" + "\n".join(f"    {problem}" for problem in problems))
        tally.fail(name, said="\n".join(map(str, problems)))
    else:
        tally.succeed(name)
    return tally


def attempt(name, action, *arguments):
    """One check that passes if the action, such as a build, does not fail."""
    try:
        action(*arguments)
    except Failure as failure:
        return check(name, str(failure).splitlines())
    return check(name, [])


def rustfmt():
    """All Rust files are formatted: those of the kernel as the kernel's are."""
    emulator, rest = laws.files("emulator/*.rs"), laws.files("*.rs", ":!emulator/")

    def action():
        with steps.step("rustfmt") as log:
            for edition, names in (("2024", emulator), ("2021", rest)):
                command = ["rustfmt", "--check", "--edition", edition, *(f"/efa-rs/{name}" for name in names)]
                if names:
                    steps.run(build.in_toolroot(command), log, "rustfmt --check")

    return attempt("rustfmt", action)


CLIPPY = ("CLIPPY=1", "W=e", "CLIPPY_CONF_DIR=/efa-rs")


def clippy_module(flavour):
    """The module has no warning of the compiler or of clippy with the kernel's lints."""
    return attempt(f"clippy of the module {flavour}", lambda: build.rust_module(toolroot.kernel(flavour), *CLIPPY, variant="-clippy"))


# Functions that only clients in the kernel call.
KERNEL_VERBS = re.compile(r"\b(post_send|post_recv|poll_cq|req_notify_cq|get_dma_mr|alloc_mr|map_mr_sg)\b")


def module_without_kverbs(release):
    return build.rust_module(release, "KVERBS=0", variant="-no-kverbs")


def without_kverbs():
    """KVERBS=0 leaves out what clients in the kernel need, and nothing else does."""
    release = toolroot.kernel(toolroot.FLAVOURS[0])
    with_them = kernel_verbs(build.rust_module(release))
    without = kernel_verbs(module_without_kverbs(release))
    problems = [f"it has {name}" for name in without] + ["no module has any"] * (not with_them)
    return check("a module with KVERBS=0 has no kernel verbs", problems)


def kernel_verbs(module):
    """The kernel verbs that a module has."""
    command = build.in_toolroot(["nm", "--demangle", f"{build.BUILD}/{module.name}"], [(module.parent, build.BUILD, "ro")])
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(set(KERNEL_VERBS.findall("\n".join(line for line in symbols.splitlines() if "Ops<" in line))))


def clippy_samples():
    """Nor have the samples, with what they take of the module."""
    release = toolroot.kernel(toolroot.FLAVOURS[0])
    total = Tally()
    for name in build.SAMPLES:
        total += attempt(f"clippy of the sample {name}", lambda name=name: build.sample(name, release, *CLIPPY, variant="-clippy"))
    return total


def clippy_emulator():
    """The workspace emulator/ has no warning of the compiler or of clippy."""

    def action():
        with build.cargo_lock("debug"), steps.step("clippy of the emulator") as log:
            build.cargo(log, "clippy", "clippy", "--workspace", "--all-targets", after=("--", "-D", "warnings"))

    return attempt("clippy of the emulator", action)


def deny():
    """The emulator's dependencies have licences and sources that emulator/deny.toml allows, and nobody has warned of them."""
    build.cargo_deny()
    with steps.step("licences, bans and sources of crates") as log:
        tally = attempt("licences, bans and sources of crates", build.deny, log, "cargo deny", "check", "bans", "licenses", "sources")
    with steps.step("advisories about crates") as log:
        try:
            build.deny(log, "Fetching the advisories", "fetch", "db")
        except Failure:
            steps.note(f"advisories about crates: skipped, as RustSec's list of them can't be fetched: see {log.name}")
            tally.skip("advisories about crates", "RustSec's list of them can't be fetched")
            return tally
        tally += attempt("advisories about crates", build.deny, log, "cargo deny", "check", "--disable-fetch", "advisories")
    return tally


def project_laws():
    """The laws that a program can check."""
    tally = Tally()
    for law in laws.ALL:
        tally += check(law.__doc__.strip().rstrip("."), law())
    return tally


CARGO_TEST = re.compile(r"^test (\S+) (?:- .*)?\.\.\. (ok|FAILED|ignored)\b", re.MULTILINE)
CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


def cargo_tally(name, run):
    """Runs `cargo test` by run(log) and adds up the tests of all its programs."""
    tally, trouble = Tally(), None
    with steps.step(name) as log:
        try:
            run(log)
        except Failure as failure:
            trouble = failure
    text = Path(log.name).read_text(errors="replace")
    for counts in CARGO_RESULT.findall(text):
        tally += Tally(*map(int, counts))
    outcomes = {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}
    tally.cases += [Case(test, outcomes[ended]) for test, ended in CARGO_TEST.findall(text)]
    tally.failures += re.findall(r"^test (\S+) .*\.\.\. FAILED$", text, re.MULTILINE)
    if trouble:
        steps.note(f"{name}: {trouble}")
    if not tally.total() or trouble and not tally.failed:
        tally.fail(f"{name}: cargo test did not run to its end")
    return tally


def test_host():
    """The tests of the workspace emulator/, which are also those of efa_rs/hw."""

    def run(log):
        arguments = ("test", "--workspace", "--no-fail-fast")
        with build.cargo_lock("debug"):
            build.cargo(log, "Building the tests", *arguments, "--no-run")
        build.cargo(log, "cargo test", *arguments)

    return cargo_tally("host tests", run)


def test_asan():
    """The same tests under AddressSanitizer, if the host has a nightly toolchain: Debian's has no sanitizers."""
    name, target = "host tests with AddressSanitizer", "x86_64-unknown-linux-gnu"
    if not build.has_nightly():
        steps.note(f"{name}: skipped, as there is no nightly: rustup toolchain install nightly")
        tally = Tally()
        tally.skip(name, "there is no nightly")
        return tally
    arguments = ("test", "--workspace", "--no-fail-fast", "--target", target)

    def run(log):
        flags = "-Zsanitizer=address --cfg sanitized"
        with build.cargo_lock("nightly"):
            build.nightly(log, flags, *arguments, "--no-run")
        build.nightly(log, flags, *arguments)

    return cargo_tally(name, run)


def attack(seconds):
    """Machines, peers and control clients that do their worst to an emulator, each for so long, while others use it; no guests."""

    def action(log):
        environment = {"EFA_SECONDS": str(seconds)}
        # With the features that the host tests build it with: it is there already.
        arguments = ("test", "--workspace", "--test", "attack", "--test", "killed", "--no-fail-fast")
        with build.cargo_lock("debug"):
            build.cargo(log, "Building the emulator", "build", "--workspace", "--bin", "efa-emu")
            build.cargo(log, "Building the attacks", *arguments, "--no-run", environment=environment)
        build.cargo(log, "cargo test", *arguments, after=("--", "--test-threads=1", "--nocapture"), environment=environment)

    return cargo_tally("attacks", action)


FUZZ_TARGETS = ("control", "control_path", "data_path", "peers", "transport", "vfio_user")


def fuzz(seconds):
    """Attacks on the emulated device that look for code that none has reached: so long on each of its parts."""
    total = Tally()
    for target in FUZZ_TARGETS:
        name = f"fuzzing {target} for {seconds} s"

        def action(target=target, name=name):
            with steps.step(name) as log:
                build.fuzz(log, target, seconds)

        total += attempt(f"{name} finds nothing", action)
    return total


UNITTEST = re.compile(r"^\w+ \(([\w.]+)\)(?:\n.*)?? \.\.\. (ok|FAIL|ERROR|skipped)\b", re.MULTILINE)


def test_tools(program="", case=""):
    """The tests of the tools, or those of a file, or those that a pattern names."""
    folder = cache.CLONE / "tests" / "tools"
    if program and not (folder / f"{program.removesuffix('.py')}.py").exists():
        known = ", ".join(sorted(file.stem for file in folder.glob("test_*.py")))
        raise Failure(f"There is no file {program} in tests/tools: choose one of {known}.")
    command = [sys.executable, "-m", "unittest", "discover", "--start-directory", str(folder), "--verbose"]
    command += ["--pattern", f"{program.removesuffix('.py')}.py"] * bool(program) + ["-k", case] * bool(case)
    with steps.step("tests of the tools") as log:
        status = steps.call(command, stdout=log, stderr=subprocess.STDOUT)
    text = Path(log.name).read_text(errors="replace")
    counts = {name: int(count) for name, count in re.findall(r"(failures|errors|skipped)=(\d+)", text)}
    ran = re.search(r"^Ran (\d+) tests?", text, re.MULTILINE)
    failed, skipped = counts.get("failures", 0) + counts.get("errors", 0), counts.get("skipped", 0)
    tally = Tally(int(ran[1]) - failed - skipped, failed, skipped) if ran else Tally()
    outcomes = {"ok": PASSED, "FAIL": FAILED, "ERROR": FAILED, "skipped": SKIPPED}
    tally.cases += [Case(test, outcomes[ended]) for test, ended in UNITTEST.findall(text)]
    tally.failures += re.findall(r"^(?:FAIL|ERROR): (.*)$", text, re.MULTILINE)
    if not tally.total() or status and not failed:
        tally.fail("the tests of the tools did not run to their end")
    if tally.failed:
        steps.note(f"tests of the tools: {tally}\n{steps.tail(log.name)}")
    return tally


def kselftest(driver, flavour, target="run_tests", timeout=1500, one_thread=False):
    """The kernel selftests in a guest that has the devices they ask for."""
    name = f"{'stress' if target == 'run_stress' else 'kselftest'} {driver} {flavour}"
    if not (KSELFTEST / "Makefile").exists():
        raise Failure("tests/kselftest/Makefile is missing: this clone has no kernel selftests to run.")
    command = f"make -s -C /efa-rs/tests/kselftest {target}"
    tally, _ = in_guest(name, command, driver, flavour, timeout=timeout, one_thread=one_thread)
    return tally


def programs(name):
    """The programs of tests/kselftest that are named so, without what comes after the dot; several are separated by commas."""
    known = {file.stem: file.name for file in KSELFTEST.iterdir() if file.suffix in (".py", ".sh") and os.access(file, os.X_OK)}
    chosen = [part.removesuffix(".py").removesuffix(".sh") for part in name.split(",")]
    if missing := [part for part in chosen if part not in known or part == "run"]:
        raise Failure(f"There is no program {missing[0]} in tests/kselftest: choose of {', '.join(sorted(known.keys() - {'run'}))}.")
    return [known[part] for part in chosen]


def programs_in_python():
    """Those that make kselftest runs."""
    return re.findall(r"^TEST_PROGS \+= (\S+\.py)$", (KSELFTEST / "Makefile").read_text(), re.MULTILINE)


def cases(pattern):
    """The setting that has programs run only the test cases that a pattern names."""
    return f"EFA_CASES={shlex.quote(pattern)} " if pattern else ""


def kselftest_part(driver, flavour, program, case):
    """Some of the kernel selftests, or of the test cases of one."""
    chosen = programs(program)
    if case and any(name.endswith(".sh") for name in chosen):
        raise Failure("The test cases of a program in shell rely on each other: leave CASE= out, or name a program in Python.")
    # Of single test cases nothing but their own results is wanted.
    command = f"{cases(case)}/efa-rs/tests/kselftest/run.sh {' '.join([*chosen, *([] if case else ['dmesg.sh'])])}"
    append = "swiotlb=force" if chosen == ["bounce.py"] else ""
    tally, _ = in_guest(f"kselftest {driver} {flavour} {program}", command, driver, flavour, timeout=1500, append=append)
    return tally


def bounce(driver, flavour):
    """The one about bounce buffers, in a guest of its own."""
    name = f"kselftest {driver} {flavour} swiotlb=force"
    command = "/efa-rs/tests/kselftest/run.sh bounce.py dmesg.sh"
    tally, _ = in_guest(name, command, driver, flavour, timeout=300, append="swiotlb=force", one_thread=True)
    return tally


def programs_without_kverbs(flavour):
    """Programs have all that they have otherwise."""
    name = f"kselftest rust {flavour} KVERBS=0"
    command = "/efa-rs/tests/kselftest/run.sh queues.py resource_details.py dmesg.sh"
    module = module_without_kverbs(toolroot.kernel(flavour))
    tally, _ = in_guest(name, command, "rust", flavour, timeout=300, module=module, one_thread=True)
    return tally


# What each sample needs: the provider is in a guest with no other.
SAMPLE_OPTIONS = {
    "null_rdma": {"driver": "none", "devices": [], "timeout": 120, "one_thread": True},
    "rdma_exchange": {"driver": "rust", "devices": ["profile=efa3", "profile=efa4"], "timeout": 900},
}


def sample(name, flavour):
    """A sample in a guest."""
    module = build.sample(name, toolroot.kernel(flavour))
    command = f"/efa-rs/tests/samples/{name}.py /share/{module.name}"
    tally, _ = in_guest(f"{name} {flavour}", command, flavour=flavour, share=module.parent, **SAMPLE_OPTIONS[name])
    return tally


# Seconds that a round of each of the two tests of devices that go may take, several times as many as it needs.
KVERBS_ROUND = 60


def kverbs(flavour, rounds=None):
    """Clients in the kernel: of two devices of one guest, and of two guests, where that in C and that in Rust talk to each other.

    A device goes as often as `rounds` says, or as often as the tests find enough.
    """
    release = toolroot.kernel(flavour)
    folder = cache.clone_folder("clients", release)
    folder.mkdir(parents=True, exist_ok=True)
    modules = build.kverbs_client(release), build.sample("rdma_exchange", release)
    for module in modules:
        shutil.copy(module, folder)
    options = {"share": folder, "timeout": 900 + KVERBS_ROUND * (rounds or 0)}
    shared = [f"/share/{module.name}" for module in modules]
    local = f"{f'EFA_ROUNDS={rounds} ' if rounds else ''}/efa-rs/tests/kverbs/kverbs.py {shared[0]}"
    between = f"/efa-rs/tests/kverbs/between.py {' '.join(shared)}"
    if flavour == toolroot.DEBUG:
        between = f"EFA_SLOW_KERNEL=4 {between}"
    tally, _ = in_guest(f"kverbs {flavour}", local, "rust", flavour, ["profile=efa3", "profile=efa4"], **options)
    two, _ = in_guest(f"kverbs {flavour} between guests", between, "rust", flavour, ["profile=efa4"], guests=2, leader=True, **options)
    tally += two
    return tally


def peer_memory(flavour):
    """RDMA of one guest to and from memory of another device that the other guest has."""
    options = {"devices": ["profile=efa3"], "guests": 2, "leader": True, "hotplug": True, "memory_device": "16M", "timeout": 600}
    tally, _ = in_guest(f"peer memory {flavour}", "/efa-rs/tests/peer/peer.py", "rust", flavour, **options)
    return tally


# The device that can do most.
RDMA_CORE_DEVICES = ["profile=efa3"]
# How each test ends with the rdma-core of a userland.
RDMA_CORE_LISTS = {userland.STABLE: "expected", userland.NEXT: "expected.next"}


def rdma_core(drivers, flavour, chosen=userland.STABLE):
    """rdma-core's own tests with each of the drivers, with which they have to end alike."""
    where = f"{flavour}{' next' * (chosen == userland.NEXT)}"
    total, results = Tally(), {}
    for driver in drivers:
        name = f"rdma-core {driver} {where}"
        command = f"/efa-rs/tests/rdma-core/run.py /run/efa-rs/out/results.json {RDMA_CORE_LISTS[chosen]}"
        steps.note(f"{name}: {', '.join(toolroot.versions_in(userland.root(chosen, toolroot.kernel(flavour)), 'rdma-core'))}")
        tally, run = in_guest(name, command, driver, flavour, RDMA_CORE_DEVICES, userland=chosen, timeout=900, one_thread=True)
        total += tally
        file = run.shared / "out" / "results.json"
        results[driver] = json.loads(file.read_text()) if file.exists() else {}
    if len(drivers) > 1:
        total += check(f"rdma-core's tests end alike with {' and '.join(drivers)} on {where}", unlike(results))
    return total


# What it takes to move data in every way.
INTEROP_DEVICES = ["profile=efa3", "profile=efa4"]


def between_guests(name, guests, arguments, driver, flavour, timeout, environment="", **options):
    """Runs tests/interop/run.py on several guests, between which packets overtake each other as on EC2; returns its tally."""
    options = {"guests": guests, "leader": True, "timeout": timeout, "fabric": "realistic", **options}
    command = f"{environment}/efa-rs/tests/interop/run.py {' '.join(arguments)}"
    tally, _ = in_guest(name, command, driver, flavour, INTEROP_DEVICES, **options)
    return tally


def interop(driver, flavour, short=False, chosen=userland.STABLE, program="", case=""):
    """Data between guests: contents, and software that others wrote, of which libfabric and MPI with our driver only; with the next
    userland, what its rdma-core makes of that software.
    """
    name = f"interop {driver} {flavour}{' short' * short}{' next' * (chosen == userland.NEXT)}"
    length = ["short"] * short
    if chosen == userland.NEXT:
        parts = {2: ["perftest", "inline", *(["libfabric"] if driver == "rust" else [])]}
    elif driver == "rust":
        parts = {2: [], 4: ["soak"] if short else []}
    else:
        parts = {2: ["contents", "perftest"], 4: ["soak"]}
    if program:
        parts = {4: [program]} if program == "soak" else {2: [program]}
    elif case:
        # What four guests do has no test cases to choose from.
        del parts[4]
    total = Tally()
    for guests, what in parts.items():
        timeout = 900 if short else 3600
        total += between_guests(f"{name} {guests} guests", guests, length + what, driver, flavour, timeout, cases(case), userland=chosen)
    return total


def soak(driver, flavour):
    """A million messages between four guests."""
    return between_guests(f"soak {driver} {flavour}", 4, ["soak"], driver, flavour, 7200, "EFA_MESSAGES=1000000 ")


def unlike(results):
    """Of the results of each driver: the tests that did not end alike, or not for the same reason."""
    one, *others = results.values()
    return [
        f"{name}: {', '.join(f'{driver}: {ending(its.get(name))}' for driver, its in results.items())}"
        for name in sorted(set().union(*results.values()))
        if any(other.get(name) != one.get(name) for other in others)
    ] or ["no test ran"] * (not one)


def ending(result):
    """How a test ended, in a line."""
    if result is None:
        return "did not run"
    # Of a test that was run several times, each end; of one that failed, all of it is in the output.
    draws = f" ({result['more']})" if " " in result["more"] and "\n" not in result["more"] else ""
    return f"{result['outcome']} {result['reason']}".strip() + draws


TRACED = re.compile(r"^ *[\d.]+ (?P<device>\d+) (?P<event>.*)$", re.MULTILINE)


def power_off(driver, flavour):
    """What a power-off does to the devices that tests/power-off/prepare.py leaves, of which no test in the guest can tell."""
    name = f"power-off {driver} {flavour}"
    devices = ["profile=efa3", "profile=efa2", "profile=efa2"]
    options = guest.Options("/efa-rs/tests/power-off/prepare.py", driver, flavour, devices, timeout=120, quiet=True, one_thread=True)
    run = guest.prepare(options)
    with steps.step(name):
        status = guest.execute(run)
    tally = check(f"{name}: devices are prepared", [f"exit status {status}: see {run.folder}"] if status else [])
    for what, problems in power_off_problems((run.folder / "trace.log").read_text()).items():
        tally += check(f"{name}: {what}", problems)
    return tally


def power_off_problems(trace):
    """What is wrong with the devices' last moments, by what should be."""
    events = {"0": [], "1": [], "2": []}
    for match in TRACED.finditer(trace):
        events[match["device"]].append(match["event"])
    used, unbound, silent = events.values()
    last = "reset SHUTDOWN"
    told = silent.count(last)
    after = [event for event in used[used.index(last) + 1 :] if not event.startswith("read ")] if last in used else ["no reset"]
    return {
        "a device in use is reset for a shutdown, and left alone then": [f"after {last}: {after}"] if after != ["reset end"] else [],
        "a device without driver is left alone": [last] * unbound.count(last),
        # Once more after a reset of the bus.
        "a device that does not answer is told twice at most": [f"{told} times {last}"] if told not in (1, 2) else [],
        "no device sees what a correct driver never does": re.findall(r"protocol error.*", trace),
    }


def debug(driver, at_once):
    """The selftests and what needs the debug kernel, in a guest with that: those that do many things AT_ONCE, or the others.

    The CPUs of the others take turns.
    """
    name = f"debug kernel {driver}{', at once' * at_once}"
    command = f"/efa-rs/tests/debug/run.sh {'--at-once' if at_once else '--others'}"
    tally, _ = in_debug_guest(name, command, driver, one_thread=not at_once)
    return tally


def known_reports(folder):
    """The warnings that the kernel may give in the tests of a folder."""
    return console.known_reports((folder / "known-reports").read_text())


def in_debug_guest(name, command, driver="rust", timeout=3600, **options):
    """Runs tests/debug/run.sh in a guest with the debug kernel; returns as in_guest() does."""
    # KASAN's shadow is an eighth of the memory, and what is freed stays allocated for a while.
    options |= {"timeout": timeout, "memory": "2G", "known_reports": known_reports(DEBUG)}
    return in_guest(name, command, driver, toolroot.DEBUG, **options)


# What tests print that have rounds.
PROGRESS = re.compile(r"^\s*# (.*: \d+ of \d+ rounds.*?)\s*$")


def show_progress(name, line):
    if found := PROGRESS.match(line):
        steps.note(f"{name}: {found[1]}")


def kselftest_devices():
    """The devices that the selftests ask for."""
    lines = (KSELFTEST / "devices").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def in_guest(name, command, driver, flavour, devices=None, progress=False, **options):
    """Runs a command that prints KTAP in a guest; returns its tally, and the run. The devices are those of the selftests.

    With PROGRESS, lines that tell how far a test is are shown when they come.
    """
    if devices is None:
        devices = kselftest_devices()
    if progress:
        options["watch"] = lambda line: show_progress(name, line)
    options = guest.Options(command, driver, flavour, devices, quiet=True, **options)
    options.timeout *= arm64.slowness(*options.flavours())
    run, trouble, status = guest.prepare(options), None, 0
    with steps.step(name):
        try:
            status = guest.execute(run)
        except Failure as failure:
            trouble = failure
    log = run.folder / "guest0.output.log"
    output = log.read_text(errors="replace") if log.exists() else ""
    tally = ktap.parse(output)
    if trouble:
        steps.note(f"{name}: {trouble}")
        tally.fail(f"{name}: the guest was not well")
    if status and not tally.failed:
        tally.fail(f"{name}: exit status {status} in spite of its results")
    if tally.failed:
        others = "".join(f"\n    {what}: {file}" for what, file in run.logs().items())
        said = "".join(f"\n    {line}" for line in ktap.failures(output))
        steps.note(f"{name}: the output is in {log}, and what else may tell the cause in{others}{said}")
    steps.note(f"{name}: {tally}")
    return tally, run
