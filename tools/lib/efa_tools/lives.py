# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make schedules and make fuzz-driver: lives of the driver as a program (host/), of seeds and of what a fuzzer chooses."""

import json
import os
import re
import shutil
from pathlib import Path

from . import build, cache, guest, namespace, steps
from .failure import Failure
from .verdict import check

# The folders of efa_rs/ of which is counted what lives reach.
COUNTED = ("com", "io", "hw", "verbs", "rdma")
CORPUS = Path("host/driver/tests/driver/corpus.txt")
# Bytes of an input: 48 actions take less.
LONGEST = 400
FAILED = re.compile(r"^failed: (.*)$", re.MULTILINE)
LIVES = re.compile(r"^(\d+ lives, \d+ per second), \d+ failed$", re.MULTILINE)


def inside(path):
    """Where something of the folder of builds is in the toolroot."""
    return f"{build.BUILD}/{path}"


def in_toolroot(log, what, command, environment=None):
    steps.run(build.in_toolroot(command, [(cache.clone_folder("host"), build.BUILD, "rw")], environment), log, what)


def instrumented(folder, options):
    """The environment of a build in a FOLDER of its own whose driver is compiled with these options."""
    return {"RUSTC_WRAPPER": "/efa-rs/host/instrument.sh", "INSTRUMENT": options, "CARGO_TARGET_DIR": inside(folder)}


class Lives:
    """The program that lives them, which counts the lines that they reach, and a folder for what it writes."""

    def __init__(self, log):
        self.log = log
        self.folder = cache.clone_folder("host") / "reached"
        arguments = ("build", "--release", "-p", "driver", "--bin", "lives")
        with build.cargo_lock("host-coverage"):
            build.host(log, "Building the driver as a program", *arguments, environment=instrumented("coverage", "-Cinstrument-coverage"))
        self.program = inside("coverage/release/lives")
        namespace.remove(self.folder)
        self.folder.mkdir()

    def run(self, *arguments):
        """Runs it; returns what it prints, also if lives fail."""
        begin = self.log.tell()
        try:
            in_toolroot(self.log, "lives", [self.program, *map(str, arguments)], {"LLVM_PROFILE_FILE": inside("reached/%p.profraw")})
        except Failure:
            # Those that failed are named.
            if not LIVES.search(self.said(begin)):
                raise
        return self.said(begin)

    def said(self, begin):
        with open(self.log.name, errors="replace") as file:
            file.seek(begin)
            return file.read()

    def reached(self):
        """How many lines of each folder they have reached, and of how many."""
        profiles = [inside(f"reached/{file.name}") for file in self.folder.glob("*.profraw")]
        in_toolroot(self.log, "llvm-profdata", ["llvm-profdata-19", "merge", "-sparse", *profiles, "-o", inside("reached/all")])
        script = f"llvm-cov-19 export --summary-only --instr-profile={inside('reached/all')} {self.program} >{inside('reached/lines')}"
        in_toolroot(self.log, "llvm-cov", ["sh", "-c", script])
        counts = dict.fromkeys(COUNTED, (0, 0))
        for file in json.loads((self.folder / "lines").read_text())["data"][0]["files"]:
            _, _, path = file["filename"].partition("/out/module/")
            folder, lines = path.partition("/")[0], file["summary"]["lines"]
            if folder in counts:
                covered, count = counts[folder]
                counts[folder] = covered + lines["covered"], count + lines["count"]
        return counts


def show(name, text, counts):
    """Prints how many lives there were, and which part of the driver they have reached."""
    lines = ", ".join(f"{folder} {covered:,} of {count:,}" for folder, (covered, count) in counts.items())
    lives = LIVES.search(text)
    steps.note(f"{name}: {lives[1] if lives else 'no lives'}; lines reached: {lines}")


def schedules(seconds):
    """Lives of seeds, for so long."""
    seed = int(os.environ.get("EFA_SEED") or int.from_bytes(os.urandom(4)))
    name = f"schedules from EFA_SEED={seed} for {seconds} s"
    with steps.step(name) as log:
        lives = Lives(log)
        text = lives.run("schedules", seed, seconds)
        show(name, text, lives.reached())
    if not LIVES.search(text):
        raise Failure(f"The program that lives schedules has not ended as it should: all of it is in {log.name}.")
    return check(f"{name} hold", FAILED.findall(text))


def fuzz(seconds, keep=False):
    """Lives of bytes that libFuzzer chooses, for so long. KEEP: what has reached most becomes the corpus of the repository."""
    name = f"fuzzing the driver for {seconds} s"
    folder = cache.clone_folder("host")
    corpus, found = folder / "corpus", folder / "found"
    with steps.step(name) as log:
        environment = {**instrumented("fuzz", build.COVERAGE), "CXX": "clang++-19"}
        arguments = ("build", "--release", "--bin", "life")
        with build.cargo_lock("host-fuzz"):
            build.host(log, "Building the fuzz target", *arguments, manifest="fuzz/Cargo.toml", environment=environment)
        unpack(corpus)
        namespace.remove(found)
        found.mkdir()
        program, options = inside("fuzz/release/life"), (f"-max_len={LONGEST}", "-len_control=0", "-timeout=60")
        workers = (f"-fork={os.cpu_count()}", "-ignore_crashes=1", "-ignore_timeouts=1", "-ignore_ooms=1")
        artifacts = f"-artifact_prefix={inside('found')}/"
        command = [program, f"-max_total_time={seconds}", *workers, *options, artifacts, "-print_final_stats=1", inside("corpus")]
        in_toolroot(log, f"Fuzzing, whose findings are in {found},", command)
        executions = executed(Path(log.name).read_text(errors="replace"))
        if keep:
            minimize(log, program, folder, options)
        lives = Lives(log)
        text = lives.run("replay", *(inside(f"corpus/{file.name}") for file in corpus.iterdir()))
        steps.note(f"{name}: {executions:,} executions, {executions // seconds:,} per second")
        show(f"{name}: the corpus", text, lives.reached())
        # What a known finding explains does not fail.
        failed = FAILED.findall(lives.run("replay", *(inside(f"found/{file.name}") for file in found.glob("crash-*"))))
        slow = [f"{file} takes too long, or too much memory" for file in found.iterdir() if not file.name.startswith("crash-")]
    return check(f"{name} finds nothing", failed + slow)


def executed(text):
    """How many executions libFuzzer has counted."""
    counts = re.findall(r"^#(\d+): ", text, re.MULTILINE)
    if not counts:
        raise Failure("libFuzzer has not said how many executions there were.")
    return int(counts[-1])


def unpack(folder):
    """Puts the corpus of the repository beside what fuzzers have found here before."""
    folder.mkdir(exist_ok=True)
    for number, line in enumerate((cache.CLONE / CORPUS).read_text().split()):
        (folder / f"kept-{number:04}").write_bytes(bytes.fromhex(line))


def minimize(log, program, folder, options):
    """Leaves of the corpus what reaches all code that it reaches, and writes that to the repository."""
    merged = folder / "merged"
    namespace.remove(merged)
    merged.mkdir()
    in_toolroot(log, "Minimizing the corpus", [program, "-merge=1", "-use_counters=0", *options, inside("merged"), inside("corpus")])
    shutil.rmtree(folder / "corpus")
    merged.rename(folder / "corpus")
    lines = sorted(file.read_bytes().hex() for file in (folder / "corpus").iterdir())
    (cache.CLONE / CORPUS).write_text("".join(f"{line}\n" for line in lines if line))
