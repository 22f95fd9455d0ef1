# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Shows what is being done and for how long, and keeps what it printed for when it fails."""

import contextlib
import re
import signal
import subprocess
import sys
import threading

from . import cache, times
from .failure import Failure
from .processes import Process

TAIL = 30

_lock = threading.Lock()


def note(text):
    """Prints a line about the run itself; the output of the user's command is not mixed with these."""
    with _lock:
        print(f"==> {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(name):
    """Shows a step's start and duration. Its value is the step's log file, for run()."""
    path = cache.folder("logs") / f"{name.replace(' ', '-').replace('/', '-')}.{cache.key(str(cache.CLONE))}.log"
    note(name)
    with open(path, "w", buffering=1, errors="replace") as log, times.measured(name) as span:
        try:
            yield log
        except BaseException:
            note(f"{name}: failed after {span.length():.1f} s")
            raise
    note(f"{name}: {span.length():.1f} s")


def call(command, **options):
    """Runs a command to its end; returns its exit status. Its CPU time is the step's."""
    with Process(command, stdin=subprocess.DEVNULL, **options) as process:
        try:
            return process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            times.spent(process.cpu)


def run(command, log, what, **options):
    """Runs a command into a step's log; if it fails, shows the log's end."""
    log.write(f"$ {' '.join(map(str, command))}\n")
    begin = log.tell()
    status = call(command, stdout=log, stderr=subprocess.STDOUT, **options)
    if not status:
        return
    with open(log.name, errors="replace") as file:
        file.seek(begin)
        said = unfetched(file.read())
    if said:
        whom, line = said
        raise Failure(
            f"{what} failed, as {whom} did not give what it was asked for: run this again once it does; all of it is in {log.name}."
            f"\n    {line}"
        )
    raise Failure(f"{tail(log.name)}\n{what} failed ({ending(status)}): see above, all of it is in {log.name}.")


# What apt and cargo say if something could not be fetched, each with whom they asked.
UNFETCHED = (
    (
        "Debian's mirror",
        r"^(?:E|Err:\d+|W): .*(?:Failed to fetch|Unable to fetch|Some index files failed|Hash Sum mismatch|Could not resolve).*",
    ),
    (
        "Debian's mirror",
        r"^.*(?:Temporary failure resolving|Unable to connect to|Could not connect to|404  Not Found|Connection timed out).*",
    ),
    ("the crates' registry", r"^(?:error|warning): (?:failed to (?:download|fetch|get)|spurious network error).*"),
)


def unfetched(text):
    """Who did not give something that a command asked for, and the line that says so, if that is in what it printed."""
    for whom, pattern in UNFETCHED:
        if found := re.search(pattern, text, re.MULTILINE):
            return whom, found[0].strip()
    return None


def ending(status):
    """An exit status or, if it is negative, a signal, in words."""
    if status >= 0:
        # What a shell, or what made a namespace, makes of the end of a program in it.
        of = f", as of one that was {ending(128 - status)}" if status > 128 else ""
        return f"exit status {status}{of}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def tail(path):
    """The last lines of a log, indented."""
    with open(path, errors="replace") as log:
        lines = log.read().splitlines()[-TAIL:]
    return "\n".join(f"    {line}" for line in lines)
