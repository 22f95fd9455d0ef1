# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The project's laws that a program can check: each check returns the lines that break it."""

import re
import subprocess

from . import cache

UNSAFE_ALLOWED = re.compile(r"efa_rs/(rdma|sys|ffi)(/|\.rs$)")
RELEASE_ALLOWED = re.compile(r"efa_rs/(sys|ffi)(/|\.rs$)")
RELEASE = re.compile(r"\blinux_\d+_\d+\b")
UNSAFE = re.compile(r"\bunsafe\b")
C_LINES = 300
# Where packages come from is the host's choice.
MIRROR = re.compile(r"\b(deb|ftp|security|snapshot|archive|cdn)[\w.-]*\.(debian|ubuntu)\.(org|com|net)|//[\w.-]*mirror[\w.-]*/|(index|static)\.crates\.io")


def files(*patterns):
    """The clone's files, tracked and new ones, that match git's patterns."""
    command = ["git", "-C", str(cache.CLONE), "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in sorted(set(names)) if (cache.CLONE / name).is_file()]


def lines(name):
    text = (cache.CLONE / name).read_text(errors="replace")
    return [(f"{name}:{number}", line) for number, line in enumerate(text.splitlines(), 1)]


def unsafe_in_its_folders():
    """`unsafe` is in efa_rs/rdma, efa_rs/sys and efa_rs/ffi only."""
    return [
        f"{place}: {line.strip()}"
        for name in files("efa_rs/*.rs")
        if not UNSAFE_ALLOWED.match(name)
        for place, line in lines(name)
        if UNSAFE.search(re.sub(r"//.*|\"[^\"]*\"", "", line))
    ]


def releases_in_their_folders():
    """What depends on the kernel's release is in efa_rs/sys and efa_rs/ffi only."""
    return [
        f"{place}: {line.strip()}"
        for name in files("efa_rs/*.rs")
        if not RELEASE_ALLOWED.match(name)
        for place, line in lines(name)
        if RELEASE.search(line)
    ]


def little_c():
    """efa_rs has less than 300 lines of C."""
    counts = {name: len(lines(name)) for name in files("efa_rs/*.c", "efa_rs/*.h")}
    if sum(counts.values()) < C_LINES:
        return []
    return [f"{name}: {count} lines" for name, count in counts.items()]


def no_mirror():
    """No file names a package mirror."""
    return [f"{place}: {line.strip()}" for name in files() for place, line in lines(name) if MIRROR.search(line)]


ALL = (unsafe_in_its_folders, releases_in_their_folders, little_c, no_mirror)
