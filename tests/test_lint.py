# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Format, warnings and laws of all sources."""

import fnmatch
import os
import re
import sys

import pytest
from conftest import CLONE, ran
from guests import BUILT
from test_host import cargo

sys.path.append(str(CLONE / "tests/lint"))

import laws

MINUTES = 3
TIER = "check"
CLIPPY = ("clippy-cloud-amd64", "clippy_null_rdma-cloud-amd64", "clippy_rdma_exchange-cloud-amd64")
SHEBANG = re.compile(r"#! *(?:/usr)?/bin/(?:env +)?(\w+)")
# A line of checkpatch's output: the file, and the type of the message.
FOUND = re.compile(r"^(?P<file>[^:]+):\d+: (?:ERROR|WARNING|CHECK):(?P<type>\w+): .*", re.MULTILINE)
# Types of checkpatch's messages that are ignored for a pattern of files, with the reasons.
NOT_FOLLOWED = {
    ("*.rs", "LONG_LINE"): "rustfmt breaks lines of code. The series wraps what it does not.",
    ("*.rs", "LONG_LINE_COMMENT"): "The series wraps comments for Linux's tree.",
    **{("tests/*", kind): "Tests are not for Linux's tree." for kind in ("LONG_LINE", "LONG_LINE_COMMENT")},
    **{("bench/*", kind): "Measurements are not for Linux's tree." for kind in ("LONG_LINE", "LONG_LINE_COMMENT")},
    ("bench/client/rounds.c", "MACRO_ARG_REUSE"): "Only one of both uses runs.",
}
# The hash of each is the key of a root or of a kernel. An edit rebuilds it, for minutes or for an hour. They split words on purpose.
RECIPES = ("tools/root.sh", "tools/userland.sh", "tools/arm64.sh", "tests/debug/kernel/build.sh")


def run(*command, names=(), **options):
    """Runs a linter on files of the clone."""
    text = "".join(f"{name}\n" for name in names)
    words = ["xargs", "--delimiter=\\n", *command] if names else command
    done = ran(words, cwd=CLONE, input=text, **options)
    return done.stdout, done.returncode


def passes(*command, names=(), **options):
    said, status = run(*command, names=names, **options)
    assert status == 0, said[-8000:]


def scripts(interpreters, *patterns):
    """Returns the files that match git's patterns, and scripts with other names that one of the interpreters runs."""
    found = set(laws.files(*patterns))
    for name in laws.files():
        with open(CLONE / name, errors="replace") as file:
            if (match := SHEBANG.match(file.readline(100))) and match[1] in interpreters:
                found.add(name)
    return sorted(found)


@pytest.mark.parametrize("law", laws.ALL, ids=lambda law: law.__name__)
def test_law(law):
    problems = law()
    assert not problems, f"{law.__doc__}\n" + "\n".join(problems[:50])


def test_rustfmt():
    emulator, rest = laws.files("emulator/*.rs"), laws.files("*.rs", ":!emulator/")
    passes("rustfmt", "--check", "--edition", "2024", names=emulator)
    passes("rustfmt", "--check", "--edition", "2021", names=rest)


@pytest.mark.needs("ruff")
@pytest.mark.parametrize("words", [("format", "--check"), ("check", "--quiet", "--output-format=concise")], ids=lambda words: words[0])
def test_ruff(words):
    passes("/run/built/ruff/bin/ruff", *words, names=scripts({"python3"}, "*.py"), env={**os.environ, "RUFF_CACHE_DIR": "/cache/ruff"})


def test_mypy():
    passes("mypy", "--cache-dir=/cache/mypy")


def test_shellcheck():
    shell = scripts({"sh", "bash"}, "*.sh", "dkms.conf")
    passes("shellcheck", "--format=gcc", names=[name for name in shell if name not in RECIPES])
    passes("shellcheck", "--format=gcc", "--exclude=SC2086", names=RECIPES)


def test_codespell():
    passes("codespell", names=laws.files())


@pytest.mark.needs("checkpatch")
def test_checkpatch():
    """checkpatch --strict reports nothing for the kernel's files but what is not followed."""
    program = ("/run/built/checkpatch/checkpatch.pl", "--no-tree", "--strict", "--terse", "--show-types", "--no-summary", "--file")
    said, status = run(*program, names=laws.files("efa_rs/*.rs", "samples/*.rs", "*.c", "*.h", "*Kbuild"))
    unused, problems = set(NOT_FOLLOWED), []
    for match in FOUND.finditer(said):
        rules = {rule for rule in NOT_FOLLOWED if fnmatch.fnmatchcase(match["file"], rule[0]) and match["type"] == rule[1]}
        unused -= rules
        problems += [] if rules else [match[0]]
    problems += [f"{pattern}: nothing is ignored any more of type {kind}: remove it" for pattern, kind in sorted(unused)]
    assert FOUND.search(said) or not status, said
    assert not problems, "\n".join(problems)


WORKSPACES = [
    pytest.param(name, marks=[pytest.mark.xdist_group(f"host {name}"), pytest.mark.needs(f"{name}-tests")]) for name in ("emulator", "host")
]


@pytest.mark.parametrize("workspace", WORKSPACES)
def test_clippy(workspace):
    said, status = cargo(workspace, "clippy", "--workspace", "--all-targets", "--", "-D", "warnings")
    assert status == 0, said[-8000:]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(name)) for name in CLIPPY])
def test_clippy_of_modules(name):
    """The module and the samples have no warning of the compiler or of clippy with the kernel's lints."""
    assert (BUILT / name).exists()


@pytest.mark.needs("rust-cloud-amd64", "no_kverbs-cloud-amd64")
def test_kernel_verbs():
    """A module has kernel verbs, which clients in the kernel need, unless it is built with KVERBS=0."""
    verbs = re.compile(r"\b(post_send|post_recv|poll_cq|req_notify_cq|get_dma_mr|alloc_mr|map_mr_sg)\b")

    def found(build):
        said, _ = run("nm", "--demangle", f"/run/built/{build}/efa.ko")
        return set(verbs.findall("\n".join(line for line in said.splitlines() if "Ops<" in line)))

    assert found("rust-cloud-amd64")
    assert not found("no_kverbs-cloud-amd64")
