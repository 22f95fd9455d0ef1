# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Bugs put into the driver, one at a time: the test that a patch of host/bugs names finds it, in less than LIMIT seconds.

A patch begins with its `Kind: ...` and `Found-by: PACKAGE TEST`, a package of host/ or of the emulator. `Found-by: guest PROGRAM::CASE` is
for what no test without a guest can find. Such a patch is built, and its case has to exist.
"""

import json
import lzma
import os
import re
import sys
from pathlib import Path

import pytest
from conftest import CLONE, ran, succeeds
from test_host import COUNTS, cargo

MINUTES = 16
TIER = "named"
NEEDS = ["emulator-tests", "host-tests"]
LIMIT = 300
KEEP = Path(os.environ["EFA_KEEP"], "bugs")
TREE = KEEP / "tree"
# How cargo and libtest end what they do, in minutes and seconds.
ENDED = re.compile(r"inished .*in (?:(\d+)m )?([\d.]+)s")
pytestmark = pytest.mark.xdist_group("bugs")


def header(patch):
    """Returns the kind of a bug, the package that finds it, and the test."""
    fields = dict(re.findall(r"^(\S+): (.+)$", patch.read_text().partition("\n--- ")[0], re.MULTILINE))
    return fields["Kind"], *fields["Found-by"].split(" ", 1)


def restore():
    """Makes the tree equal to the clone. Only files that differ get a new time, so that cargo builds what depends on them."""
    succeeds(["rsync", "-rlpc", "--mkpath", "--delete", "--filter=:- .gitignore", "--exclude=/.git", f"{CLONE}/", TREE])


def run(package, *words, how=ran):
    """Runs cargo test for a package in the tree; returns its output and status."""
    workspace = "emulator" if package.startswith("efa-") else "host"
    settings = {"CARGO_TARGET_DIR": str(KEEP / workspace), "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER": f"timeout {LIMIT}"}
    return cargo(workspace, "test", "-p", package, *words, clone=TREE, how=how, **settings)


@pytest.fixture(scope="module", autouse=True)
def tree(request):
    """A copy of the clone in which the named tests pass."""
    restore()
    named = {}
    for item in request.session.items:
        if item.module is request.module:
            _, package, test = header(item.callspec.params["patch"])
            named.setdefault(package, set()).add(test)
    for package in named.keys() - {"guest"}:
        said, status = run(package, "--", "--exact", *named[package])
        passed = sum(int(count) for count, _, _ in COUNTS.findall(said))
        assert (status, passed) == (0, len(named[package])), f"{package} without a bug: {said[-6000:]}"


@pytest.fixture
def patch(request):
    """Puts a bug into the tree."""
    succeeds(["git", "apply", request.param], cwd=TREE)
    yield request.param
    restore()


@pytest.mark.parametrize("patch", sorted((CLONE / "host/bugs").glob("*.patch")), ids=lambda patch: patch.stem, indirect=True)
def test_bug(patch, capsys):
    kind, package, test = header(patch)
    said, status = run("driver", "--no-run") if package == "guest" else run(package, "--", "--exact", test)
    built, runs, output = said.partition("\n     Running ")
    if package == "guest":
        program, _, case = test.partition("::")
        cases = json.loads(lzma.open(CLONE / "tests/abi/c.xz", "rt").read())["efa3"] if program == "abi" else ()
        assert case in cases or f'"{case}"' in (CLONE / f"tests/kselftest/{program}.py").read_text(), f"there is no case {test}"
        assert status == 0, f"it does not build: {said[-6000:]}"
    else:
        assert runs, f"it does not build: {built[-6000:]}"
        # A test that exceeds a limit has to say its name. No other one runs that could end the program.
        assert status and re.search(rf"\b{test}\b.*(FAILED|panicked)|\(signal: ", output), f"{test} does not find it: {said[-6000:]}"
    took = sum(60 * int(minutes or 0) + float(seconds) for minutes, seconds in ENDED.findall(said))
    with capsys.disabled():
        print(f"==> {patch.stem}: {kind}, found by {package} {test}, {took:.0f} s", file=sys.stderr, flush=True)
