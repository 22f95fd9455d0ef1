# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Documentation/last-passed.md: the commit on which each suite passed last. RECORD=1 has a suite that passes write its row."""

import os
import time

from . import cache, steps, times

HEAD = """# What passed last on which commit

`RECORD=1` has a suite write its row here, such as `make check-all RECORD=1`. A row means that the suite came to its end, that nothing \
failed,
and that the commit had no changes. [Testing](testing.md) says what each suite is.

| `tools/check` | commit | date (UTC) | passed | skipped | minutes |
|---|---|---|---:|---:|---:|
"""


def wanted():
    return bool(os.environ.get("RECORD"))


def write(file, page=None):
    """Puts the row of a run into the page, if the run passed. FILE is the run's, as times.save() returns it."""
    page = page or cache.CLONE / times.PAGE
    run = times.read(file)
    if not run["command"] or not times.has_passed(run):
        steps.note(f"{page.name} is unchanged: a row needs a run without failures on a commit without changes")
        return
    rows = rows_of(page.read_text()) if page.exists() else {}
    rows[run["command"]] = row(run)
    page.write_text(HEAD + "".join(f"{rows[command]}\n" for command in sorted(rows)))
    steps.note(f"{page.name} has the row of {run['command']} now")


def rows_of(text):
    """The rows of a page by their command."""
    return {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `") and "`tools/check`" not in line}


def row(run):
    when = time.strftime("%Y-%m-%d", time.gmtime(run["end"]))
    minutes = (run["end"] - run["start"]) / 60
    return f"| `{run['command']}` | `{run['head'][:12]}` | {when} | {run['passed']:,} | {run['skipped']:,} | {minutes:.0f} |"
