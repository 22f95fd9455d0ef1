# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make abi-diff: the same cases with the C and with the Rust driver, and whether they differ only where they may."""

import fnmatch
import json
import os
import re
import shlex
from dataclasses import dataclass

from . import arm64, build, cache, guest, steps, store, suite, toolroot
from .failure import Failure
from .tally import Tally

FOLDER = cache.CLONE / "tests" / "abi"
# Of the tables in differences.md.
COLUMNS = ("case", "c", "rust", "reason")
DRIVERS = ("c", "rust")
TIMEOUT = 1500
SHOWN = 20

# What the device of most cases can be. Without event queues, as with efa0, most cases with events would crash the C driver; that
# profile has cases of its own, as each has.
PROFILES = ("efa3", "efa4", "efa2", "efa1")

# The file of results that are kept.
RESULTS = "results.json"
# The beginning of a result that is wrong with either driver.
BROKEN = "BROKEN "


@dataclass
class Allowed:
    """A line of differences.md: what each driver has to give."""

    results: dict[str, str]
    reason: str


# The heading of a table for a page size, which overrides that for all kernels.
PAGES = re.compile(r"^## .*?(\d+) KiB$", re.MULTILINE)


def table(text, pages=4096):
    """The allowed differences by case for a page size, whose lines override those for all kernels."""
    everywhere, *others = PAGES.split(text)
    tables = {int(size) << 10: lines(part) for size, part in zip(others[::2], others[1::2], strict=True)}
    return lines(everywhere) | tables.get(pages, {})


def lines(text):
    """The lines of one table by case."""
    allowed = {}
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if cells[0] == COLUMNS[0] or set(cells[0]) == {"-"}:
            continue
        if len(cells) != len(COLUMNS) or not all(cells):
            raise Failure(f"{line}\ndifferences.md has the line above, which is not: | {' | '.join(COLUMNS)} |. Complete it.")
        case, c, rust, reason = cells
        if case in allowed:
            raise Failure(f"differences.md has two lines for `{case}`: remove one.")
        allowed[case] = Allowed({"c": c, "rust": rust}, reason)
    return allowed


def results(output, driver):
    """The results of a run by case; fails if it was cut short."""
    found = {}
    lines = output.splitlines()
    for line in lines:
        case, separator, result = line.partition(" | ")
        if separator:
            found[case] = result
    if not found or f"{len(found)} cases have run" not in lines:
        raise Failure(f"The cases ended early with the driver {driver}, after {len(found)} results: see the console of its guest.")
    return found


# Behind a case's name: the bytes of its commands.
BYTES = " (bytes)"


def compare(found, allowed):
    """The problems, one text each: what is not the same and is not allowed, and what is allowed and does not occur.

    The bytes of commands have to be the same where the rest of a case's results is.
    """
    for case in dict.fromkeys([*found["c"], *found["rust"], *allowed]):
        if case.endswith(BYTES) and case.removesuffix(BYTES) in allowed:
            continue
        got = {driver: found[driver].get(case, "no such case") for driver in DRIVERS}
        if any(BROKEN in result for result in got.values()):
            yield case, describe("it could not run", got)
        elif case in allowed and got != allowed[case].results:
            what = "another difference" if got["c"] != got["rust"] else "a difference that there is not"
            yield case, describe(f"differences.md allows {what}", got, allowed[case].results)
        elif case not in allowed and got["c"] != got["rust"]:
            yield case, describe("the drivers differ", got)


def describe(what, got, wanted=None):
    lines = [what]
    for driver in DRIVERS:
        lines.append(f"{driver + ':':6}{got[driver]}")
        if wanted and wanted[driver] != got[driver]:
            lines.append(f"      not {wanted[driver]}")
    return "\n        ".join(lines)


def devices(text, profile=PROFILES[0]):
    """The devices that a guest needs: a name and how the emulator takes it, one a line; the first is that of most cases."""
    first, *others = [line.split(maxsplit=1)[1] for line in text.splitlines() if line and not line.startswith("#")]
    return [re.sub(r"\bprofile=\w+", f"profile={profile}", first), *others]


def run(driver, flavour, profile, case=""):
    """Runs the cases with a driver, all or those that CASE names; returns the results."""
    specs = devices((FOLDER / "devices").read_text(), profile)
    command = f"/efa-rs/tests/abi/run.py {shlex.quote(case) if case else ''}"
    timeout = TIMEOUT * arm64.slowness(flavour)
    prepared = guest.prepare(guest.Options(command, driver, flavour, specs, timeout=timeout, quiet=True))
    with steps.step(f"ABI cases {driver} {flavour} {profile}", lambda: prepared.folder / "guest0.output.log"):
        status = guest.execute(prepared)
    log = prepared.folder / "guest0.output.log"
    output = log.read_text(errors="replace")
    if status:
        raise Failure(f"{steps.tail(log)}\nThe ABI cases ended with exit status {status} with driver {driver}: see above.")
    return results(output, driver)


# What the cases import of the selftests: the files that are not programs themselves.
LIBRARY = suite.KSELFTEST


def reference(flavour, profile, renew=False):
    """The results of the C driver, which are kept: they depend on the kernel, the module, the emulator and the cases alone.

    RENEW runs the cases again, and keeps what they give then. Results with a case that could not run are not kept.
    """
    release = toolroot.kernel(flavour)
    library = [file for file in LIBRARY.glob("*.py") if not os.access(file, os.X_OK)]
    sources = sorted([*FOLDER.glob("*.py"), *library, FOLDER / "devices", build.c_module(release), build.emulator()])
    path = cache.folder("abi") / cache.key(release, profile, *sources)
    if renew:
        cache.discard(path)

    def make(temporary):
        found = run("c", flavour, profile)
        temporary.mkdir()
        (temporary / RESULTS).write_text(json.dumps(found, indent=1))

    kept = cache.make(path, "the C driver's results", 0.01, make)
    store.discard_old(path.parent)
    found = json.loads((kept / RESULTS).read_text())
    if any(BROKEN in result for result in found.values()):
        cache.discard(path)
    return found


def run_on_debug_kernel():
    """Runs the cases with the Rust driver on the debug kernel; returns the results, and the tally of what that has found."""
    specs = devices((FOLDER / "devices").read_text())
    command = "/efa-rs/tests/debug/run.sh ../debug/abi.sh ../debug/kernel.py"
    tally, done = suite.in_debug_guest("ABI cases rust debug", command, devices=specs)
    file = done.shared / "out" / "abi"
    return results(file.read_text(errors="replace") if file.exists() else "", "rust"), tally


def judge(name, found, case="", pages=4096, but=()):
    """The tally of the results of both drivers, one for each case, or each that CASE names, BUT for some patterns, and that as a line."""
    for pattern in but:
        if not fnmatch.filter(found["c"], pattern):
            raise Failure(f"There is no case `{pattern}`, which is listed as one that is not compared: remove it from the list.")
    found = {driver: without(but, results) for driver, results in found.items()}
    allowed = without(but, table((FOLDER / "differences.md").read_text(), pages))
    if case:
        allowed = {name: what for name, what in allowed.items() if name.startswith(case) or fnmatch.fnmatchcase(name, case)}
    problems = dict(compare(found, allowed))
    for one, what in list(problems.items())[:SHOWN]:
        steps.note(f"{one}: {what}")
    if len(problems) > SHOWN:
        steps.note(f"and {len(problems) - SHOWN} more")
    cases = dict.fromkeys([*found["c"], *found["rust"]])
    tally = Tally()
    for one in cases:
        if one not in problems:
            tally.succeed(f"{name}: {one}")
    for one, what in problems.items():
        tally.fail(f"{name}: {one}", said=what)
    return tally, f"{len(cases)} cases, {len(allowed)} allowed differences, {len(problems)} others"


def diff(flavour, profile=PROFILES[0], case="", renew=False):
    """The differential test: its tally has one result for each case, and its text is one line. RENEW is that of reference()."""
    c = run("c", flavour, profile, case) if case else reference(flavour, profile, renew)
    found = {"c": c, "rust": run("rust", flavour, profile, case)}
    return judge(f"abi-diff {profile}", found, case, arm64.page_size(flavour))


def elsewhere():
    """Patterns of the cases that the debug kernel has otherwise than Debian's, whatever the driver does."""
    return [line for line in (FOLDER / "elsewhere.debug").read_text().splitlines() if line and not line.startswith("#")]


def without(patterns, by_case):
    """What there is by case, but for the cases of patterns."""
    return {
        case: what for case, what in by_case.items() if not any(fnmatch.fnmatchcase(case.removesuffix(BYTES), name) for name in patterns)
    }


def diff_on_debug_kernel(flavour):
    """The same of the Rust driver on the debug kernel and the C driver on one of Debian's."""
    rust, tally = run_on_debug_kernel()
    found = {"c": reference(flavour, PROFILES[0]), "rust": rust}
    judged, line = judge("abi-diff debug", found, but=elsewhere())
    tally += judged
    return tally, line
