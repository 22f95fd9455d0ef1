# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make check-long: the named suites, which take too long for check-all or measure time, one after the other."""

from . import steps, times
from .failure import Failure, sentence
from .tally import Tally

# Arguments of tools/check, each with results of its own. Quick suites come first, so that their failures show early.
SUITES = (
    "deny",
    "cargo-install",
    "canary",
    "upstream",
    "attack --seconds 60 --rounds 100",
    "fuzz",
    "schedules --seconds 600",
    "fuzz-driver",
    "wireshark",
    "abi-diff",
    "interop",
    "interop --driver c",
    "interop --userland next",
    "rdma-core-diff --userland next",
    "soak",
    "soak --driver c",
    "stress",
    "stress --driver c",
    "life --rounds 20",
    "life --driver c",
    "kverbs --rounds 50",
    "check-debug",
    "check-debug --driver c",
    "check-install",
    "check-arm64",
)


def run(do, rest=False):
    """Runs each suite by do(words); returns the tally of all. REST runs only those that have not passed on this commit."""
    total = Tally()
    for command in SUITES:
        if rest and passed_here(command):
            steps.note(f"{command}: has passed on this commit")
            continue
        steps.note(f"{command}:")
        try:
            tally = do(command.split())
        except (Failure, OSError) as failure:
            steps.note(f"{command}: {sentence(failure)}")
            tally = Tally()
            tally.fail(f"{command} could not run", said=sentence(failure))
        tally.failures = [f"{command}: {name}" for name in tally.failures]
        total += tally
    for name in total.failures:
        steps.note(f"failed: {name}")
    print(total, flush=True)
    return total


def passed_here(command):
    last = times.passes().get(command)
    return last is not None and times.head() == (last["head"], False)
