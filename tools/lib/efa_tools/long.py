# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make check-long: all that takes too long for check-all, one after the other; and a page that says what has passed last on which head."""

import time

from . import cache, steps, times
from .failure import Failure, sentence
from .tally import Tally

# As words of tools/check: each has results of its own. What is quick and fails soon comes first.
SUITES = (
    "deny",
    "cargo-install",
    "canary",
    "attack --seconds 60 --rounds 100",
    "fuzz",
    "wireshark",
    "abi-diff",
    "interop",
    "interop --driver c",
    "interop --userland next",
    "rdma-core-diff --userland next",
    "disturb",
    "soak",
    "soak --driver c",
    "stress",
    "stress --driver c",
    "life --rounds 20",
    "life --driver c --rounds 20",
    "kverbs --rounds 50",
    "check-debug",
    "check-debug --driver c",
    "check-install",
    "check-arm64",
)
# What the page has.
SHOWN = ("check", "check-all", *SUITES)

HEAD = """# What passed last on which commit

`make passed` writes this page, and `make check-long` does at its end, of the results that are kept on the machine that it is run on: nothing
here is written by hand. A run counts if it came to its end, nothing failed, and the commit was as it is. Which suites there are is said in
[testing](testing.md).

| `tools/check` | commit | on (UTC) | passed | skipped | minutes |
|---|---|---|---:|---:|---:|
"""


def run(do, rest=False):
    """Has each suite done by do(words); returns the tally of all. REST: only those that have not passed on this head."""
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
    write()
    for name in total.failures:
        steps.note(f"failed: {name}")
    print(total, flush=True)
    return total


def passed_here(command):
    last = times.passes().get(command)
    return last is not None and times.head() == (last["head"], False)


def page():
    """The page as Markdown."""
    passes = times.passes()
    return HEAD + "".join(row(command, passes.get(command)) for command in SHOWN)


def row(command, run):
    if run is None:
        return f"| `{command}` | none that is known here | | | | |\n"
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(run["end"]))
    cells = f"`{run['head'][:12]}` | {when} | {run['passed']:,} | {run['skipped']:,} | {(run['end'] - run['start']) / 60:.0f}"
    return f"| `{command}` | {cells} |\n"


def write(file=cache.CLONE / times.PAGE):
    file.write_text(page())
