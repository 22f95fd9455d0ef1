# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make host-diff: compares the results of sequences of verbs and faults with the driver in a guest and as a program (host/)."""

import os

from . import build, lives, steps, suite


def run(count, flavour):
    """Records COUNT sequences, for seeds from EFA_SEED on, and replays them in a guest. Returns a tally with a result for each."""
    first = int(os.environ.get("EFA_SEED") or 0)
    folder = lives.empty("sequences")
    with steps.step(f"{count} sequences from EFA_SEED={first} on with the driver as a program") as log:
        with build.cargo_lock("host"):
            build.host(log, "Building the driver as a program", "build", "--release", "-p", "driver", "--bin", "sequences")
        program = lives.inside("target/release/sequences")
        lives.in_toolroot(log, "Recording", ["sh", "-c", f"{program} {first} {count} >{lives.inside('sequences/all')}"])
    name = f"host-diff {flavour}"
    tally, _ = suite.in_guest(
        name, "/efa-rs/tests/host-diff/play.py /share/all", "rust", flavour, progress=True, share=folder, timeout=7200
    )
    return tally
