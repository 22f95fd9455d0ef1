# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Signals such as Ctrl-C: the program ends at once, with all processes that it has started."""

import atexit
import contextlib
import os
import signal
import sys
from pathlib import Path

from . import steps
from .processes import children, name_of, tree

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Seconds after which the main thread looks for signals.
LOOK = 1

# Actions before the end of an interrupted program.
_last = []


def watch():
    """Installs handlers by which a signal ends this program with a message."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: end(number))
    # Python runs handlers in the main thread. A signal just before that thread blocks does not end its call, but the next timer does.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, LOOK, LOOK)
    # Python removes its handlers before it exits, and SIGALRM would kill it then.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def last(action):
    """Runs ACTION if the program is interrupted within the block."""
    _last.append(action)
    try:
        yield
    finally:
        _last.remove(action)


def end(number):
    for other in SIGNALS:
        # A second signal ends the program at once.
        signal.signal(other, lambda number, _: leave(number))
    try:
        # print() is not safe here, as the signal may have interrupted it.
        os.write(sys.stderr.fileno(), f"{sentence(number)}\n".encode())
        for action in _last:
            action()
    finally:
        leave(number)


def leave(number):
    """Ends this program and its descendants."""
    try:
        # An installation on the host ends by itself, as packages would otherwise remain half installed.
        descendants = [pid for child in children(os.getpid()) if name_of(child) != "apt-get" for pid in tree(child)]
        for pid in descendants:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    finally:
        os._exit(128 + number)


def sentence(number):
    doing = f" during {', '.join(names)}" if (names := steps.under_way()) else ""
    name = signal.Signals(number).name
    return f"{Path(sys.argv[0]).name} was interrupted by {name}{doing}: complete results are kept, and the next run continues from there."
