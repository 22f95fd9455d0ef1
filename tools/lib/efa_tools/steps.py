# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Shows the steps that run and their durations, and keeps their output for the case of a failure."""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from . import cache, times
from .failure import Failure
from .processes import Process

TAIL = 30
# Seconds between the progress lines of a step.
HEARTBEAT = 20
# Limit on the characters of a log's line in a progress line.
SHOWN = 100
# Number of logs that are kept of processes that have ended: those of some runs of check-all.
KEPT = 300

_lock = threading.Lock()
# The names of the steps that run.
_under_way = []


def note(text):
    """Prints a line about the run itself; the output of the user's command is not mixed with these."""
    with _lock:
        print(f"==> {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(name, output=None):
    """Shows a step's start, progress and duration. Its value is the step's log file, for run().

    OUTPUT is a function that returns the file with the step's output, if that is not the log.
    """
    note(name)
    with open(log_file(name), "w", buffering=1, errors="replace") as log, times.measured(name) as span:
        _under_way.append(name)
        try:
            with heartbeat(name, span, output or (lambda: log.name)):
                yield log
        except BaseException:
            note(f"{name}: failed after {span.length():.1f} s")
            raise
        finally:
            _under_way.remove(name)
    note(f"{name}: {span.length():.1f} s")


@contextlib.contextmanager
def heartbeat(name, span, output):
    """Shows the duration of a running step and the last line of its output, at intervals."""
    over = threading.Event()

    def beat():
        while not over.wait(HEARTBEAT):
            line = last_line(output())
            note(f"{name}: {span.length():.0f} s so far{': ' if line else ''}{line}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# Escape sequences of a terminal for cursor and colours, and other invisible characters.
UNSEEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def last_line(path):
    """Returns the last non-empty line of a file, cut if it is long; an empty text if there is none yet."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [UNSEEN.sub("", line).strip() for line in re.split("[\r\n]", text)]
    # The line of a command does not show the step's progress.
    line = next((line for line in reversed(lines) if line and not line.startswith("$ ")), "")
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."


def under_way():
    """Returns the names of the steps that run."""
    return list(_under_way)


def log_file(name):
    """Returns this process's log file of a step: other processes may run the same step at the same time."""
    folder = cache.folder("logs")
    prune(folder)
    return folder / f"{name.replace(' ', '-').replace('/', '-')}.{cache.key(str(cache.CLONE))}.{os.getpid()}.log"


@functools.cache
def prune(folder):
    """Removes all logs but the newest, and those of processes that still run."""
    ended = [file for file in folder.glob("*.log") if not Path("/proc", file.stem.rpartition(".")[2]).exists()]
    for file in sorted(ended, key=changed)[:-KEPT]:
        file.unlink(missing_ok=True)


def changed(file):
    """Returns the time of a file's last change; 0 if another process has just removed it."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0


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
    """Runs a command with its output in a step's log. If it fails, the Failure has the log's end."""
    log.write(f"$ {' '.join(map(str, command))}\n")
    begin = log.tell()
    status = call(command, stdout=log, stderr=subprocess.STDOUT, **options)
    if not status:
        return
    with open(log.name, errors="replace") as file:
        file.seek(begin)
        said = file.read()
    if (full := FULL.search(said)) or is_full(log.name):
        line = full[0].strip() if full else f"{log.name} is on a disk that is full"
        raise Failure(
            f"{what} failed, as there is no space left on a disk. Free some, or set XDG_CACHE_HOME to a folder on a larger one if it is"
            f" that of {cache.folder()}. Then run this again. The log is {log.name}.\n    {line}"
        )
    if others := OTHER_PACKAGES.search(said):
        raise Failure(
            f"{what} failed, as the versions of packages in Debian's mirror differ from those of the toolroot in {cache.folder()}. Remove"
            f" the toolroot (tools/build distclean) and run this again, which makes a new one. The log is {log.name}."
            f"\n    {others[0].strip()}"
        )
    if missing := unfetched(said):
        whom, line = missing
        raise Failure(f"{what} failed, as {whom} did not deliver a file. Run this again once it does. The log is {log.name}.\n    {line}")
    raise Failure(f"{tail(log.name)}\n{what} failed ({ending(status)}). The end of its log is above, the rest is in {log.name}.")


# Free bytes below which a disk is full, and messages of programs about a full disk.
FULL_BYTES = 1 << 20
FULL = re.compile(r"^.*(?:No space left on device|Disk quota exceeded|os error 28\b).*", re.MULTILINE)


def is_full(path):
    """Whether a file's disk is full, so that even messages of programs may be missing."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize < FULL_BYTES


# Errors of apt if the archive does not have the versions any more that the toolroot was made from.
OTHER_PACKAGES = re.compile(r"^E: (?:Version '.*' for '.*' was not found|Unable to correct problems, you have held broken).*", re.MULTILINE)
# Messages of apt and cargo about files that could not be fetched, each with its source.
UNFETCHED = (
    (
        "Debian's mirror",
        r"^(?:E|Err:\d+|W): .*(?:Failed to fetch|Unable to fetch|Some index files failed|Hash Sum mismatch|Could not resolve).*",
    ),
    (
        "Debian's mirror",
        r"^.*(?:Temporary failure resolving|Unable to connect to|Could not connect to|404  Not Found|Connection timed out).*",
    ),
    (
        "the Python package index",
        r"^ERROR: (?:Could not find a version|No matching distribution|Could not install packages due to an OSError: HTTP).*",
    ),
    ("the crates' registry", r"^(?:error|warning): (?:failed to (?:download|fetch|get)|spurious network error).*"),
)


def unfetched(text):
    """The source that did not deliver a file, and the line about it, if the output has one."""
    for whom, pattern in UNFETCHED:
        if found := re.search(pattern, text, re.MULTILINE):
            return whom, found[0].strip()
    return None


# Number that a shell or unshare adds to the signal that ended a program, for its own exit status.
BY_SIGNAL = 128


def ending(status):
    """An exit status or, if it is negative, a signal, in words."""
    if status >= 0:
        of = f", as of one that was {ending(BY_SIGNAL - status)}" if status > BY_SIGNAL else ""
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
