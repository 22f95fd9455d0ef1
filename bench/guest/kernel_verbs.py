#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Makes a kernel client post and poll in a guest, where count.rs counts the instructions of each call.

Arguments: a folder for the names of the samples and the kernel's symbols, and the client's module.
"""

import errno
import os
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import marks

SAMPLES, FIRST = 9, 2
PARAMETER = "/sys/module/bench_client/parameters/round"

# Sample names, and the client's round for each: the marked call, the kind of messages, and their number.
CALLS = {
    "post_send": "post_send send 1",
    "post_send inline": "post_send inline 1",
    "post_send RDMA write": "post_send write 1",
    "post_send registration": "register region 1",
    "post_send invalidation": "invalidate region 1",
    "post_send of 16": "post_send send 16",
    "post_recv": "post_recv send 1",
    "post_recv of 16": "post_recv send 16",
    "poll_cq a send": "poll_send send 1",
    "poll_cq a receive": "poll_recv send 1",
    "poll_cq 16 sends": "poll_send send 16",
    "poll_cq 16 receives": "poll_recv send 16",
    "poll_cq nothing": "poll_empty send 1",
}


def sample(name, text):
    """Runs a round of the client; returns whether the marked call found all expected completions."""
    try:
        Path(PARAMETER).write_text(text)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        marks.drop_sample()
        return False
    marks.end_sample(name)
    return True


def main():
    folder, module = sys.argv[1:]
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    marks.begin()
    subprocess.run(["insmod", module], check=True)
    for name, text in CALLS.items():
        for _ in range(FIRST):
            sample(name, text)
        wanted = SAMPLES
        while wanted:
            wanted -= sample(name, text)
    marks.finish(Path(folder))


main()
