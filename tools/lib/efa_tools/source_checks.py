# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Static checks of the sources. Each check is a function that returns its tally."""

import fnmatch
import re
import subprocess

from . import build, cache, laws, linters, steps, toolroot
from .failure import Failure
from .tally import Tally
from .verdict import attempt, check


def rustfmt():
    """All Rust files are formatted: those of the kernel as the kernel's are."""
    emulator, rest = laws.files("emulator/*.rs"), laws.files("*.rs", ":!emulator/")

    def action():
        with steps.step("rustfmt") as log:
            for edition, names in (("2024", emulator), ("2021", rest)):
                command = ["rustfmt", "--check", "--edition", edition, *(f"/efa-rs/{name}" for name in names)]
                if names:
                    steps.run(build.in_toolroot(command), log, "rustfmt --check")

    return attempt("rustfmt", action)


SHEBANG = re.compile(r"#! *(?:/usr)?/bin/(?:env +)?(\w+)")


def scripts(interpreters, *patterns):
    """Returns the files that match git's patterns, and the scripts with other names that one of the INTERPRETERS runs."""
    return sorted({*laws.files(*patterns), *(name for name in laws.files() if interpreter(name) in interpreters)})


def interpreter(name):
    """Returns the interpreter in a file's first line; None if that has none."""
    with open(cache.CLONE / name, errors="replace") as file:
        match = SHEBANG.match(file.readline(100))
    return match[1] if match else None


def python():
    """All files of Python."""
    return scripts({"python3"}, "*.py")


def shell():
    """All shell scripts."""
    return scripts({"sh", "bash"}, "*.sh", "dkms.conf")


def ruff_format():
    """All Python files are formatted."""

    def action():
        with steps.step("ruff format") as log:
            linters.ruff(log, python(), "format", "--check")

    return attempt("ruff format", action)


def ruff_check():
    """No Python file breaks a rule of pyproject.toml."""

    def action():
        with steps.step("ruff check") as log:
            linters.ruff(log, python(), "check", "--quiet", "--output-format=concise")

    return attempt("ruff check", action)


def mypy():
    """mypy reports no error in the files of pyproject.toml."""

    def action():
        with steps.step("mypy") as log:
            linters.mypy(log)

    return attempt("mypy", action)


# The hash of each is the key of a root or of a kernel. An edit rebuilds it, for minutes or for an hour. They split words on purpose.
RECIPES = ("tools/toolroot.sh", "tools/userland.sh", "tools/arm64/userland.sh", "tools/debug-kernel/build.sh")


def shellcheck():
    """shellcheck reports nothing for any shell script."""

    def action():
        with steps.step("shellcheck") as log:
            linters.shellcheck(log, [name for name in shell() if name not in RECIPES])
            linters.shellcheck(log, RECIPES, "--exclude=SC2086")

    return attempt("shellcheck", action)


def codespell():
    """codespell finds no misspelt word in any file."""

    def action():
        with steps.step("codespell") as log:
            linters.codespell(log, laws.files())

    return attempt("codespell", action)


# Types of checkpatch's messages that are ignored for a pattern of files, with the reasons.
NOT_FOLLOWED = {
    ("*.rs", "LONG_LINE"): "rustfmt breaks lines of code. `make upstream` wraps what it does not.",
    ("*.rs", "LONG_LINE_COMMENT"): "`make upstream` wraps comments for Linux's tree.",
    **{("tests/*", kind): "Tests are not for Linux's tree." for kind in ("LONG_LINE", "LONG_LINE_COMMENT", "LONG_LINE_STRING")},
    ("tests/bench/client/rounds.c", "MACRO_ARG_REUSE"): "Only one of both uses runs.",
}


def checkpatch():
    """checkpatch --strict reports nothing for the kernel's files except the messages in NOT_FOLLOWED."""
    names = laws.files("efa_rs/*.rs", "samples/*.rs", "*.c", "*.h", "*Kbuild")

    def action():
        with steps.step("checkpatch") as log:
            found = linters.checkpatch(log, names)
        unused = set(NOT_FOLLOWED)
        problems = []
        for match in found:
            rules = {rule for rule in NOT_FOLLOWED if fnmatch.fnmatchcase(match["file"], rule[0]) and match["type"] == rule[1]}
            unused -= rules
            problems += [] if rules else [match.string[match.start() : match.string.find("\n", match.start())]]
        problems += [f"{pattern}: nothing is ignored any more of type {kind}: remove it" for pattern, kind in sorted(unused)]
        if problems:
            raise Failure("\n".join(problems))

    return attempt("checkpatch", action)


CLIPPY = ("CLIPPY=1", "W=e", "CLIPPY_CONF_DIR=/efa-rs")


def clippy_module(flavour):
    """The module has no warning of the compiler or of clippy with the kernel's lints."""
    return attempt(f"clippy of the module {flavour}", lambda: build.rust_module(toolroot.kernel(flavour), *CLIPPY, variant="-clippy"))


# Functions that only clients in the kernel call.
KERNEL_VERBS = re.compile(r"\b(post_send|post_recv|poll_cq|req_notify_cq|get_dma_mr|alloc_mr|map_mr_sg)\b")


def without_kverbs():
    """A module has kernel verbs, which clients in the kernel need, unless it is built with KVERBS=0."""
    release = toolroot.kernel(toolroot.FLAVOURS[0])
    with_them = kernel_verbs(build.rust_module(release))
    without = kernel_verbs(build.module_without_kverbs(release))
    problems = [f"it has {name}" for name in without] + ["no module has any"] * (not with_them)
    return check("a module with KVERBS=0 has no kernel verbs", problems)


def kernel_verbs(module):
    """The kernel verbs that a module has."""
    command = build.in_toolroot(["nm", "--demangle", f"{build.BUILD}/{module.name}"], [(module.parent, build.BUILD, "ro")])
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(set(KERNEL_VERBS.findall("\n".join(line for line in symbols.splitlines() if "Ops<" in line))))


def clippy_samples():
    """The samples, with the files of the module that they use, have no warning of the compiler or of clippy."""
    release = toolroot.kernel(toolroot.FLAVOURS[0])
    total = Tally()
    for name in build.SAMPLES:
        total += attempt(f"clippy of the sample {name}", lambda name=name: build.sample(name, release, *CLIPPY, variant="-clippy"))
    return total


# The workspace of fuzz targets, whose lock file no other check reads.
FUZZ = "fuzz/Cargo.toml"


def clippy_emulator():
    """The workspace emulator/ has no warning of the compiler or of clippy, and the lock file of its fuzz targets is up to date."""

    def action():
        with build.cargo_lock("debug"), steps.step("clippy of the emulator") as log:
            build.cargo(log, "reading fuzz/Cargo.lock", "tree", "--depth", "0", manifest=FUZZ)
            build.cargo(log, "clippy", "clippy", "--workspace", "--all-targets", after=("--", "-D", "warnings"))

    return attempt("clippy of the emulator", action)


def clippy_driver():
    """The workspace host/ passes the same checks."""

    def action():
        with build.cargo_lock("host"), steps.step("clippy of the driver as a program") as log:
            build.host(log, "reading fuzz/Cargo.lock", "tree", "--depth", "0", manifest=FUZZ)
            build.host(log, "clippy", "clippy", "--workspace", "--all-targets", after=("--", "-D", "warnings"))

    return attempt("clippy of the driver as a program", action)


def deny():
    """The emulator's dependencies have licences and sources that emulator/deny.toml allows, and no advisories."""
    build.cargo_deny()
    with steps.step("licences, bans and sources of crates") as log:
        tally = attempt("licences, bans and sources of crates", build.deny, log, "cargo deny", "check", "bans", "licenses", "sources")
    with steps.step("advisories about crates") as log:
        try:
            build.deny(log, "Fetching the advisories", "fetch", "db")
        except Failure:
            steps.note(f"advisories about crates: skipped, as RustSec's list of them can't be fetched: see {log.name}")
            tally.skip("advisories about crates", "RustSec's list of them can't be fetched")
            return tally
        tally += attempt("advisories about crates", build.deny, log, "cargo deny", "check", "--disable-fetch", "advisories")
    return tally


def project_laws():
    """The laws that a program can check."""
    tally = Tally()
    for law in laws.ALL:
        tally += check(str(law.__doc__).strip().rstrip("."), law())
    return tally
