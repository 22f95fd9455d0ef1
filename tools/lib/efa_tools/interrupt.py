# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Signals such as Ctrl-C: the program ends at once, with all processes that it has started."""

import atexit
import contextlib
import os
import signal
import sys
from pathlib import Path

from . import steps

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Seconds after which the main thread looks for signals.
LOOK = 1

# What is still done then.
_last = []


def watch():
    """Has this program say what was interrupted, and end."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: end(number))
    # Python runs handlers in the main thread. A signal that arrives just before that thread blocks does not end its call.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, LOOK, LOOK)
    # Python ends without its handlers, and SIGALRM would kill it then.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def last(action):
    """Meanwhile an interrupted program does this, too."""
    _last.append(action)
    try:
        yield
    finally:
        _last.remove(action)


def end(number):
    for other in SIGNALS:
        # The next one does not wait for anything.
        signal.signal(other, lambda number, _: os._exit(128 + number))
    try:
        # Not by print(), which may have been interrupted itself.
        os.write(sys.stderr.fileno(), f"{sentence(number)}\n".encode())
        for action in _last:
            action()
    finally:
        os._exit(128 + number)


def sentence(number):
    doing = f" during {', '.join(names)}" if (names := steps.under_way()) else ""
    name = signal.Signals(number).name
    return f"{Path(sys.argv[0]).name} was interrupted by {name}{doing}: complete results are kept, and the next run continues from there."
