# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Processes with a known CPU time, which includes that of their descendants."""

import os
import subprocess
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Process(subprocess.Popen):
    """A process whose CPU time is known once it has ended: `cpu`, in seconds."""

    def __init__(self, *arguments, **options):
        self.cpu = 0.0
        super().__init__(*arguments, **options)

    def look(self, how=0):
        """Whether the process has ended. Records its CPU time before the process is reaped."""
        if self.returncode is None:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | how)
            except ChildProcessError:
                return True
            if not ended:
                return False
            self.cpu = max(self.cpu, used(self.pid))
        return True

    def poll(self):
        # A process that ends just now is reaped the next time.
        return super().poll() if self.look(os.WNOHANG) else None

    def wait(self, timeout=None):
        if timeout is None:
            self.look()
            return super().wait()
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return self.returncode

    def kill(self):
        """Kills the process, and records the CPU time of its tree first: that of its children is lost once another process reaps them."""
        if self.poll() is None:
            self.cpu = max(self.cpu, used_by_tree(self.pid))
        super().kill()


def used(pid):
    """Seconds of CPU time that a process took, and those of its children that it has waited for; 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # The program's name, in parentheses, can have spaces.
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def used_by_all():
    """Seconds of CPU time that all of the machine's processes and its kernel took since its start."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _waiting, *interrupts = map(int, file.readline().split()[1:9])
    return (user + nice + system + sum(interrupts)) / TICKS


def children(pid):
    """The processes that a process has started and not waited for."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, file.read_text().split())
        except OSError:
            continue
    return found


def name_of(pid):
    """The name of a process's program; "?" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def tree(pid):
    """A process and its descendants."""
    return [pid, *(other for child in children(pid) for other in tree(child))]


def used_by_tree(pid):
    """Returns the seconds of CPU time of a process and its descendants that still run."""
    return sum(map(used, tree(pid)))
