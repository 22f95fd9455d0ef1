# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make schedules and make fuzz-driver: run lives of the driver as a program (host/), from seeds and from a fuzzer's inputs."""

import json
import os
import re
from pathlib import Path

from . import build, cache, namespace, steps, times
from .failure import Failure, match_in
from .verdict import check

# The folders of efa_rs/ whose covered lines are counted.
COUNTED = ("com", "io", "hw", "verbs", "rdma")
CORPUS = Path("host/driver/tests/driver/corpus.txt")
# Maximum length of an input in bytes. A life of 48 actions takes fewer.
LONGEST = 400
FAILED = re.compile(r"^failed: (.*)$", re.MULTILINE)
LIVES = re.compile(r"^(\d+ lives, \d+ per second), \d+ failed$", re.MULTILINE)


def inside(path):
    """Returns the path in the toolroot of a file in the folder of builds."""
    return f"{build.BUILD}/{path}"


def in_toolroot(log, what, command, environment=None):
    steps.run(build.in_toolroot(command, [(cache.clone_folder("host"), build.BUILD, "rw")], environment), log, what)


def instrumented(folder, options):
    """The environment of a build in a FOLDER of its own whose driver is compiled with these options."""
    return {"RUSTC_WRAPPER": "/efa-rs/host/instrument.sh", "INSTRUMENT": options, "CARGO_TARGET_DIR": inside(folder)}


class Lives:
    """The program that runs lives and counts the lines that they reach."""

    def __init__(self, log):
        self.log = log
        self.folder = empty("reached")
        arguments = ("build", "--release", "-p", "driver", "--bin", "lives")
        with build.cargo_lock("host-coverage"):
            build.host(log, "Building the driver as a program", *arguments, environment=instrumented("coverage", "-Cinstrument-coverage"))
        self.program = inside("coverage/release/lives")

    def run(self, *arguments):
        """Runs the program. Returns its output, also if lives fail."""
        begin = self.log.tell()
        try:
            in_toolroot(self.log, "lives", [self.program, *map(str, arguments)], {"LLVM_PROFILE_FILE": inside("reached/%p.profraw")})
        except Failure:
            # The last line has the number of lives, also after failures. Without it, the program itself failed.
            if not LIVES.search(self.output(begin)):
                raise
        return self.output(begin)

    def run_inputs(self, folder):
        """Runs the lives of the files of a folder of inputs."""
        pack(folder, self.folder / "inputs")
        return self.run("inputs", inside("reached/inputs"))

    def output(self, begin):
        with open(self.log.name, errors="replace") as file:
            file.seek(begin)
            return file.read()

    def reached(self):
        """Returns the number of lines of each folder that lives have reached, and the number of all its lines."""
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
    """Prints the number of lives, and the part of the driver that they have reached."""
    lines = ", ".join(f"{folder} {covered:,} of {count:,}" for folder, (covered, count) in counts.items())
    steps.note(f"{name}: {match_in(LIVES, text, f'the output of {name}')[1]}; lines reached: {lines}")


def schedules(seconds, of_commit=False):
    """Runs lives from consecutive seeds, of which the first is EFA_SEED, the start of the commit's hash, or random."""
    commit = times.head()[0][:8] if of_commit else ""
    seed = int(os.environ.get("EFA_SEED") or (int(commit, 16) if commit else int.from_bytes(os.urandom(4))))
    name = f"schedules from EFA_SEED={seed} for {seconds} s"
    with steps.step(name) as log:
        lives = Lives(log)
        text = lives.run("schedules", seed, seconds)
        show(name, text, lives.reached())
    return check(f"{name} hold", FAILED.findall(text))


def fuzz(seconds, keep=False):
    """Runs lives from inputs that libFuzzer chooses. KEEP replaces the corpus of the repository by the minimized inputs."""
    name = f"fuzzing the driver for {seconds} s"
    corpus, found = cache.clone_folder("host", "corpus"), empty("found")
    with steps.step(name) as log:
        environment = {**instrumented("fuzz", build.COVERAGE), "CXX": "clang++-19"}
        arguments = ("build", "--release", "--bin", "life")
        with build.cargo_lock("host-fuzz"):
            build.host(log, "Building the fuzz target", *arguments, manifest="fuzz/Cargo.toml", environment=environment)
        unpack(corpus)
        program, options = inside("fuzz/release/life"), (f"-max_len={LONGEST}", "-len_control=0", "-timeout=60")
        workers = (f"-fork={os.cpu_count()}", "-ignore_crashes=1", "-ignore_timeouts=1", "-ignore_ooms=1")
        artifacts = f"-artifact_prefix={inside('found')}/"
        command = [program, f"-max_total_time={seconds}", *workers, *options, artifacts, "-print_final_stats=1", inside("corpus")]
        try:
            in_toolroot(log, f"Fuzzing, whose findings are in {found},", command)
        except Failure:
            # libFuzzer fails if it has found something, which may be known.
            if not any(found.iterdir()):
                raise
        executions = executed(Path(log.name).read_text(errors="replace"))
        if keep:
            minimize(log, program, corpus, options)
        lives = Lives(log)
        text = lives.run_inputs(corpus)
        steps.note(f"{name}: {executions:,} executions, {executions // seconds:,} per second")
        show(f"{name}: the corpus", text, lives.reached())
        # libFuzzer also keeps inputs that take too long, or too much memory.
        failed = FAILED.findall(lives.run_inputs(found)) + [str(file) for file in found.iterdir() if not file.name.startswith("crash-")]
    return check(f"{name} finds nothing", failed)


def executed(text):
    """The number of executions in libFuzzer's output."""
    counts = re.findall(r"^#(\d+): ", text, re.MULTILINE)
    if not counts:
        raise Failure("libFuzzer printed no number of executions: see its output above.")
    return int(counts[-1])


def empty(name):
    """Makes an empty folder among this clone's builds."""
    namespace.remove(cache.clone_folder("host", name))
    return cache.clone_folder("host", name)


def unpack(folder):
    """Adds the corpus of the repository to a folder of inputs."""
    for number, line in enumerate((cache.CLONE / CORPUS).read_text().split()):
        (folder / f"kept-{number:04}").write_bytes(bytes.fromhex(line))


def pack(folder, file):
    """Writes the inputs of a folder into a file, each as a line."""
    lines = sorted(entry.read_bytes().hex() for entry in folder.iterdir())
    file.write_text("".join(f"{line}\n" for line in lines if line))


def minimize(log, program, corpus, options):
    """Removes inputs from the corpus that reach no code of their own, and writes the corpus to the repository."""
    merged = empty("merged")
    in_toolroot(log, "Minimizing the corpus", [program, "-merge=1", "-use_counters=0", *options, inside("merged"), inside("corpus")])
    namespace.remove(corpus)
    merged.rename(corpus)
    pack(corpus, cache.CLONE / CORPUS)
