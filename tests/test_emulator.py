# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Attacks on the emulator, for LENGTH seconds each; LENGTH messages; the dissector of its captures; its crates."""

from pathlib import Path

import pytest
from conftest import BUILT, CLONE, succeeds
from test_host import cargo, record

MINUTES = 6
TIER = "named"
NEEDS = ["emulator-tests"]


def test_attack(request):
    """Hostile machines, peers and control clients take no more time and memory than permitted from others."""
    tests = ("test", "--workspace", "--test", "attack", "--test", "killed", "--no-fail-fast", "--")
    record(
        request, *cargo("emulator", *tests, "--include-ignored", "--test-threads=1", EFA_SECONDS=str(request.config.option.length or 10))
    )


@pytest.mark.needs("bench-emulator")
def test_once(request):
    """LENGTH messages arrive once each. Packets are lost, duplicated and reordered, and paths die: one after the other, and all."""
    program = BUILT / "bench-emulator/examples/simulation"
    print(succeeds([program, "once", str(request.config.option.length or 1_000_000)]))


def test_wireshark(request):
    """The package's dissector reads a capture. tshark runs as another user, as it loads no scripts for root."""
    program = Path("/tmp/efa-tshark")
    program.write_text('#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/ tshark "$@"\n')
    program.chmod(0o755)
    record(request, *cargo("emulator", "test", "--workspace", "--test", "observe", "--", "--ignored", EFA_TSHARK=str(program)))


def deny(*words):
    program = "/run/built/cargo-deny/bin/cargo-deny"
    succeeds([program, "--offline", "--manifest-path", CLONE / "emulator/Cargo.toml", "--locked", "check", *words])


@pytest.mark.tier("all")
@pytest.mark.needs("cargo-deny", "advisories")
def test_crates():
    """Crates have licences and sources that emulator/deny.toml allows."""
    deny("bans", "licenses", "sources")


@pytest.mark.tier("all")
@pytest.mark.needs("cargo-deny", "advisories")
def test_advisories():
    if not Path("/run/built/advisories/fetched").exists():
        pytest.skip("RustSec's list of advisories can't be fetched")
    deny("--disable-fetch", "advisories")
