# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Lives of the driver as a program, from seeds and a fuzzer's inputs, and fuzzing of the emulator, for LENGTH seconds each."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CLONE, ran, succeeds
from guests import CACHE, result

MINUTES = 2
TIER = "all"
# Folders of efa_rs/ whose covered lines are counted.
COUNTED = ("com", "io", "hw", "verbs", "rdma")
CORPUS = CLONE / "host/driver/tests/driver/corpus.txt"
# Maximum length in bytes of an input that is a life. A life of 48 actions takes fewer.
LONGEST = 400
LIVES = re.compile(r"^(\d+ lives, \d+ per second), \d+ failed$", re.MULTILINE)
TARGETS = sorted(path.stem for path in (CLONE / "emulator/fuzz/fuzz_targets").iterdir())
FUZZER = ("-len_control=0", "-timeout=60", "-print_final_stats=1")


@pytest.fixture
def say(capsys):
    """Prints a line about what has run."""

    def show(text):
        with capsys.disabled():
            print(f"==> {text}", file=sys.stderr, flush=True)

    return show


def lives(folder, say, *arguments):
    """Runs lives, of which none may fail, and shows which part of the driver they have reached."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "LLVM_PROFILE_FILE": f"{folder}/%p.profraw"}
    program = result("lives") / "lives"
    done = ran([program, *arguments], env=environment)
    ended = LIVES.search(done.stdout)
    assert ended and done.returncode == 0 and "\nfailed: " not in f"\n{done.stdout}", done.stdout[-6000:]
    profiles = [str(path) for path in folder.glob("*.profraw")]
    succeeds(["llvm-profdata-19", "merge", "-sparse", *profiles, "-o", folder / "all"])
    command = ["llvm-cov-19", "export", "--summary-only", f"--instr-profile={folder}/all", program]
    files = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["data"][0]["files"]
    counts = {name: [0, 0] for name in COUNTED}
    for file in files:
        name = file["filename"].partition("/out/module/")[2].partition("/")[0]
        if name in counts:
            counts[name][0] += file["summary"]["lines"]["covered"]
            counts[name][1] += file["summary"]["lines"]["count"]
    assert any(covered for covered, _ in counts.values())
    say(f"{ended[1]}; lines reached: {', '.join(f'{name} {covered:,} of {count:,}' for name, (covered, count) in counts.items())}")


@pytest.mark.needs("lives")
def test_schedules(request, tmp_path, say):
    """From consecutive seeds. The first is EFA_SEED, or the start of the commit's hash."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=CLONE, capture_output=True, text=True, check=False).stdout
    seed, seconds = os.environ.get("EFA_SEED") or str(int(head[:8] or "0", 16)), str(request.config.option.length or 30)
    say(f"schedules from EFA_SEED={seed} for {seconds} s")
    lives(tmp_path, say, "schedules", seed, seconds)


def fuzz(program, seconds, corpus, found, *options):
    """Runs a fuzz target; returns its output. What it finds is in a folder that stays."""
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True)
    command = [program, f"-max_total_time={seconds}", f"-artifact_prefix={found}/", *FUZZER, *options, corpus]
    done = ran(command)
    assert "stat::" in done.stdout or re.search(r"^#\d+: ", done.stdout, re.MULTILINE), done.stdout[-6000:]
    findings = list(found.iterdir())
    shown = str(found).replace(str(CACHE), os.environ["EFA_CACHE"], 1)
    assert not done.returncode and not findings, f"{len(findings)} findings in {shown}:\n{done.stdout[-6000:]}"
    return done.stdout


def pack(folder, file):
    """Writes the inputs of a folder into a file, each as a line."""
    file.write_text("".join(f"{line}\n" for line in sorted(path.read_bytes().hex() for path in folder.iterdir()) if line))


@pytest.mark.tier("named")
@pytest.mark.needs("lives", "fuzz-driver")
def test_fuzz_driver(request, tmp_path, say):
    """With EFA_RECORD=1, the inputs that each reach code of their own become the corpus of the repository: the file is in the cache."""
    keep = Path(os.environ["EFA_KEEP"])
    corpus, merged = keep / "corpus/life", tmp_path / "merged"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(CORPUS.read_text().split()):
        (corpus / f"kept-{number:04}").write_bytes(bytes.fromhex(line))
    program = result("fuzz-driver") / "life"
    fuzz(program, request.config.option.length or 600, corpus, keep / "found/life", f"-max_len={LONGEST}", f"-fork={os.cpu_count()}")
    if os.environ.get("EFA_RECORD"):
        merged.mkdir()
        succeeds([program, "-merge=1", "-use_counters=0", *FUZZER, f"-max_len={LONGEST}", merged, corpus])
        pack(merged, CACHE / "corpus.txt")
    pack(corpus, tmp_path / "inputs")
    lives(tmp_path / "reached", say, "inputs", tmp_path / "inputs")


@pytest.mark.tier("named")
@pytest.mark.needs("fuzz-emulator")
@pytest.mark.parametrize("target", TARGETS)
def test_fuzz_emulator(request, target):
    keep = Path(os.environ["EFA_KEEP"])
    corpus = keep / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    seconds = request.config.option.length or 60
    fuzz(result("fuzz-emulator") / target, seconds, corpus, keep / "found" / target, "-max_len=4096", "-rss_limit_mb=2048")
