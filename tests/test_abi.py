# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The uverbs interface of both drivers: the same cases, whose results differ only where tests/abi/differences.md allows it.

The C driver's results are in tests/abi/c.xz, for the kernel, emulator and cases with the key in there. For others, the cases run with the
C driver, too. check-all always runs them. `EFA_RECORD=1 make check ONLY=efa3` writes the file anew, as abi-c.xz in the cache.
"""

import fnmatch
import hashlib
import json
import lzma
import os
import re
import shlex

import pytest
from conftest import CLONE
from guests import CACHE, Guests, lines_of, release, result

ABI = CLONE / "tests/abi"
RECORD = ABI / "c.xz"
MINUTES = 3
COMBINATIONS = {"check": ["rust cloud-amd64"], "named": ["rust debug", "rust amd64"]}
NEEDS = ["c-cloud-amd64", "kernel-cloud-amd64", "emulator"]
# Profiles of the device of most cases. efa0 has cases of its own: without event queues, most cases with events would crash the C driver.
PROFILES = ("efa3", "efa4", "efa2", "efa1")
COLUMNS = ("case", "c", "rust", "reason")
# Heading of the table for a page size, whose rows override those for all kernels.
PAGES = re.compile(r"^## .*?(\d+) KiB$", re.MULTILINE)
# Suffix of a case's name, for the bytes of its commands; prefix of the result of a case that could not run.
BYTES, BROKEN = " (bytes)", "BROKEN "


def table(text, pages=4096):
    """Returns the allowed differences: the required result of each driver by case."""
    everywhere, *others = PAGES.split(text)
    tables = {int(size) << 10: rows(part) for size, part in zip(others[::2], others[1::2], strict=True)}
    return rows(everywhere) | tables.get(pages, {})


def rows(text):
    allowed = {}
    for line in text.splitlines():
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if not line.startswith("|") or cells[0] == COLUMNS[0] or set(cells[0]) == {"-"}:
            continue
        assert len(cells) == len(COLUMNS) and all(cells), f"differences.md: {line}: not | {' | '.join(COLUMNS)} |"
        case, c, rust, _ = cells
        assert case not in allowed, f"differences.md has two lines for `{case}`: remove one"
        allowed[case] = {"c": c, "rust": rust}
    return allowed


def compare(found, allowed):
    """Yields the problems: differences that are not allowed, and allowed differences that do not occur.

    The bytes of a case's commands have to be equal unless the case has an allowed difference.
    """
    for case in dict.fromkeys([*found["c"], *found["rust"], *allowed]):
        if case.endswith(BYTES) and case.removesuffix(BYTES) in allowed:
            continue
        got = {driver: found[driver].get(case, "no such case") for driver in ("c", "rust")}
        what = "\n".join(f"{driver}: {said}" for driver, said in got.items())
        if any(BROKEN in said for said in got.values()):
            yield case, f"it could not run\n{what}"
        elif case in allowed and got != allowed[case]:
            yield case, f"differences.md allows {allowed[case]}\n{what}"
        elif case not in allowed and got["c"] != got["rust"]:
            yield case, f"the drivers differ\n{what}"


def devices(profile):
    first, *others = [line.split(maxsplit=1)[1] for line in lines_of(ABI / "devices")]
    return [re.sub(r"\bprofile=\w+", f"profile={profile}", first), *others]


def run(driver, flavour, profile, case="", prefix="", **options):
    """Runs the cases with a driver; returns the results."""
    with Guests(driver=driver, flavour=flavour, devices=devices(profile), **options) as guests:
        said = guests.run(f"{prefix}{ABI}/run.py {shlex.quote(case) if case else ''}")
    found = dict(line.split(" | ", 1) for line in said.splitlines() if " | " in line)
    assert f"{len(found)} cases have run" in said.splitlines(), f"the cases ended early, after {len(found)} results:\n{said[-2000:]}"
    return found


def key():
    """Returns a hash of what the C driver's results depend on."""
    digest = hashlib.sha256(release("cloud-amd64").encode())
    library = [path for path in (CLONE / "tests/kselftest").glob("*.py") if not os.access(path, os.X_OK)]
    for path in sorted([*ABI.glob("*.py"), *library, ABI / "devices"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16] + result("emulator").name


def reference(profile, renew):
    """Returns the C driver's results: those in the clone or in the cache, unless they are renewed."""
    kept = CACHE / f"abi-{key()}-{profile}"
    record = json.loads(lzma.open(RECORD, "rt").read()) if RECORD.exists() else {}
    if not renew and record.get("key") == key() and profile in record:
        return record[profile], None
    if renew or not kept.exists():
        found = run("c", "cloud-amd64", profile)
        if not any(BROKEN in said for said in found.values()):
            kept.write_text(json.dumps(found))
        if os.environ.get("EFA_RECORD"):
            record = {**(record if record.get("key") == key() else {}), "key": key(), profile: found}
            with lzma.open(CACHE / "abi-c.xz", "wt", preset=9) as file:
                file.write(json.dumps(record, separators=(",", ":")))
    found = json.loads(kept.read_text())
    return found, record[profile] if record.get("key") == key() and profile in record else None


def without(patterns, by_case):
    return {name: what for name, what in by_case.items() if not any(fnmatch.fnmatchcase(name.removesuffix(BYTES), one) for one in patterns)}


@pytest.mark.parametrize("profile", [PROFILES[0], *(pytest.param(profile, marks=pytest.mark.tier("named")) for profile in PROFILES[1:])])
def test_abi(request, combination, profile, case):
    _, flavour = combination.split()
    if case:
        theirs = run("c", "cloud-amd64", profile, case)
    else:
        theirs, recorded = reference(profile, request.config.option.tier == "all" or bool(os.environ.get("EFA_RECORD")))
        assert recorded in (None, theirs), "the C driver's results are not those of tests/abi/c.xz: write it anew (EFA_RECORD=1)"
    judge(request, {"c": theirs, "rust": run("rust", flavour, profile, case)}, flavour, case)


def judge(request, found, flavour, case):
    """Records the results of both drivers, and fails if they differ where they must not, or the other way round."""
    allowed = table((ABI / "differences.md").read_text(), 16384 if flavour.endswith("16k") else 4096)
    if flavour == "debug":
        # Cases whose results differ between the debug kernel and Debian's with any driver.
        but = lines_of(ABI / "elsewhere.debug")
        assert all(fnmatch.filter(found["c"], pattern) for pattern in but), "elsewhere.debug names a case that does not exist"
        found = {driver: without(but, results) for driver, results in found.items()}
        allowed = without(but, allowed)
    if case:
        allowed = {name: what for name, what in allowed.items() if name.startswith(case) or fnmatch.fnmatchcase(name, case)}
    problems = dict(compare(found, allowed))
    names = dict.fromkeys([*found["c"], *found["rust"]])
    request.node.ktap = [(name, "passed", "") for name in names if name not in problems]
    request.node.ktap += [(name, "failed", what) for name, what in problems.items()]
    assert names and not problems, "\n".join(f"{name}: {what}" for name, what in list(problems.items())[:20])
