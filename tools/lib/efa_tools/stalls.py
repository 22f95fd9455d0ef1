# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Stalls of the host. Guests that measure time read them, to subtract them from their own times."""

import contextlib
import threading
import time

# Seconds between two reads of the clock, and the additional delay of a wake-up that is no stall.
TICK, LATENESS = 0.005, 0.005
# The file has a fixed length, as guests may cache its length for a second.
DIGITS = 20


@contextlib.contextmanager
def recorded(file):
    """Within the block, a file has the total delay, in microseconds, of a thread that needs a processor every few milliseconds."""
    over = threading.Event()
    write(file, 0)
    thread = threading.Thread(target=watch, args=(file, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def watch(file, over):
    total, before = 0.0, time.monotonic()
    while not over.wait(TICK):
        after = time.monotonic()
        late = after - before - TICK
        if late > LATENESS:
            total += late
            write(file, total)
        before = after


def write(file, seconds):
    with open(file, "r+" if file.exists() else "w") as stream:
        stream.write(f"{seconds * 1e6:0{DIGITS}.0f}")
