# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make check and make check-all: all tests and checks, two at a time, added up in one line."""

from concurrent.futures import ThreadPoolExecutor

from . import abi, build, life, steps, suite, toolroot, userland
from .failure import Failure
from .tally import Tally


def lint():
    """Format, warnings and laws."""
    return [
        ("laws", suite.project_laws),
        ("rustfmt", suite.rustfmt),
        ("clippy of the emulator", suite.clippy_emulator),
        ("clippy of the samples", suite.clippy_samples),
        ("module without kernel verbs", suite.without_kverbs),
        *(clippy_module(flavour) for flavour in (toolroot.FLAVOURS[0], *toolroot.NEXT)),
    ]


def clippy_module(flavour):
    return f"clippy of the module {flavour}", lambda: suite.clippy_module(flavour)


def module(driver, flavour):
    name = f"{driver} module {flavour}"
    return name, lambda: suite.attempt(name, lambda: build.module(driver, toolroot.kernel(flavour)))


def kselftest(driver, flavour):
    return f"kselftest {driver} {flavour}", lambda: suite.kselftest(driver, flavour)


def bounce(driver, flavour):
    return f"kselftest {driver} {flavour} swiotlb=force", lambda: suite.bounce(driver, flavour)


def rdma_core(drivers, flavour, chosen=userland.STABLE):
    return f"rdma-core {' '.join(drivers)} {flavour}", lambda: suite.rdma_core(drivers, flavour, chosen)


def interop(driver, flavour, short, chosen=userland.STABLE):
    return f"interop {driver} {flavour}{' short' * short}", lambda: suite.interop(driver, flavour, short, chosen)


def sample(name, flavour):
    return f"{name} {flavour}", lambda: suite.sample(name, flavour)


def kverbs(flavour):
    return f"kverbs {flavour}", lambda: suite.kverbs(flavour)


def peer_memory(flavour):
    return f"peer memory {flavour}", lambda: suite.peer_memory(flavour)


def power_off(driver, flavour):
    return f"power-off {driver} {flavour}", lambda: suite.power_off(driver, flavour)


def abi_diff(flavour):
    return abi_job(f"abi-diff {flavour}", abi.diff, flavour)


def abi_diff_debug(flavour):
    return abi_job(f"abi-diff debug {flavour}", abi.diff_on_debug_kernel, flavour)


def abi_job(name, diff, flavour):
    def job():
        tally, line = diff(flavour)
        steps.note(f"{name}: {line}")
        return tally

    return name, job


def debug(driver):
    return f"debug kernel {driver}", lambda: suite.debug(driver)


def check_debug(driver):
    """All that there is for the debug kernel. The C driver is what the ABI of the other is compared with."""
    return [debug(driver)] + [abi_diff_debug(toolroot.FLAVOURS[0])] * (driver == "rust")


def everything(longer=False):
    """In an order in which what others wait for is built early, and what takes longest is not what all wait for in the end.

    LONGER: also all that there is for the debug kernel, data between guests with the C driver, and the next series of kernels,
    if tools/series names one.
    """
    cloud, stock = toolroot.FLAVOURS
    following = toolroot.NEXT if longer else ()
    laws, rustfmt, clippy_emulator, clippy_samples, no_kverbs, clippy_cloud, *clippy_following = lint()
    # Linux's driver does not change from one configuration of the kernel to the other.
    combinations = [("rust", cloud), ("c", cloud), ("rust", stock)]
    return [
        module("rust", cloud),
        ("emulator", lambda: suite.attempt("emulator", build.emulator)),
        # Its kernel takes as long as all the rest up to the guests.
        *([module("rust", toolroot.DEBUG)] if longer else []),
        *(module("rust", flavour) for flavour in following),
        *(clippy_following if longer else []),
        module("rust", stock),
        ("host tests", suite.test_host),
        laws,
        rustfmt,
        clippy_cloud,
        clippy_emulator,
        clippy_samples,
        no_kverbs,
        module("c", cloud),
        ("tests of the tools", suite.test_tools),
        # The first takes longer than the second and the two below it together, which keep other guests from an emulator.
        *(check_debug("rust") if longer else []),
        ("host tests with AddressSanitizer", suite.test_asan),
        *([kverbs(toolroot.DEBUG), sample("rdma_exchange", toolroot.DEBUG)] if longer else []),
        ("fuzzing", lambda: suite.fuzz(20)),
        *(kselftest(driver, flavour) for driver, flavour in combinations),
        *(kselftest("rust", flavour) for flavour in following),
        interop("rust", cloud, short=True),
        *([interop("c", cloud, short=True)] if longer else []),
        *(interop("rust", flavour, short=True) for flavour in following),
        rdma_core(("rust", "c"), cloud),
        *(job(driver, cloud) for job in (bounce, power_off) for driver in ("rust", "c")),
        *(sample(name, cloud) for name in build.SAMPLES),
        (f"kselftest rust {cloud} KVERBS=0", lambda: suite.programs_without_kverbs(cloud)),
        kverbs(cloud),
        peer_memory(cloud),
        abi_diff(cloud),
    ]


def timed():
    """What has limits in seconds, and so is done when all else is over, one after the other."""
    return [job for driver in ("rust", "c") for job in life.jobs(driver, toolroot.FLAVOURS[0])]


def guarded(name, job):
    """A job that cannot run has failed."""
    try:
        return job()
    except Failure as failure:
        steps.note(f"{name}: {failure}")
        tally = Tally()
        tally.fail(f"{name} could not run")
        return tally


def run(jobs, alone=()):
    """Runs jobs two at a time, and then those that are to be alone; returns the exit status.

    The last line of the output says how many tests passed.
    """
    toolroot.root()
    total = Tally()
    for batch, at_once in ((jobs, 2), (alone, 1)):
        with ThreadPoolExecutor(at_once) as pool:
            for tally in pool.map(lambda job: guarded(*job), batch):
                total += tally
    for name in total.failures:
        steps.note(f"failed: {name}")
    print(total, flush=True)
    return 1 if total.failed or not total.passed else 0
