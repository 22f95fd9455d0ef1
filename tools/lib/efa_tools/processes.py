# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Processes of which is known what CPU time they took: they, what they started, and what that did."""

import os
import subprocess
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Process(subprocess.Popen):
    """One whose CPU time is known once it has ended: `cpu`, in seconds."""

    def __init__(self, *arguments, **options):
        self.cpu = 0.0
        super().__init__(*arguments, **options)

    def look(self, how=0):
        """Whether the process has ended. While it can still be asked for its CPU time, notes that."""
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
        # One that ends just now is asked the next time.
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
        """As of any process. The usage of its children is lost once they were reaped by another."""
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


def tree(pid):
    """A process and its descendants."""
    return [pid, *(other for child in children(pid) for other in tree(child))]


def used_by_tree(pid):
    """The same with all of its children, which still run."""
    return sum(map(used, tree(pid)))
