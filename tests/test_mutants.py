# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""LENGTH mutants of the driver, which EFA_SEED draws among those of cargo-mutants: host tests have to find nine of ten."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import CLONE, succeeds
from guests import result
from test_bugs import KEEP, TREE, restore, run

MINUTES = 40
TIER = "named"
NEEDS = ["emulator-tests", "host-tests", "cargo-mutants"]
FOLDERS = ("com", "io", "hw", "verbs")
# Packages whose tests look for a mutant, in this order.
PACKAGES = ("driver", "loom-tests", "efa-hw")
# A folder in which the driver's files are those of a package, which is never built.
PACKAGE = KEEP / "package"
MANIFEST = '[package]\nname = "efa"\nedition = "2021"\n[lib]\npath = "efa_main.rs"\n'
pytestmark = pytest.mark.xdist_group("bugs")


def until_failure(command, env):
    """Runs cargo until it ends or a test fails."""
    said = []
    with subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as cargo:
        assert cargo.stdout
        for line in cargo.stdout:
            said.append(line)
            if re.search(r"^test .*FAILED$", line):
                os.killpg(cargo.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, cargo.returncode, "".join(said))


def outcome(mutant):
    """Puts a mutant into the tree; returns who has found it."""
    # The second line has the name of the mutant.
    file, hunks = f"efa_rs/{mutant['file']}", mutant["diff"].split("\n", 2)[2]
    succeeds(["git", "apply", "-"], input=f"--- a/{file}\n+++ b/{file}\n{hunks}", cwd=TREE)
    try:
        if any(run(package, "--no-run")[1] for package in PACKAGES):
            return "does not build"
        found = (package for package in PACKAGES if run(package, how=until_failure)[1])
        return next(found, "missed")
    finally:
        restore()


def test_mutants(request, capsys):
    restore()
    for package in PACKAGES:
        said, status = run(package, how=until_failure)
        assert status == 0, f"{package} without a mutant: {said[-6000:]}"
    succeeds(["rsync", "-rlc", "--delete", f"{CLONE}/efa_rs/", PACKAGE])
    Path(PACKAGE, "Cargo.toml").write_text(MANIFEST)
    files = [f"--file={folder}/**/*.rs" for folder in FOLDERS]
    program = result("cargo-mutants") / "bin/cargo-mutants"
    listed = json.loads(succeeds([program, "mutants", "--list", "--json", "--diff", f"--dir={PACKAGE}", *files]))
    assert {Path(mutant["file"]).parts[0] for mutant in listed} == set(FOLDERS)
    seed, length = os.environ.get("EFA_SEED") or "1", request.config.option.length or 50
    outcomes = Counter()
    for mutant in random.Random(seed).sample(listed, length):
        found = outcome(mutant)
        outcomes[found] += 1
        with capsys.disabled():
            name = mutant["diff"].splitlines()[1].removeprefix("+++ ")
            print(f"==> {mutant['file']}, {name}: {found}", file=sys.stderr, flush=True)
    viable = length - outcomes["does not build"]
    assert outcomes["missed"] <= viable / 10, f"of {len(listed)} mutants and EFA_SEED={seed}: {dict(outcomes)}"
