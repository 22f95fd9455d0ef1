# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Wall-clock and CPU times of a run's jobs and of their steps, saved for comparisons with later runs.

A job is a unit of scheduling, and a step is a part of it: a build, a guest. The duration of a step includes the wait for
a lock, which takes no CPU time.
"""

import contextlib
import contextvars
import itertools
import json
import os
import subprocess
import threading
import time
from dataclasses import asdict, dataclass, field

from . import cache
from .failure import Failure

# Number of runs whose times are kept.
KEPT = 200
# Rows of the table.
SHOWN = 10
# Time limit of a suite on two cores, in seconds: with a warm cache, and with an empty one. A suite that takes longer has to get faster,
# or to move tests to another tier.
BUDGETS = {"check": (12 * 60, 20 * 60), "check-all": (45 * 60, 75 * 60)}
# The step that only a run with an empty cache has.
COLD = "toolroot"

_lock = threading.Lock()
# Distinguishes the files of several runs in a second.
_saved = itertools.count()
_current: contextvars.ContextVar["Span | None"] = contextvars.ContextVar("span", default=None)


@dataclass
class Span:
    """A job or a step: when it began and ended, in seconds since the epoch, and its CPU time, in seconds."""

    name: str
    start: float
    end: float = 0.0
    cpu: float = 0.0
    steps: list["Span"] = field(default_factory=list)
    # Number of failed tests of a job.
    failed: int = 0

    def length(self):
        return (self.end or time.time()) - self.start


@contextlib.contextmanager
def measured(name, parent=None):
    """Measures the block as a part of PARENT, or else of the current span. Its value is the Span."""
    span = Span(name, time.time())
    parent = parent or _current.get()
    if parent:
        # It is added at its start, so that an interrupted run has it, too.
        parent.steps.append(span)
    token = _current.set(span)
    try:
        yield span
    finally:
        span.end = time.time()
        _current.reset(token)
        if parent:
            with _lock:
                parent.cpu += span.cpu


def spent(seconds):
    """Adds CPU time to the current step."""
    if span := _current.get():
        with _lock:
            span.cpu += seconds


def within(function):
    """Returns FUNCTION for another thread, where its steps belong to the current job."""
    context = contextvars.copy_context()
    # A copy for each call: one context cannot be entered twice at once.
    return lambda *arguments: context.copy().run(function, *arguments)


def head():
    """The clone's commit, and whether anything was changed since."""
    command = ["git", "-C", str(cache.CLONE)]
    status = ["status", "--porcelain", "--untracked-files=no"]
    try:
        done = subprocess.run([*command, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        changed = subprocess.run([*command, *status], capture_output=True, text=True, check=False)
    except OSError:
        return "", False
    return done.stdout.strip(), bool(changed.stdout.strip())


def save(run, suite, tally, others=0.0, begun=None, interrupted=False, boots_repeated=0):
    """Saves the times and the result of a run as JSON, in a file that is named after its commit; returns the file.

    OTHERS is the CPU time of other processes meanwhile, and BEGUN the value of head() at its start. Of an INTERRUPTED run,
    only jobs that have ended are saved. BOOTS_REPEATED is the number of repeated boots of guests.
    """
    now = head()
    commit, changed = begun or now
    folder = cache.folder("times")
    prune(folder)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(run.start))
    file = folder / f"{commit[:12] or 'unknown'}-{stamp}-{os.getpid()}-{next(_saved)}.json"
    content = {
        "head": commit,
        "changed": changed or (commit, changed) != now,
        "suite": suite,
        "interrupted": interrupted,
        "cores": os.cpu_count(),
        "others": others,
        "boots_repeated": boots_repeated,
        "passed": tally.passed,
        "skipped": tally.skipped,
        **asdict(run),
        "failed": tally.failed,
    }
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.rename(file)
    return file


def prune(folder):
    """Makes room for one more run: removes the oldest ones."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for old in files[: 1 - KEPT]:
        old.unlink(missing_ok=True)


def load(suite=None):
    """Returns the saved runs, the oldest first; only those of SUITE, if it is given."""
    runs = []
    for file in cache.folder("times").glob("*.json"):
        try:
            runs.append(json.loads(file.read_text()))
        except (OSError, ValueError):
            # Removed by another run meanwhile, or truncated by hand.
            continue
    return sorted((run for run in runs if suite in (None, run["suite"])), key=lambda run: run["start"])


def failed(suite):
    """Returns the names of the jobs that failed in the last complete run of a suite, which may have had only some of the jobs."""
    runs = [run for run in load(suite) if not run.get("interrupted")]
    if not runs:
        raise Failure(f"No run of {suite} is kept in {cache.folder('times')}: run all of it first.")
    return {job["name"] for job in runs[-1]["steps"] if job.get("failed")}


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def table(run, cores, others=0.0):
    """Returns the lines of a table: a run's jobs, the longest first, the time without parallel jobs, and the CPU time of OTHERS."""
    lines = [f"{'job':<52} {'from':>6} {'to':>6} {'s':>7} {'CPU s':>7} {'cores':>6}"]
    jobs = sorted(run.steps, key=lambda job: job.length(), reverse=True)
    for job in jobs[:SHOWN]:
        begin, end = clock(job.start - run.start), clock(job.end - run.start)
        used = job.cpu / job.length() if job.length() else 0
        lines.append(f"{job.name:<52} {begin:>6} {end:>6} {job.length():7.1f} {job.cpu:7.1f} {used:6.2f}")
    if rest := jobs[SHOWN:]:
        lines.append(f"{f'{len(rest)} others':<66} {sum(job.length() for job in rest):7.1f} {sum(job.cpu for job in rest):7.1f}")
    total = sum(job.cpu for job in jobs)
    of_others = f"; other processes used {others:.0f} s" if others >= 1 else ""
    all_there_is = cores * run.length()
    lines.append(f"in all {clock(run.length())} min, {total:.0f} s of CPU time of {all_there_is:.0f} s that {cores} cores have{of_others}")
    alone = time_with(run.steps, 1)
    lines.append(f"one job ran at a time for {clock(alone)} min" + (f", none for {clock(time_with(run.steps, 0))} min" if jobs else ""))
    return lines


def over_budget(run):
    """Returns a warning if a run of a suite exceeded its budget; an empty text otherwise."""
    if run.name not in BUDGETS:
        return ""
    warm, cold = BUDGETS[run.name]
    is_cold = any(step.name == COLD for step in run.steps)
    limit = cold if is_cold else warm
    if run.length() <= limit:
        return ""
    kind = "an empty" if is_cold else "a warm"
    return (
        f"warning: {run.name} took {clock(run.length())} min, and its budget with {kind} cache is {clock(limit)} min:"
        " make the slowest jobs above faster, or move one to another tier"
    )


def time_with(jobs, number):
    """Returns the seconds between the first job's start and the last one's end in which this NUMBER of jobs ran."""
    events = sorted([(job.start, 1) for job in jobs] + [(job.end, -1) for job in jobs])
    found, running, before = 0.0, 0, None
    for moment, change in events:
        if before is not None and running == number:
            found += moment - before
        running, before = running + change, moment
    return found
