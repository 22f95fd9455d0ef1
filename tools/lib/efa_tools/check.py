# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make check and make check-all: all tests and checks, as many at a time as the machine has room for, added up in one line."""

import functools
import os

from . import abi, build, cache, junit, life, processes, schedule, steps, suite, times, toolroot, userland
from .failure import Failure
from .schedule import Job
from .tally import Tally


def lint():
    """Format, warnings and laws."""
    return [
        Job("laws", suite.project_laws, 1),
        Job("rustfmt", suite.rustfmt, 2),
        # Both are built in one folder, of which cargo lets one have the lock.
        Job("clippy of the emulator", suite.clippy_emulator, 60, after=("host tests",)),
        Job("clippy of the samples", suite.clippy_samples, 20),
        Job("module without kernel verbs", suite.without_kverbs, 30, after=(module_name("rust", toolroot.FLAVOURS[0]),)),
        *(clippy_module(flavour) for flavour in toolroot.FLAVOURS[:1]),
    ]


def clippy_module(flavour):
    return Job(f"clippy of the module {flavour}", lambda: suite.clippy_module(flavour), 25)


EMULATOR = "emulator"


def module_name(driver, flavour):
    return f"{driver} module {flavour}"


def module(driver, flavour):
    name = module_name(driver, flavour)
    return Job(name, lambda: suite.attempt(name, lambda: build.module(driver, toolroot.kernel(flavour))), 30)


def guest_job(name, run, seconds, driver, flavour, **options):
    """A job that boots guests: what those need is built by others."""
    return Job(name, run, seconds, after=(EMULATOR, module_name(driver, flavour)), **options)


def kselftest(driver, flavour, one_thread=False):
    run = functools.partial(suite.kselftest, driver, flavour, one_thread=one_thread)
    return guest_job(f"kselftest {driver} {flavour}", run, 230, driver, flavour)


def kselftests(driver, flavour, program="", case=""):
    """All of them, or a program, or some test cases of each program or of one."""
    if case and not program:
        program = ",".join(name.removesuffix(".py") for name in suite.programs_in_python())
    if program:
        return [Job(f"kselftest {driver} {flavour} part", lambda: suite.kselftest_part(driver, flavour, program, case))]
    return [kselftest(driver, flavour), bounce(driver, flavour)]


def bounce(driver, flavour):
    return guest_job(f"kselftest {driver} {flavour} swiotlb=force", lambda: suite.bounce(driver, flavour), 15, driver, flavour)


def rdma_core(drivers, flavour, chosen=userland.STABLE):
    name = f"rdma-core {' '.join(drivers)} {flavour}"
    after = (EMULATOR, *(module_name(driver, flavour) for driver in drivers))
    return Job(name, lambda: suite.rdma_core(drivers, flavour, chosen), 110 * len(drivers), after=after)


def interop(driver, flavour, short, chosen=userland.STABLE, program="", case=""):
    name = f"interop {driver} {flavour}{' short' * short}"
    return guest_job(name, lambda: suite.interop(driver, flavour, short, chosen, program, case), 230, driver, flavour, memory=6)


def sample(name, flavour):
    seconds = {"null_rdma": 10, "rdma_exchange": 35}[name] * (8 if flavour == toolroot.DEBUG else 1)
    return guest_job(f"{name} {flavour}", lambda: suite.sample(name, flavour), seconds, "rust", flavour)


def kverbs(flavour, rounds=None):
    seconds = 300 if flavour == toolroot.DEBUG else 110
    return guest_job(f"kverbs {flavour}", lambda: suite.kverbs(flavour, rounds), seconds, "rust", flavour, memory=3)


def peer_memory(flavour):
    return guest_job(f"peer memory {flavour}", lambda: suite.peer_memory(flavour), 75, "rust", flavour, memory=3)


def power_off(driver, flavour):
    return guest_job(f"power-off {driver} {flavour}", lambda: suite.power_off(driver, flavour), 15, driver, flavour)


def abi_diff(flavour):
    return abi_job(f"abi-diff {flavour}", abi.diff, flavour, 110, flavour)


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
    """All that there is for the debug kernel. The C driver is what the ABI of the other is compared with."""
    ours = [abi_diff_debug(toolroot.FLAVOURS[0]), kverbs(toolroot.DEBUG), sample("rdma_exchange", toolroot.DEBUG)]
    return [debug(driver, at_once) for at_once in (False, True)] + ours * (driver == "rust")


def everything(longer=False):
    """All of make check.

    LONGER: also the selftests and each allocation failing once on the debug kernel, data between guests with the C driver, the next
    series of kernels, if tools/series names one, and devices that go.
    """
    cloud, stock = toolroot.FLAVOURS
    following = toolroot.NEXT if longer else ()
    debugged = (toolroot.DEBUG,) if longer else ()
    # Linux's driver does not change from one configuration of the kernel to the other.
    combinations = [("rust", cloud), ("c", cloud), ("rust", stock), *(("rust", flavour) for flavour in following)]
    drivers = ("rust", "c")
    return [
        *(module("rust", flavour) for flavour in (cloud, stock, *debugged, *following)),
        module("c", cloud),
        Job(EMULATOR, lambda: suite.attempt("emulator", build.emulator), 100),
        *lint(),
        *(clippy_module(flavour) for flavour in following),
        Job("host tests", suite.test_host, 180),
        Job("host tests with AddressSanitizer", suite.test_asan, 240),
        Job("tests of the tools", suite.test_tools, 260),
        Job("fuzzing", lambda: suite.fuzz(20), 180),
        # What many things at once, the ABI's cases and clients in the kernel take there is as much again: make check-debug.
        *([debug("rust", at_once=False)] if longer else []),
        # Of ours CPUs are to do things at the same time; once is enough, as they take twice the time for it.
        *(kselftest(driver, flavour, one_thread=(driver, flavour) != ("rust", cloud)) for driver, flavour in combinations),
        *(interop(driver, cloud, short=True) for driver in drivers[: 1 + longer]),
        *(interop("rust", flavour, short=True) for flavour in following),
        rdma_core(drivers, cloud),
        *(job(driver, cloud) for job in (bounce, power_off) for driver in drivers),
        *(sample(name, cloud) for name in build.SAMPLES),
        guest_job(f"kselftest rust {cloud} KVERBS=0", lambda: suite.programs_without_kverbs(cloud), 25, "rust", cloud),
        kverbs(cloud),
        peer_memory(cloud),
        abi_diff(cloud),
        attack(),
        *(job for driver in drivers if longer for job in life_jobs(driver, cloud)),
    ]


def life_jobs(driver, flavour, rounds=None, chosen=()):
    """They have limits of seconds, and so each has a machine of two cores for itself."""
    needs = (EMULATOR, module_name(driver, flavour))
    return [Job(name, run, 120, after=needs, cores=2, timed=True) for name, run in life.jobs(driver, flavour, rounds, chosen)]


def attack(seconds=2):
    # It counts the milliseconds that bystanders wait, and so has a machine of two cores for itself.
    return Job("attacks", lambda: suite.attack(seconds), 40, cores=2, timed=True)


def guarded(job, run):
    """A job that cannot run has failed. RUN is what it is a part of, where it is measured."""
    with times.measured(job.name, run) as span:
        try:
            tally = job.run()
        except Failure as failure:
            steps.note(f"{job.name}: {failure}")
            tally = Tally()
            tally.fail(f"{job.name} could not run", said=str(failure))
        span.failed = tally.failed
        return tally


def run(jobs, name="", report=None):
    """Runs jobs, as many at a time as there is room for; returns the exit status.

    How long each took is shown at the end, and kept under the name of the suite, NAME. The last line of the output says how many
    tests passed. REPORT is a file for JUnit's XML.
    """
    toolroot.root()
    # Before jobs ask for it at the same time.
    cache.clone()
    total = Tally()
    before = processes.used_by_all()
    with times.measured(name) as span:
        schedule.learn(jobs, times.load(name))
        tallies = schedule.run(jobs, schedule.Machine.here(), lambda job: guarded(job, span))
    for tally in tallies:
        total += tally
    if report:
        lengths = {job.name: job.length() for job in span.steps}
        junit.write(report, [(job.name, tally, lengths[job.name]) for job, tally in zip(jobs, tallies)])
    others = max(0, processes.used_by_all() - before - span.cpu)
    file = times.save(span, name, total, others)
    table = "\n".join(f"    {line}" for line in times.table(span, os.cpu_count(), others))
    steps.note(f"how long it took, which is also in {file}:\n{table}")
    for name in total.failures:
        steps.note(f"failed: {name}")
    print(total, flush=True)
    return 1 if total.failed or not total.passed else 0
