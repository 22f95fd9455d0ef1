# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs jobs in parallel, as far as cores and memory allow. Jobs on the critical path start first."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

# Cores that jobs may use beyond the existing ones, by measured use. Otherwise a pair of guests, which uses 1.4, runs alone on two.
SPARE = 0.5
# Limit on the share of CPU time of other processes, for a run whose job times are used.
QUIET = 0.15
# Minimum share of a core for a job that mostly waits, for the time when it does not.
LEAST = 0.4


@dataclass
class Job:
    """A long-running task that returns a tally."""

    name: str
    run: Callable
    # Its duration on two cores, used until a duration is measured.
    seconds: float = 20
    # Mean number of busy cores: about one for a guest, whose emulated CPUs take turns; two for two guests, or for a compiler.
    cores: float = 1
    # Gigabytes.
    memory: float = 1.5
    # Names of jobs that have to end before this one begins, if the run has them.
    after: tuple[str, ...] = ()
    # Whether it has limits of time. Only jobs of this kind run beside it.
    timed: bool = False


@dataclass
class Machine:
    """The resources for jobs: cores, and gigabytes of memory."""

    cores: int
    memory: float

    @classmethod
    def here(cls):
        with open("/proc/meminfo") as file:
            known = dict(line.split(":") for line in file)
        return cls(len(os.sched_getaffinity(0)), int(known["MemAvailable"].split()[0]) / 1e6)

    def has_room(self, job, running):
        """Whether a job fits beside those that are RUNNING."""
        if not running:
            return True
        if self.memory < job.memory + sum(other.memory for other in running):
            return False
        return sum(max(other.cores, LEAST) for other in [job, *running]) <= self.cores + SPARE


def learn(jobs, runs):
    """Sets the duration and the cores of jobs to those of the last passed run on an otherwise idle machine."""
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
    """Runs do(job) for each job in a thread of its own; returns the results in the order of JOBS."""
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
    """Returns the next job that can begin beside those that are RUNNING; None if no job can."""
    return next((job for job in waiting if ready(job, waiting, running) and machine.has_room(job, running)), None)


def ready(job, waiting, running):
    """Whether the jobs that a job waits for have ended. A timed one waits for all untimed ones."""
    if job.timed and any(not other.timed for other in (*waiting, *running)):
        return False
    return not any(other.name in job.after for other in (*waiting, *running))
