# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The project's laws that a program can check: each check returns the lines that break it."""

import os
import re
import subprocess
from pathlib import Path

import imports

CLONE = Path("/efa-rs")

UNSAFE_ALLOWED = re.compile(r"efa_rs/(rdma|sys|ffi)(/|\.rs$)")
RELEASE_ALLOWED = re.compile(r"efa_rs/(sys|ffi)(/|\.rs$)")
RELEASE = re.compile(r"\blinux_\d+_\d+\b")
UNSAFE = re.compile(r"\bunsafe\b")
C_LINES = 420
FILE_LINES = 500
CLIENTS_HEADER = "efa_rs/include/efa_verbs.h"
# The folders that each folder of the driver may name, as in Documentation/architecture.md. All may name version.rs.
ARROWS = {
    "driver": {"verbs", "com", "rdma", "sys", "hw"},
    "verbs": {"rdma", "com", "io", "hw", "sys"},
    "io": {"hw", "sys"},
    "com": {"hw", "sys"},
    "rdma": {"sys", "ffi"},
    "sys": {"ffi"},
    "hw": set(),
    "ffi": set(),
    "version": {"ffi"},
}
# The only file that compares layouts with those of the kernel.
ARROWS_OF_FILES = {"efa_rs/verbs/abi.rs": {"ffi"}}
SAFETY = re.compile(r"^\s*//\s*SAFETY:\s*(?P<text>.*)$")
# References to a reason elsewhere, in place of a reason.
ELSEWHERE = re.compile(
    r"as (above|below|before|for|in|with)\b|see\b|(the )?same\b|likewise\b|ditto\b|what holds for\b|.*\b(relies|rests) on the same\b"
    r"|by the (type )?invariants?[.]$",
    re.IGNORECASE,
)
# A link to a file, to a heading, or to a heading of a file.
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)#?([^)\s]*)\)")
# Package mirrors, which the host chooses.
MIRROR = re.compile(
    r"\b(deb|ftp|security|snapshot|archive|cdn)[\w.-]*\.(debian|ubuntu)\.(org|com|net)|//[\w.-]*mirror[\w.-]*/|(index|static)\.crates\.io"
)


def git(*arguments):
    """Returns the output of git in the clone, which may belong to another user."""
    return subprocess.run(["git", "-c", "safe.directory=*", "-C", CLONE, *arguments], capture_output=True, text=True, check=True).stdout


def files(*patterns, links=False):
    """Returns the clone's files, tracked and new ones, that match git's patterns. With LINKS, also symbolic links."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns).splitlines()
    return [name for name in sorted(set(names)) if (links if (path := CLONE / name).is_symlink() else path.is_file())]


def lines(name):
    text = (CLONE / name).read_text(errors="replace")
    return [(f"{name}:{number}", line) for number, line in enumerate(text.splitlines(), 1)]


def matching(breaks, *patterns, but=None):
    """Returns the lines for which BREAKS is true, of all files whose names match git's patterns but not BUT."""
    names = [name for name in files(*patterns) if not (but and but.match(name))]
    return [f"{place}: {line.strip()}" for name in names for place, line in lines(name) if breaks(line)]


def unsafe_in_its_folders():
    """`unsafe` is in efa_rs/rdma, efa_rs/sys and efa_rs/ffi only."""
    return matching(lambda line: UNSAFE.search(re.sub(r"//.*|\"[^\"]*\"", "", line)), "efa_rs/*.rs", "samples/*.rs", but=UNSAFE_ALLOWED)


def releases_in_their_folders():
    """Code that depends on the kernel's release is in efa_rs/sys and efa_rs/ffi only."""
    return matching(RELEASE.search, "efa_rs/*.rs", but=RELEASE_ALLOWED)


def little_c():
    """efa_rs has less than 420 lines of C, without the header for clients in the kernel.

    Two fifths of them are tracepoints and methods of objects, which cannot be written in Rust.
    """
    counts = {name: len(lines(name)) for name in files("efa_rs/*.c", "efa_rs/*.h") if name != CLIENTS_HEADER}
    if sum(counts.values()) < C_LINES:
        return []
    return [f"{name}: {count} lines" for name, count in counts.items()]


def short_files():
    """No file of the driver and the emulator has more than 500 lines."""
    counts = {name: len(lines(name)) for name in files("efa_rs/*.rs", "emulator/*.rs")}
    return [f"{name}: {count} lines" for name, count in counts.items() if count > FILE_LINES]


def no_mirror():
    """No file names a package mirror."""
    return matching(MIRROR.search)


DRIVER = "efa_rs/efa_main.rs"


def crate_of(root):
    """The crate with this root: all files in its folder, and in those below."""
    folder = os.path.dirname(root)
    return imports.Crate(root, {name: (CLONE / name).read_text() for name in files(f"{folder}/*.rs")})


def module_imports():
    """Returns the names that files of the driver's crate use from each other, each with the folder of the file."""
    crate = crate_of(DRIVER)
    return [(crate.module(found.file)[:1], found) for found in crate.imports() if found.file != DRIVER]


def arrows():
    """Folders of efa_rs name only those that the architecture lets them name."""
    return [
        f"{found.file}:{found.line}: {folder} names {'::'.join(found.path)}"
        for (folder,), found in module_imports()
        if found.path[0] not in {folder, "version"} | ARROWS.get(folder, set()) | ARROWS_OF_FILES.get(found.file, set())
    ]


def roots():
    """Returns the roots of the driver and of the emulator's crates. In a crate with a library, main.rs is an ordinary file."""
    emulator = files("emulator/*/src/lib.rs", "emulator/*/src/main.rs")
    libraries = {os.path.dirname(name) for name in emulator if name.endswith("/lib.rs")}
    return files(DRIVER) + [name for name in emulator if name.endswith("/lib.rs") or os.path.dirname(name) not in libraries]


# The file of a trait whose associated types have traits of other files as bounds. Those traits have it as a bound.
HUB = "efa_rs/rdma/provider.rs"


def no_circles():
    """No files of the driver, or of a crate of the emulator, import each other in a circle.

    Only the trait that a provider of RDMA devices implements may name the traits of its objects, and these name it.
    """
    problems = []
    for root in roots():
        edges = {}
        for found in crate_of(root).imports():
            if found.target != HUB:
                edges.setdefault((found.file, found.target), found)
        for circle in imports.circles(edges):
            pairs = zip(circle, [*circle[1:], circle[0]], strict=True)
            problems.append(" -> ".join([f"{pair[0]}:{edges[pair].line}" for pair in pairs] + [circle[0]]))
    return problems


def own_reasons():
    """Each SAFETY comment says by itself why the code is sound."""
    return matching(lambda line: (match := SAFETY.match(line)) and ELSEWHERE.match(match["text"].strip()), "efa_rs/*.rs", "samples/*.rs")


def anchor(heading):
    """Returns the fragment of a link to a heading."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


# Code that reads a clock, in Python, Rust, C and a shell. An `Instant` as a function's start of time measures nothing.
CLOCK = re.compile(
    r"\btime\.(monotonic|time|perf_counter)(_ns)?\(|\bdatetime\.now\("
    r"|\.elapsed\(|\bduration_since\(|\b(Instant|SystemTime)::now\(\) *[-+<>]"
    r"|\bktime_get\w*\(|\bEPOCH(REALTIME|SECONDS)\b|\$\{?SECONDS\b|\bdate \+%s"
)
# Tests that may read a clock: functions that wait, and measurements of time.
CLOCKS = (
    "tests/kselftest/patience.py",
    "emulator/testing/src/wait.rs",
    # It has examples of forbidden code.
    "tests/test_laws.py",
    # It shows for how long a test runs.
    "tests/conftest.py",
    "emulator/testing/tests/attack/",
)
RUST_TESTS = re.compile(r"^mod tests \{")


def tests_of(name):
    """Returns the lines of a file that are tests: all, or only the module of tests in a file with other code."""
    numbered = lines(name)
    if "/src/" not in name or not name.endswith(".rs") or name.endswith("/tests.rs"):
        return numbered
    start = next((number for number, (_, line) in enumerate(numbered) if RUST_TESTS.match(line)), len(numbered))
    return numbered[start:]


def no_clock():
    """A functional test reads no clock: what it states is true at any speed."""
    return [
        f"{place}: {line.strip()}"
        for name in files("tests/*", "emulator/*/tests/*", "emulator/*/src/*.rs", "host/*.rs")
        if not name.startswith(CLOCKS)
        for place, line in tests_of(name)
        if CLOCK.search(line)
    ]


# The file with the effects of the emulator's rules, the file with their table, and patterns of an effect and of a row.
EFFECTS, TABLE = "emulator/model/src/faults/then.rs", "tests/kselftest/effects.md"
EFFECT = re.compile(r"^    (\w+): .* where .*,$")
ROW = re.compile(r"^\| (\w+) \|")


def effects_are_tested():
    """Each effect of a rule of the emulator has a row in the table, and each row has an effect."""
    effects = {match[1]: place for place, line in lines(EFFECTS) if (match := EFFECT.match(line))}
    rows = {match[1]: place for place, line in lines(TABLE) if (match := ROW.match(line))}
    for heading in ("effect", "stage", "probe", "use", "recovery"):
        rows.pop(heading, None)
    missing = [f"{place}: {name} has no row in {TABLE}" for name, place in effects.items() if name not in rows]
    return missing + [f"{place}: {name} is no effect" for name, place in rows.items() if name not in effects]


# The list of what tasks share, with what covers it, and the kinds of state that it has.
SHARED = "host/shared.md"
STATE = r"(?:Mutex|CondVar|SpinLock|SpinLockIrq|IrqLock|Semaphore|SetOnce|Completion|Atomic(?:Bool|Ptr|U8|U16|U32|U64|Usize)?)\b(?!::)"
DECLARED = re.compile(
    rf"^\s*(?:pub(?:\([\w: ]+\))?\s+)?(?:unsafe\(uninit\)\s+)?(?:static\s+)?(?P<name>\w+):\s*\[?(?P<kind>{STATE})"
    rf"|^\s*(?:pub(?:\([\w: ]+\))?\s+)?struct\s+(?P<tuple>\w+)(?:<[^(\n]*>)?\((?P<inner>{STATE})",
    re.MULTILINE,
)
ACCESS = re.compile(r"\.\s*(load|store|swap|xchg|cmpxchg|add|fetch_\w+|compare_exchange\w*)\(")
ORDER = re.compile(r"\b(Relaxed|Acquire|Release|AcqRel|SeqCst|Full)\b")
# Places with an order that no type shows: each with a name, in a function.
PLACES = {
    "barrier": re.compile(r"\b(smp_\w+|dma_\w*mb|\w*fence)\((?=\w)"),
    "doorbell": re.compile(r"\bwrite\(\s*Register::(\w+Db)\b|\.(ring\w*)\("),
    "phase": re.compile(r"\bread_byte::<(?:\{ *)?(?:\w+::)?(\w+)"),
}
FUNCTION = re.compile(r"^ *(?:pub(?:\([\w: ]+\))? +)?(?:unsafe +)?fn (\w+)", re.MULTILINE)


def closing(text, at):
    """Returns the index of the parenthesis that closes the one at an index."""
    depth = 0
    for index in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if not depth:
            return index
    return len(text)


def receiver(text, end):
    """Returns the last name of the expression that ends before an index, without the arguments of a call."""
    before = text[:end].rstrip(" \n?")
    while before.endswith(")"):
        depth = index = 0
        for index in reversed(range(len(before))):
            depth += {")": 1, "(": -1}.get(before[index], 0)
            if not depth:
                break
        before = before[:index].rstrip()
    return re.findall(r"\w*$", before)[0]


def shared_state():
    """Returns what tasks, handlers and the device share: pairs of a file and a name, each with kinds or accesses."""
    found = {}
    for name in files("efa_rs/*.rs"):
        file, text = name.removeprefix("efa_rs/"), re.sub(r"//.*", "", (CLONE / name).read_text())
        for match in DECLARED.finditer(text):
            found.setdefault((file, match["name"] or match["tuple"]), set()).add(match["kind"] or match["inner"])
        for match in ACCESS.finditer(text):
            if orders := ORDER.findall(text[match.end() : closing(text, match.end() - 1)]):
                found.setdefault((file, receiver(text, match.start())), set()).add(f"{match[1]} {orders[-1]}")
        for kind, pattern in PLACES.items():
            for match in pattern.finditer(text):
                function = [one[1] for one in FUNCTION.finditer(text, 0, match.start())][-1]
                found.setdefault((file, f"{function}: {match[match.lastindex or 0]}"), set()).add(kind)
    return found


def is_there(reference, tests):
    """Whether there is a test `file::name`, or a word in a function: `file function: word`."""
    if match := re.fullmatch(r"(\w+)::(\w+)", reference):
        return any(re.search(rf"\bfn {match[2]}\b|\b{match[2]}:", text) for text in tests.get(match[1], []))
    if match := re.fullmatch(r"(\S+) (\w+): (\w+)", reference):
        path = CLONE / "efa_rs" / match[1]
        body = re.split(rf"\bfn {match[2]}\b", path.read_text() if path.exists() else "")[1:]
        return any(re.search(rf"\b{match[3]}\b", re.split(r"\n *(?:pub\S* +)?fn ", one)[0]) for one in body)
    return False


def shared_state_is_covered():
    """Each lock, atomic access, barrier, doorbell and phase of the driver is in the list, with a test or barrier that exists."""
    tests = {}
    for name in files("host/*.rs"):
        folders = [part for part in name.removesuffix(".rs").split("/") if part not in ("tests", "src", "lib")]
        tests.setdefault(folders[-1], []).append((CLONE / name).read_text())
    found, problems, listed = shared_state(), [], {}
    for place, line in lines(SHARED):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[0].endswith(".rs"):
            continue
        listed[cells[0], cells[1]] = (place, set(cells[2].split(", ")))
        references = [one for one in re.findall(r"`([^`]+)`", cells[3]) if re.search("::| ", one)]
        problems += [f"{place}: there is no {one}" for one in references if not is_there(one, tests)]
        problems += [] if references else [f"{place}: nothing covers {cells[1]}"]
    for (file, name), kinds in sorted(found.items()):
        place, known = listed.pop((file, name), (SHARED, set()))
        if kinds != known:
            problems.append(f"{place}: {file} has {name}: {', '.join(sorted(kinds))}")
    return problems + [f"{place}: {file} has no {name}" for (file, name), (place, _) in listed.items()]


def links_lead_somewhere():
    """Links in the documentation lead to files and headings that exist."""
    pages = {name: lines(name) for name in files("*.md")}
    anchors = {name: {anchor(line.lstrip("#")) for _, line in text if line.startswith("#")} for name, text in pages.items()}
    problems = []
    for name, text in pages.items():
        for place, line in text:
            for target, heading in LINK.findall(line):
                page = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
                if not (CLONE / page).exists() or (heading and heading not in anchors.get(page, {heading})):
                    problems.append(f"{place}: there is no {target}{'#' * bool(heading)}{heading}")
    return problems


ALL = (
    unsafe_in_its_folders,
    arrows,
    no_circles,
    own_reasons,
    releases_in_their_folders,
    little_c,
    short_files,
    no_mirror,
    no_clock,
    effects_are_tested,
    shared_state_is_covered,
    links_lead_somewhere,
)
