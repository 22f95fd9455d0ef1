# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The driver on arm64, also with pages of 16 KiB. The guests are emulated on any host.

Selftests of the C driver run with pages of 4 KiB, for its column in kselftest/differences.md.
"""

import os
import shlex

import pytest
import test_abi as abi
import test_data as data
import test_rdma_core as rdma_core
import traffic
from guests import Guests, result
from test_host import record
from test_kselftest import GUESTS, test_program, test_timeouts

__all__ = ["GUESTS", "test_program", "test_timeouts"]
MINUTES = 90
TIER = "named"
COMBINATIONS = {"named": ["rust arm64-16k", "rust cloud-arm64", "c cloud-arm64"]}
# The third kernel only has its module built.
NEEDS = ["rust-arm64"]
# Random inputs of each test of the emulator, in place of 256.
FEWER_CASES = 16


@pytest.mark.combinations("rust arm64-16k", "rust cloud-arm64")
@pytest.mark.needs("c-arm64-16k", "c-cloud-arm64")
def test_cases(request, combination, case):
    """The uverbs interface of both drivers."""
    _, flavour = combination.split()
    abi.judge(request, {driver: abi.run(driver, flavour, abi.PROFILES[0], case) for driver in ("c", "rust")}, flavour, case)


@pytest.mark.combinations("rust cloud-arm64", "c cloud-arm64")
def test_rdma_core(combination, options, ktap):
    with Guests(**{**options, **rdma_core.GUESTS}) as guests:
        rdma_core.test_rdma_core(guests, combination, options, ktap)


@pytest.fixture(scope="module")
def pair(options):
    with Guests(**{**options, **data.GUESTS}) as guests:
        yield guests


@pytest.mark.combinations("rust cloud-arm64")
def test_contents(pair, ktap):
    ktap(traffic.tried(data.contents, pair))


@pytest.mark.combinations("rust cloud-arm64")
@pytest.mark.parametrize("command", data.PERFTEST)
def test_perftest(pair, command):
    data.moves(pair, command, "")


@pytest.mark.combinations("rust cloud-amd64")
@pytest.mark.needs("kernel-cloud-arm64", "rust-cloud-arm64", "arm64-userland")
def test_both_architectures(options, ktap):
    """Guests of two architectures send to each other."""
    with Guests(**{**options, **data.GUESTS, "others": "cloud-arm64"}) as guests:
        ktap(traffic.tried(data.contents, guests))


@pytest.mark.combinations("none arm64-16k")
@pytest.mark.needs("emulator-tests-arm64")
def test_page_size(request, options):
    """The emulator's tests with that kernel's page size, and its Landlock and seccomp."""
    tests = result("emulator-tests-arm64")
    settings = f"PROPTEST_CASES={FEWER_CASES} PROPTEST_RNG_SEED={os.environ.get('EFA_SEED') or 1}"
    with Guests(**{**options, "devices": [], "memory": "3G"}) as guests:
        done = guests.tried(f"{settings} sh {shlex.quote(str(tests / 'run'))}; status=$?; echo; exit $status")
    record(request, done.stdout, done.returncode)
