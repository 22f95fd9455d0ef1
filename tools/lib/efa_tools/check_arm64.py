# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make check-arm64: all tests for arm64, whose guests are emulated on any host."""

from . import abi, arm64, build, check, host_tests, package, suite, toolroot, verdict
from .schedule import Job

CLOUD, STOCK, LARGE_PAGES = arm64.FLAVOURS
# The C driver runs with 4 KiB pages, for its column in kselftest's differences.md. abi-diff covers it with 16 KiB pages.
KSELFTESTS = (("rust", LARGE_PAGES), ("rust", CLOUD), ("c", CLOUD))
# One guest of each architecture on one network.
MIXED = "interop rust amd64 and arm64"


def everything():
    """All of make check-arm64."""
    modules = [*(("rust", flavour) for flavour in arm64.FLAVOURS), ("c", CLOUD), ("c", LARGE_PAGES)]
    return [
        *(check.module(driver, flavour) for driver, flavour in modules),
        check.module("rust", toolroot.FLAVOURS[0]),
        Job(check.EMULATOR, lambda: verdict.attempt("emulator", build.emulator), 100, cores=2),
        *(job(driver, flavour) for job in (check.kselftest, check.kselftest_timeouts) for driver, flavour in KSELFTESTS),
        *(abi_diff(flavour) for flavour in (LARGE_PAGES, CLOUD)),
        check.rdma_core(("rust", "c"), CLOUD),
        check.guest_job(f"interop rust {CLOUD}", lambda: between("rust", CLOUD), 600, "rust", CLOUD, memory=4, cores=2),
        check.guest_job(MIXED, mixed, 400, "rust", CLOUD, memory=4, cores=2),
        Job("the same package", same_package, 30),
        Job(f"host tests {LARGE_PAGES}", lambda: host_tests.test_host_in_guest(LARGE_PAGES), 900, cores=2, memory=4),
    ]


def abi_diff(flavour):
    return check.abi_job(f"abi-diff {flavour}", abi.diff, flavour, 600, flavour)


def between(driver, flavour):
    """Contents and perftest between two guests."""
    name = f"interop {driver} {flavour}"
    return suite.between_guests(name, 2, ["short", "contents", "perftest"], driver, flavour)


def mixed():
    """Contents between an x86-64 guest and an arm64 guest, which both send and receive."""
    return suite.between_guests(MIXED, 2, ["short", "contents"], "rust", toolroot.FLAVOURS[0], others=CLOUD)


def same_package():
    """make deb gives the same bytes on either architecture."""
    here, elsewhere = package.deb(), package.deb_of_elsewhere()
    problems = [] if here.read_bytes() == elsewhere.read_bytes() else [f"{here} and {elsewhere} differ"]
    return verdict.check("the package has the same bytes if an arm64 machine builds it", problems)
