# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Documentation/last-passed.md: the commit on which each suite passed last. RECORD=1 has a suite that passes write its row."""

import os
import time

from . import cache, steps, times


def wanted():
    return bool(os.environ.get("RECORD"))


def write(file, page=None):
    """Puts the row of a run into the page, if the run passed. FILE is the run's, as times.save() returns it."""
    page = page or cache.CLONE / times.PAGE
    run = times.read(file)
    if not run["command"] or not times.has_passed(run):
        steps.note(f"{page.name} is unchanged: a row needs a run without failures on a commit without changes")
        return
    text = page.read_text()
    rows = {**rows_of(text), run["command"]: row(run)}
    head = [line for line in text.splitlines() if line not in rows_of(text).values()]
    page.write_text("".join(f"{line}\n" for line in [*head, *(rows[command] for command in sorted(rows))]))
    steps.note(f"{page.name} has the row of {run['command']} now")


def rows_of(text):
    """The rows of a page by their command."""
    return {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `") and "`tools/check`" not in line}


def row(run):
    when = time.strftime("%Y-%m-%d", time.gmtime(run["end"]))
    minutes = (run["end"] - run["start"]) / 60
    return f"| `{run['command']}` | `{run['head'][:12]}` | {when} | {run['passed']:,} | {run['skipped']:,} | {minutes:.0f} |"
