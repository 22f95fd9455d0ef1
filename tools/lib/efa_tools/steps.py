# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Shows what is being done and for how long, and keeps what it printed for when it fails."""

import contextlib
import subprocess
import sys
import threading
import time

from . import cache
from .failure import Failure

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
    start = time.monotonic()
    note(name)
    with open(path, "w", buffering=1, errors="replace") as log:
        try:
            yield log
        except BaseException:
            note(f"{name}: failed after {time.monotonic() - start:.1f} s")
            raise
    note(f"{name}: {time.monotonic() - start:.1f} s")


def run(command, log, what, **options):
    """Runs a command into a step's log; if it fails, shows the log's end."""
    log.write(f"$ {' '.join(map(str, command))}\n")
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, **options)
    if result.returncode:
        raise Failure(f"{tail(log.name)}\n{what} failed (exit status {result.returncode}): see above, all of it is in {log.name}.")


def tail(path):
    """The last lines of a log, indented."""
    with open(path, errors="replace") as log:
        lines = log.read().splitlines()[-TAIL:]
    return "\n".join(f"    {line}" for line in lines)
