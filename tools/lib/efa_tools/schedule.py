# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs jobs in parallel, as far as cores and memory allow. Jobs on the critical path start first."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

# Cores that jobs may use beyond those that there are, by what was measured: else a pair of guests, which uses 1.4, runs alone on two.
SPARE = 0.5
# The part of the machine that others may have had in a run that tells how long jobs take.
QUIET = 0.15
# A job that mostly waits takes that of a core all the same, for when it does not.
LEAST = 0.4


@dataclass
class Job:
    """Something that takes long and returns a tally."""

    name: str
    run: Callable
    # What it took on two cores, where nothing better is known.
    seconds: float = 20
    # How many it keeps busy in the mean: a guest about one, whose emulated CPUs take turns; two guests, or a compiler, two.
    cores: float = 1
    # Gigabytes.
    memory: float = 1.5
    # The names of those that have to be over before, if they are done at all.
    after: tuple[str, ...] = ()
    # It has limits of time: only others of its kind run beside it.
    timed: bool = False


@dataclass
class Machine:
    """What there is for jobs."""

    cores: int
    memory: float

    @classmethod
    def here(cls):
        with open("/proc/meminfo") as file:
            known = dict(line.split(":") for line in file)
        return cls(len(os.sched_getaffinity(0)), int(known["MemAvailable"].split()[0]) / 1e6)

    def has_room(self, job, running):
        """Whether a job can be done beside those that are."""
        if not running:
            return True
        if self.memory < job.memory + sum(other.memory for other in running):
            return False
        return sum(max(other.cores, LEAST) for other in [job, *running]) <= self.cores + SPARE


def learn(jobs, runs):
    """Has jobs take as long, and of as many cores, as they did the last time that they had the machine for themselves."""
    last = {}
    for run in runs:
        if run["failed"] == 0 and run["others"] <= QUIET * run["cores"] * (run["end"] - run["start"]):
            last |= {step["name"]: step for step in run["steps"] if step["end"] > step["start"]}
    for job in jobs:
        if step := last.get(job.name):
            job.seconds = step["end"] - step["start"]
            if not job.timed:
                job.cores = step["cpu"] / job.seconds


def by_urgency(jobs):
    """The jobs in the order in which they are begun, as far as that is possible."""
    urgent = urgency(jobs)
    return sorted(jobs, key=lambda job: -urgent[job.name])


def urgency(jobs):
    """For each job, by name, the time until the last of its dependants has ended."""
    by_name = {job.name: job for job in jobs}
    later = {job.name: [other for other in jobs if job.name in other.after] for job in jobs}
    found = {}

    def of(job, above=()):
        if job.name in above:
            raise ValueError(f"{job.name} has to come after itself")
        if job.name not in found:
            found[job.name] = job.seconds + max((of(other, (*above, job.name)) for other in later[job.name]), default=0)
        return found[job.name]

    for job in by_name.values():
        of(job)
    return found


def run(jobs, machine, do):
    """Does each job by do(job), in a thread of its own; returns what that returned, in the order of JOBS."""
    places = {id(job): place for place, job in enumerate(jobs)}
    waiting = by_urgency(jobs)
    running, results, errors = [], [None] * len(jobs), []
    ended = threading.Condition()

    def work(job):
        try:
            results[places[id(job)]] = do(job)
        except BaseException as error:
            errors.append(error)
        finally:
            with ended:
                running.remove(job)
                ended.notify()

    with ended:
        while waiting or running:
            if job := next_of(waiting, running, machine):
                waiting.remove(job)
                running.append(job)
                threading.Thread(target=work, args=(job,)).start()
            else:
                ended.wait()
    if errors:
        raise errors[0]
    return results


def next_of(waiting, running, machine):
    """The job that is begun next, beside those that are RUNNING; nothing, if none can be."""
    return next((job for job in waiting if ready(job, waiting, running) and machine.has_room(job, running)), None)


def ready(job, waiting, running):
    """Whether the jobs that a job waits for have ended. A timed one waits for all untimed ones."""
    if job.timed and any(not other.timed for other in (*waiting, *running)):
        return False
    return not any(other.name in job.after for other in (*waiting, *running))
