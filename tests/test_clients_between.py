# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Data between clients in the kernels of two guests, in C (tests/kverbs) and in Rust (samples/rdma_exchange), on good and bad networks."""

import contextlib
import re

import pytest
import test_clients
import traffic
from guests import ProgramFailed
from traffic import GOOD, NETWORKS

MINUTES = 2
COMBINATIONS = {"all": ["rust cloud-amd64"], "named": ["rust debug"]}
GUESTS = {"count": 2, "cpus": 1, "devices": test_clients.GUESTS["devices"][1:]}
NEEDS = test_clients.NEEDS[:2]
C, RUST = "kverbs_client", "rdma_exchange"
CALLS, MESSAGES = 400, 2000
# For the largest call, the peer reads 16 scattered pages.
SIZES = {"send": (32, 1000, 8192), "exchange": (8, 4096, 5000, 65536)}
QUEUE_PAIRS = 4
WRONG_BITS = re.compile(r"byte \d+ of \d+ of number \d+ is|message of unknown kind 0x[0-9a-f]+")
RESULT = re.compile(r"calls \d+ bytes \d+.*")
CONDITIONS = {**NETWORKS, "1 % loss and reordering": traffic.LOSS_AND_REORDERING}
CASES = [(C, RUST, name) for name in CONDITIONS] + [(module, module, GOOD) for module in (C, RUST)]


@pytest.fixture(scope="module")
def loaded(guests):
    for guest in range(guests.count):
        for name in (C, RUST):
            guests.run(f"insmod {test_clients.module(name, guests.flavour)}", guest)
    return guests


def start(guests, guest, module, command):
    """Starts a command of a client, whose answer becomes the output."""
    file = f"/sys/kernel/debug/{module}/run"
    return traffic.Program(guests, guest, f"sh -c 'echo {command} >{file} && cat {file}'")


def run(guests, guest, module, command):
    return traffic.finish(start(guests, guest, module, command)).strip()


@contextlib.contextmanager
def pair(guests, modules, queue_pairs):
    """Connects two clients; yields a function that runs a command on both at once, and returns the answer of the first one."""
    try:
        addresses = [run(guests, guest, module, f"open {queue_pairs}") for guest, module in enumerate(modules)]
        for guest, module in enumerate(modules):
            run(guests, guest, module, f"meet {addresses[1 - guest]}")
        yield lambda command: traffic.finish(*(start(guests, guest, module, command) for guest, module in enumerate(modules))).strip()
    finally:
        for guest, module in enumerate(modules):
            run(guests, guest, module, "close")


@pytest.mark.parametrize("verb", SIZES)
@pytest.mark.parametrize(("one", "other", "network"), CASES)
def test_moves(loaded, one, other, network, verb):
    """Messages or calls of each size, in both directions."""
    count = {"send": MESSAGES, "exchange": CALLS}[verb] // loaded.slow
    with traffic.network(loaded, CONDITIONS[network]), pair(loaded, (one, other), QUEUE_PAIRS) as both:
        for size in SIZES[verb]:
            said = both(f"{verb} {count} {size}")
            assert RESULT.fullmatch(said), said


@pytest.mark.parametrize("module", [C, RUST])
def test_one_call_at_a_time(loaded, module):
    with pair(loaded, (module, module), 1) as both:
        for _ in range(CALLS // 10 // loaded.slow):
            assert RESULT.fullmatch(both("exchange 1 8"))


@pytest.mark.parametrize("module", [C, RUST])
def test_wrong_bits(loaded, module):
    """A wrong bit in each packet is detected, and logged."""
    loaded.run("dmesg --clear")
    with traffic.network(loaded, traffic.WRONG_BITS), pair(loaded, (module, module), 1) as both, pytest.raises(ProgramFailed):
        both("send 10 8192")
    assert WRONG_BITS.search(said := loaded.run("dmesg")), said


def test_nothing_is_left_behind(loaded):
    traffic.left_behind(loaded, "uar")
