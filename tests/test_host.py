# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The tests that need no guest: the emulator's, with those of efa_rs/hw, and the driver as a program with its oracles."""

import os
import re
import sys

import pytest
from conftest import CLONE, ran

MINUTES = 5
TIER = "check"
NEEDS = ["emulator-tests", "host-tests"]
RESULT = re.compile(r"^test (\S+) (?:- .*)?\.\.\. (ok|FAILED|ignored)\b", re.MULTILINE)
COUNTS = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
# What a test that failed has printed.
OUTPUT = re.compile(r"^---- (\S+) stdout ----\n(.*?)(?=\n\n\n|\n---- )", re.MULTILINE | re.DOTALL)
# The size of a search.
SIZES = re.compile(r"^.+: \d+ (?:schedules|cases)\b.*", re.MULTILINE)
OUTCOMES = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
WORKSPACES = {
    "emulator": {},
    # RUSTC_BOOTSTRAP enables unstable language features, as in the kernel's build.
    "host": {"RUSTC_BOOTSTRAP": "1", "EFA_BINDINGS": "/run/built/rust-cloud-amd64/bindings_generated.rs"},
}


def cargo(workspace, *words, clone=CLONE, how=ran, **environment):
    """Runs cargo in a workspace of a clone, with the folder that tools/builds.mk builds in; returns its output and status."""
    linker = {
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER": "clang-19",
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS": "-Clink-arg=--ld-path=/usr/bin/ld.lld-19",
    }
    settings = {**os.environ, "CARGO_TARGET_DIR": f"{os.environ['EFA_KEEP']}/{workspace}", **linker, **WORKSPACES[workspace], **environment}
    command = ["cargo", *words[:1], "--offline", "--locked", "--manifest-path", clone / workspace / "Cargo.toml", *words[1:]]
    done = how(command, env=settings)
    return done.stdout, done.returncode


def record(request, said, status):
    """Records the results of cargo test. Lines that others printed into may hide a test's own, whose program has counted it."""
    why = dict(OUTPUT.findall(said))
    lines = [(name, OUTCOMES[ended], why.get(name, "")) for name, ended in RESULT.findall(said)]
    for outcome, number in zip(
        ("passed", "failed", "skipped"), map(sum, zip(*[map(int, one) for one in COUNTS.findall(said)], strict=True)), strict=True
    ):
        known = sum(ended == outcome for _, ended, _ in lines)
        lines += [(f"{outcome} test without a line", outcome, "")] * (number - known)
    request.node.ktap = lines
    failures = said.partition("\nfailures:\n")[2] or said
    assert status == 0 and lines, f"cargo test failed:\n{failures[-6000:]}"


@pytest.mark.parametrize("workspace", [pytest.param(name, marks=pytest.mark.xdist_group(f"host {name}")) for name in WORKSPACES])
def test_workspace(request, workspace, case):
    seed = os.environ.get("EFA_SEED") or "1"
    words = ["test", "--workspace", "--no-fail-fast", *([f"*{case}*".replace("*", "")] if case else [])]
    said, status = cargo(workspace, *words, PROPTEST_RNG_SEED=seed)
    record(request, said, status)


@pytest.mark.tier("all")
@pytest.mark.parametrize("workspace", [pytest.param(name, marks=pytest.mark.xdist_group(f"host {name}")) for name in WORKSPACES])
def test_models(request, workspace, capsys):
    """The searches of all schedules, with larger bounds than in test_workspace. Shows their sizes."""
    said, status = cargo(workspace, "test", "--workspace", "models::", "--", "--show-output", EFA_LARGE="1")
    with capsys.disabled():
        print("".join(f"==> {line}\n" for line in SIZES.findall(said)), file=sys.stderr, end="", flush=True)
    record(request, said, status)
