# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Child processes of a test: they never continue with the tests of their parent."""

import collections
import os
import signal

from selftest import forked

# Those that have not been waited for.
children = set()


def fork(work):
    """Calls a function in a child process; returns its id."""
    process = forked(work)
    children.add(process)
    return process


def ends(processes):
    """Waits for processes; returns how they ended, with the number of each end."""
    counts = collections.Counter()
    for process in processes:
        status = os.waitpid(process, 0)[1]
        children.discard(process)
        counts[signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit-{os.WEXITSTATUS(status)}"] += 1
    return ", ".join(f"{count} {end}" for end, count in sorted(counts.items()))
