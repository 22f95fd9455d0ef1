# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make abi-diff: runs the same cases with the C and the Rust driver, and checks that they differ only where allowed."""

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
# Columns of the tables in differences.md.
COLUMNS = ("case", "c", "rust", "reason")
DRIVERS = ("c", "rust")
TIMEOUT = 1500
SHOWN = 20

# Profiles of the device of most cases. efa0 is not among them: without event queues, most cases with events would crash the C driver.
# It has cases of its own, as each profile has.
PROFILES = ("efa3", "efa4", "efa2", "efa1")

# File name of cached results.
RESULTS = "results.json"
# Prefix of the result of a case that could not run, which is an error with either driver.
BROKEN = "BROKEN "


@dataclass
class Allowed:
    """A row of differences.md: the required result of each driver."""

    results: dict[str, str]
    reason: str


# Heading of the table for a page size, whose rows override those for all kernels.
PAGES = re.compile(r"^## .*?(\d+) KiB$", re.MULTILINE)


def table(text, pages=4096):
    """Returns the allowed differences by case. Rows for the page size override those for all kernels."""
    everywhere, *others = PAGES.split(text)
    tables = {int(size) << 10: lines(part) for size, part in zip(others[::2], others[1::2], strict=True)}
    return lines(everywhere) | tables.get(pages, {})


def lines(text):
    """Parses the rows of one table, by case."""
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
    """Parses the results of a run, by case. Fails if the run ended early."""
    found = {}
    lines = output.splitlines()
    for line in lines:
        case, separator, result = line.partition(" | ")
        if separator:
            found[case] = result
    if not found or f"{len(found)} cases have run" not in lines:
        raise Failure(f"The cases ended early with the driver {driver}, after {len(found)} results: see the console of its guest.")
    return found


# Suffix of a case's name, for the bytes of its commands.
BYTES = " (bytes)"


def compare(found, allowed):
    """Yields the problems: differences that are not allowed, and allowed differences that do not occur.

    The bytes of a case's commands have to be equal unless the case has an allowed difference.
    """
    for case in dict.fromkeys([*found["c"], *found["rust"], *allowed]):
        if case.endswith(BYTES) and case.removesuffix(BYTES) in allowed:
            continue
        got = {driver: found[driver].get(case, "no such case") for driver in DRIVERS}
        if any(BROKEN in result for result in got.values()):
            yield case, describe("it could not run", got)
        elif case in allowed and got != allowed[case].results:
            what = "another difference" if got["c"] != got["rust"] else "a difference that does not occur"
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
    """Returns the emulator's options for a guest's devices. Each line of TEXT has a name and an option. Most cases use the first."""
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


# Folder of the selftests. The cases import its files that are not programs.
LIBRARY = suite.KSELFTEST


def reference(flavour, profile, renew=False):
    """Returns the results of the C driver, which are cached: they depend only on the kernel, the module, the emulator and the cases.

    RENEW runs the cases again and replaces the cached results. Results with a case that could not run are not cached.
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
    store.keep(kept)
    found = json.loads((kept / RESULTS).read_text())
    if any(BROKEN in result for result in found.values()):
        cache.discard(path)
    return found


def run_on_debug_kernel():
    """Runs the cases with the Rust driver on the debug kernel; returns the results, and the tally of that kernel's checks."""
    specs = devices((FOLDER / "devices").read_text())
    command = "/efa-rs/tests/debug/run.sh ../debug/abi.sh ../debug/kernel.py"
    tally, done = suite.in_debug_guest("ABI cases rust debug", command, devices=specs)
    file = done.shared / "out" / "abi"
    return results(file.read_text(errors="replace") if file.exists() else "", "rust"), tally


def judge(name, found, case="", pages=4096, but=()):
    """Compares both drivers' results of all cases, or of CASE, except patterns BUT. Returns a tally by case, and a summary line."""
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
    """Runs the differential test. Returns a tally with one result for each case, and a summary line. For RENEW see reference()."""
    c = run("c", flavour, profile, case) if case else reference(flavour, profile, renew)
    found = {"c": c, "rust": run("rust", flavour, profile, case)}
    return judge(f"abi-diff {profile}", found, case, arm64.page_size(flavour))


def elsewhere():
    """Returns patterns of the cases whose results differ between the debug kernel and Debian's with any driver."""
    return [line for line in (FOLDER / "elsewhere.debug").read_text().splitlines() if line and not line.startswith("#")]


def without(patterns, by_case):
    """Returns the entries of BY_CASE except for cases that match a pattern."""
    return {
        case: what for case, what in by_case.items() if not any(fnmatch.fnmatchcase(case.removesuffix(BYTES), name) for name in patterns)
    }


def diff_on_debug_kernel(flavour):
    """Like diff(), with the Rust driver on the debug kernel and the C driver on one of Debian's."""
    rust, tally = run_on_debug_kernel()
    found = {"c": reference(flavour, PROFILES[0]), "rust": rust}
    judged, line = judge("abi-diff debug", found, but=elsewhere())
    tally += judged
    return tally, line
