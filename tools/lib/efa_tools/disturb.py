# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make disturb: kills processes of runs at random, and runs guests on a busy host. Checks for leftovers and lost devices."""

import contextlib
import ctypes
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from . import namespace, steps
from .patience import PATIENCE
from .processes import children, name_of, tree
from .tally import Tally
from .verdict import check

VM = namespace.TOOLS / "vm"
USE = "/efa-rs/tests/disturb/use.sh"
USED = "the device was used"
# Seconds within which a run has to end after a kill, and its other processes after that.
END_LIMIT, STRAY_LIMIT = 3 * PATIENCE, PATIENCE
# Seconds that a run may take on a busy host.
BUSY_LIMIT = 3600
# prctl(2): orphaned descendants become children of this process, by which it finds them.
PR_SET_CHILD_SUBREAPER = 36
FOLDER = re.compile(r"logs in (\S+)")


class Run:
    """A run of tools/vm, with its output and the sockets that it leaves."""

    def __init__(self, guests=1, timeout=1800):
        command = [str(VM), "--device", "strict=guesses,profile=efa3", "--guests", str(guests), "--timeout", str(timeout), USE]
        self.output = tempfile.TemporaryFile("w+")
        self.start = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT)

    def seconds(self):
        return time.monotonic() - self.start

    def said(self):
        """Returns its output so far."""
        self.output.seek(0)
        return self.output.read()

    def wait(self, seconds):
        """Returns its exit status; None if it did not end in time, in which case it is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        self.process.kill()
        self.process.wait()
        return None

    def sockets(self):
        """The sockets in its folder."""
        folder = FOLDER.search(self.said())
        return [path for path in Path(folder[1]).glob("**/*") if path.is_socket()] if folder else []


def adopt_orphans():
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def strays():
    """Waits for adopted orphans to end; returns those that still run after STRAY_LIMIT."""
    end = time.monotonic() + STRAY_LIMIT
    while True:
        for pid in children(os.getpid()):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        left = [pid for child in children(os.getpid()) for pid in tree(child)]
        if not left or time.monotonic() > end:
            return [f"{name_of(pid)} ({pid}) is left" for pid in left]
        time.sleep(0.05)


def kill_one(number, length, chance):
    """Kills a process of a run at a random time within its LENGTH in seconds; returns the check of the outcome, and the run."""
    run = Run(guests=1 + number % 2)
    time.sleep(chance.uniform(0, length))
    parts = tree(run.process.pid)
    victim = chance.choice(parts)
    name, when = name_of(victim), run.seconds()
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    status, said = run.wait(END_LIMIT), run.said()
    itself = victim == run.process.pid
    problems = strays()
    if status is None:
        problems.append(f"it did not end within {END_LIMIT} s")
    if not itself:
        # The run removes its sockets, unless it was killed itself. The next run removes them then.
        problems += [f"the socket {path} is left" for path in run.sockets()]
    if "Traceback" in said:
        problems.append("its output has a traceback")
    if status == 0 and USED not in said:
        problems.append("it passed although a process was killed")
    what = f"kill {number}: {name}{' itself' * itself}, after {when:.1f} s of {length:.0f} s"
    return check(what, problems + ([said] if problems else [])), run


def kills(count, seed=None):
    """Kills a process in each of COUNT runs. Each run has to end, to report it, and to leave nothing."""
    adopt_orphans()
    seed = random.randrange(1 << 32) if seed is None else seed
    steps.note(f"kills: the seed is {seed}")
    chance, total, runs = random.Random(seed), Tally(), []
    with steps.step("kills"):
        whole = Run(guests=2)
        status = whole.wait(BUSY_LIMIT)
        total += check("an undisturbed run", [] if status == 0 else [whole.said()])
        length = whole.seconds()
        for number in range(count):
            tally, run = kill_one(number, length, chance)
            total += tally
            runs.append(run)
            steps.note(f"{tally.cases[0].name}: {tally}")
        last = Run()
        status = last.wait(BUSY_LIMIT)
        total += check("a run after all of them", [] if status == 0 else [last.said()])
        left = [path for run in runs for path in run.sockets()]
        total += check("no socket is left after it", [str(path) for path in left])
    return total


def busy(count, load):
    """Makes COUNT runs on a busy host with LOAD other processes. Each has to end, with a device that works."""
    namespace.require("stress-ng", "stress-ng")
    total = Tally()
    # The load ends by itself if this process is killed.
    command = ["stress-ng", "--quiet", "--cpu", str(load), "--timeout", str(count * (BUSY_LIMIT + END_LIMIT))]
    with steps.step("runs on a busy host"), subprocess.Popen(command, stdin=subprocess.DEVNULL) as others:
        try:
            for number in range(1, count + 1):
                run = Run(timeout=BUSY_LIMIT)
                status, said = run.wait(BUSY_LIMIT + END_LIMIT), run.said()
                again = said.count("Booting again")
                what = f"run {number} of {count} under load {load}"
                total += check(what, [] if status == 0 and USED in said else [f"exit status {status}", said])
                steps.note(f"{what}: {run.seconds():.0f} s, load {os.getloadavg()[0]:.0f}{f', {again} boots again' * bool(again)}")
        finally:
            others.terminate()
    return total
