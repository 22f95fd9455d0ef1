# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make check and make check-all: all tests and checks, in parallel as far as the machine allows, with a summary line."""

import functools
import os
import time

from . import (
    abi,
    build,
    cache,
    guest,
    guide_runs,
    host_diff,
    host_tests,
    interrupt,
    junit,
    life,
    lives,
    package,
    processes,
    schedule,
    source_checks,
    steps,
    suite,
    times,
    toolroot,
    upstream,
    userland,
    verdict,
)
from .failure import Failure, sentence
from .schedule import Job
from .tally import Tally


def lint():
    """Format, warnings and laws."""
    return [
        Job("laws", source_checks.project_laws, 1),
        Job("rustfmt", source_checks.rustfmt, 2),
        Job("ruff format", source_checks.ruff_format, 2),
        Job("ruff check", source_checks.ruff_check, 2),
        Job("mypy", source_checks.mypy, 10),
        Job("shellcheck", source_checks.shellcheck, 2),
        Job("codespell", source_checks.codespell, 2),
        Job("checkpatch", source_checks.checkpatch, 5),
        # clippy and the tests are built in one folder, which cargo locks.
        Job("clippy of the emulator", source_checks.clippy_emulator, 60, after=("host tests",), cores=2),
        Job("clippy of the driver as a program", source_checks.clippy_driver, 40, after=("host tests of the driver",), cores=2),
        Job("clippy of the samples", source_checks.clippy_samples, 20),
        *(clippy_module(flavour) for flavour in toolroot.FLAVOURS[:1]),
    ]


def clippy_module(flavour):
    return Job(f"clippy of the module {flavour}", lambda: source_checks.clippy_module(flavour), 25)


EMULATOR = "emulator"


def module_name(driver, flavour):
    return f"{driver} module {flavour}"


def module(driver, flavour):
    name = module_name(driver, flavour)
    seconds = 330 if flavour == toolroot.DEBUG else 30
    return Job(name, lambda: verdict.attempt(name, lambda: build.module(driver, toolroot.kernel(flavour))), seconds)


def guest_job(name, run, seconds, driver, flavour, **options):
    """A job that boots guests. Other jobs build the emulator and the module."""
    return Job(name, run, seconds, after=(EMULATOR, module_name(driver, flavour)), **options)


def kselftest(driver, flavour):
    run = functools.partial(suite.kselftest, driver, flavour)
    return guest_job(f"kselftest {driver} {flavour}", run, 230, driver, flavour)


def kselftest_timeouts(driver, flavour):
    """The selftests that wait until the driver gives up a device that does not answer."""
    run = functools.partial(suite.kselftest, driver, flavour, "run_slow")
    return guest_job(f"kselftest {driver} {flavour} timeouts", run, 300, driver, flavour)


def smoke(flavour):
    """A smoke test of Linux's own driver on the emulated device."""
    run = functools.partial(suite.kselftest_part, "c", flavour, "probe,ucontext_pd")
    return guest_job(f"kselftest c {flavour} smoke", run, 40, "c", flavour)


def part(name, *chosen):
    """Returns the name of a part of NAME, which includes the choices, so that --failed finds it again."""
    return " ".join([name, *filter(None, chosen)])


def kselftests(driver, flavour, program="", case=""):
    """Jobs for all selftests, or for one program, or for some test cases of each program or of one."""
    name = part(f"kselftest {driver} {flavour}", program, case)
    if case and not program:
        program = ",".join(file.removesuffix(".py") for file in suite.all_programs())
    if program:
        return [Job(name, lambda: suite.kselftest_part(driver, flavour, program, case))]
    return [kselftest(driver, flavour), bounce(driver, flavour)]


def bounce(driver, flavour):
    return guest_job(f"kselftest {driver} {flavour} swiotlb=force", lambda: suite.bounce(driver, flavour), 15, driver, flavour)


def rdma_core(drivers, flavour, chosen=userland.STABLE):
    name = part(f"rdma-core {' '.join(drivers)} {flavour}", chosen if chosen != userland.STABLE else "")
    after = (EMULATOR, *(module_name(driver, flavour) for driver in drivers))
    return Job(name, lambda: suite.rdma_core(drivers, flavour, chosen), 110 * len(drivers), after=after)


def interop(driver, flavour, short, chosen=userland.STABLE, program="", case="", rounds=None):
    name = part(f"interop {driver} {flavour}{' short' * short}", chosen if chosen != userland.STABLE else "", program, case)
    run = functools.partial(suite.interop, driver, flavour, short, chosen, program, case, rounds)
    return guest_job(name, run, 230, driver, flavour, memory=6, cores=2)


def sample(name, flavour):
    seconds = {"null_rdma": 10, "rdma_exchange": 35}[name] * (8 if flavour == toolroot.DEBUG else 1)
    return guest_job(f"{name} {flavour}", lambda: suite.sample(name, flavour), seconds, "rust", flavour)


def kverbs(flavour, rounds=None):
    seconds = 500 if flavour == toolroot.DEBUG else 170
    return guest_job(f"kverbs {flavour}", lambda: suite.kverbs(flavour, rounds), seconds, "rust", flavour, memory=3, cores=2)


def kernel_clients(flavour):
    return guest_job(f"kernel clients {flavour}", lambda: suite.kernel_clients(flavour), 60, "rust", flavour)


def pair(flavour):
    return guest_job(f"pair of guests {flavour}", lambda: suite.pair(flavour), 120, "rust", flavour, memory=3, cores=2)


def peer_memory(flavour):
    return guest_job(f"peer memory {flavour}", lambda: suite.peer_memory(flavour), 75, "rust", flavour, memory=3, cores=2)


def power_off(driver, flavour):
    return guest_job(f"power-off {driver} {flavour}", lambda: suite.power_off(driver, flavour), 15, driver, flavour)


def guides(flavour):
    """The commands in the guides."""
    return [
        guest_job(f"guides {flavour}", lambda: guide_runs.in_guest(flavour), 90, "rust", flavour),
        guest_job(f"guides {flavour}, two guests that stay", lambda: guide_runs.with_lab(flavour), 90, "rust", flavour, memory=3),
        guest_job("guides, guests of their own", guide_runs.with_own_guests, 100, "rust", toolroot.FLAVOURS[0], memory=3),
        Job("guides, the emulator", guide_runs.of_the_emulator, 20, after=(EMULATOR,)),
    ]


def abi_diff(flavour, renew=False):
    """Compares the ABI of both drivers. The C driver's results are cached, and RENEW measures them again."""
    diff = functools.partial(abi.diff, renew=renew)
    return abi_job(f"abi-diff {flavour}", diff, flavour, 220 if renew else 110, flavour)


def abi_diffs(flavour, profiles, case=""):
    """All of make abi-diff: one job for each profile, which prints its summary line."""
    return [abi_diff_of(profile, flavour, case) for profile in dict.fromkeys(profiles)]


def abi_diff_of(profile, flavour, case):
    def job():
        tally, line = abi.diff(flavour, profile, case)
        print(f"{profile}: {line}", flush=True)
        return tally

    return Job(part(f"abi-diff {flavour} {profile}", case), job, 110)


def abi_diff_debug(flavour):
    return abi_job(f"abi-diff debug {flavour}", abi.diff_on_debug_kernel, flavour, 750, toolroot.DEBUG)


def abi_job(name, diff, flavour, seconds, kernel):
    def job():
        tally, line = diff(flavour)
        steps.note(f"{name}: {line}")
        return tally

    return Job(name, job, seconds, after=(EMULATOR, module_name("rust", kernel), module_name("c", flavour)))


def debug(driver, at_once):
    name = f"debug kernel {driver}{', at once' * at_once}"
    return guest_job(name, lambda: suite.debug(driver, at_once), 500 if at_once else 900, driver, toolroot.DEBUG, memory=3)


def check_debug(driver):
    """All jobs for the debug kernel. The ABI is checked for the Rust driver only, by comparison with the C driver's."""
    ours = [abi_diff_debug(toolroot.FLAVOURS[0]), kverbs(toolroot.DEBUG), sample("rdma_exchange", toolroot.DEBUG)]
    return [debug(driver, at_once) for at_once in (False, True)] + ours * (driver == "rust")


def fast(renew=False):
    """make check, which CI runs: the Rust driver on one kernel, and a smoke test of Linux's own.

    RENEW runs the ABI cases with the C driver again, although its results are cached.
    """
    cloud = toolroot.FLAVOURS[0]
    return [
        *(module(driver, cloud) for driver in ("rust", "c")),
        Job(EMULATOR, lambda: verdict.attempt("emulator", build.emulator), 100, cores=2),
        *lint(),
        Job("module without kernel verbs", source_checks.without_kverbs, 30, after=(module_name("rust", cloud),)),
        Job("host tests", host_tests.test_host, 180, after=(EMULATOR,)),
        Job("host tests of the driver", host_tests.test_driver, 90, after=(module_name("rust", cloud),), cores=2),
        Job("tests of the tools", host_tests.test_tools, 60),
        kselftest("rust", cloud),
        abi_diff(cloud, renew),
        kernel_clients(cloud),
        pair(cloud),
        rdma_core(("rust",), cloud),
        smoke(cloud),
    ]


def everything():
    """make check-all: make check, and the functional tests that take longer.

    These are the C driver in full, the second kernel configuration, bad networks, recovery and peer memory. Then random lives of the
    driver as a program, and the tests of the tools that boot guests.
    """
    cloud, stock = toolroot.FLAVOURS
    following = toolroot.NEXT
    return [
        *fast(renew=True),
        *(module("rust", flavour) for flavour in (stock, *following)),
        *(clippy_module(flavour) for flavour in following),
        Job("tests of the tools with guests", lambda: host_tests.test_tools(guests=True), 260),
        kselftest("c", cloud),
        *(kselftest_timeouts(driver, cloud) for driver in ("rust", "c")),
        *(kselftest("rust", flavour) for flavour in (stock, *following)),
        *(interop(driver, cloud, short=True) for driver in ("rust", "c")),
        *(interop("rust", flavour, short=True) for flavour in following),
        rdma_core(("c",), cloud),
        *(job(driver, cloud) for job in (bounce, power_off) for driver in ("rust", "c")),
        guest_job(f"kselftest rust {cloud} KVERBS=0", lambda: suite.programs_without_kverbs(cloud), 25, "rust", cloud),
        kverbs(cloud),
        peer_memory(cloud),
        *guides(cloud),
        *life_jobs("rust", cloud),
        *life_jobs("c", cloud),
        Job("schedules", lambda: lives.schedules(30, of_commit=True), 150, after=("host tests of the driver",), cores=2),
        guest_job(f"host-diff {cloud}", lambda: host_diff.run(100, cloud), 150, "rust", cloud),
        Job("deny", source_checks.deny),
        Job("packages", packages, 60),
    ]


def packages():
    """Builds the driver's packages, and checks them with lintian and rpmlint."""
    tally = verdict.attempt("Debian package", package.deb)
    tally += verdict.attempt("RPM", package.rpm)
    return tally


def life_jobs(driver, flavour, rounds=None, chosen=(), measured=False):
    """Jobs of tests/life. Those with limits of time have the machine for themselves."""
    needs = (EMULATOR, module_name(driver, flavour))
    return [life_job(job, needs) for job in life.jobs(driver, flavour, rounds, chosen, measured)]


def life_job(job, needs):
    name, run, timed = job
    return Job(name, run, 120, after=needs, cores=2 if timed else 1, timed=timed)


def attack(seconds=2, rounds=None):
    # The test measures the milliseconds that other clients wait, so it has a machine of two cores for itself.
    return Job("attacks", lambda: host_tests.attack(seconds, rounds), 40, cores=2, timed=True)


def cargo_install():
    return Job("cargo install", host_tests.cargo_install, 30, after=(EMULATOR,))


def upstream_series():
    """Jobs of make upstream, one after the other, as they share a source tree."""
    patches = Job("patches for Linux", upstream.check, 1500, cores=2)
    return [patches, Job("tests in Linux", upstream.test, 400, after=(patches.name,), cores=2)]


def guarded(job, run):
    """Runs a job, and measures it as a part of the span RUN. A job that cannot run has failed."""
    with times.measured(job.name, run) as span:
        try:
            tally = job.run()
        except (Failure, OSError) as failure:
            steps.note(f"{job.name}: {sentence(failure)}")
            tally = Tally()
            tally.fail(f"{job.name} could not run", said=sentence(failure))
        span.failed = tally.failed
        return tally


def added(tallies):
    total = Tally()
    for tally in tallies:
        total += tally
    return total


def run(jobs, name="", report=None):
    """Runs jobs in parallel, as far as the machine allows; returns their tally.

    The times of jobs are shown at the end, and saved under the suite's NAME with the result. The last line of the output has the number
    of passed tests. REPORT is a file for JUnit's XML.
    """
    before, begun = processes.used_by_all(), times.head()
    ended = []

    def do(job):
        tally = guarded(job, span)
        ended.append(tally)
        return tally

    def of_others():
        return max(0, processes.used_by_all() - before - span.cpu)

    def save_what_is_over():
        over = times.Span(name, span.start, time.time(), span.cpu, [job for job in span.steps if job.end])
        times.save(over, name, added(ended), of_others(), begun, interrupted=True)

    with times.measured(name) as span, interrupt.last(save_what_is_over):
        # Made here, before several jobs need them at the same time.
        toolroot.root()
        cache.clone()
        schedule.learn(jobs, times.load(name))
        tallies = schedule.run(jobs, schedule.Machine.here(), do)
    total = added(tallies)
    if report:
        lengths = {job.name: job.length() for job in span.steps}
        junit.write(report, [(job.name, tally, lengths[job.name]) for job, tally in zip(jobs, tallies, strict=True)])
    others = of_others()
    repeated = len(guest.boots_repeated)
    file = times.save(span, name, total, others, begun, boots_repeated=repeated)
    table = "\n".join(f"    {line}" for line in times.table(span, os.cpu_count(), others))
    steps.note(f"how long it took, which is also in {file}:\n{table}")
    if repeated:
        steps.note(f"{repeated} boots were repeated, as they met QEMU's known fault")
    if warning := times.over_budget(span):
        steps.note(warning)
    for failure in total.failures:
        steps.note(f"failed: {failure}")
    print(total, flush=True)
    return total


def status(tally):
    """The exit status for a tally."""
    return 1 if tally.failed or not tally.passed else 0
