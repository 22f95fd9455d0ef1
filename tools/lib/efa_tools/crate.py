# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Changes of the kernel crate, rust/kernel in Linux's source, from one release to another."""

import difflib
import re

# A public item: its keyword and its name.
PUBLIC = re.compile(
    r"^\s*pub (?:(?:unsafe|const|async|extern \"C\") )*(fn|struct|enum|union|trait|type|const|static|mod|macro) (\w+)"
    r"|^\s*(macro_rules!) (\w+)",
    re.MULTILINE,
)
COMMENT = re.compile(r"//.*")
USE = re.compile(r"\buse kernel::(\{[^;]*\});")
# A pair of braces without inner braces.
BRACES = re.compile(r"\{[^{}]*\}")
PATH = re.compile(r"\bkernel::(\w+)")


def public(text):
    """Returns the public items of a file, such as "fn bind"."""
    return [f"{found[1] or 'macro'} {found[2] or found[4]}" for found in PUBLIC.finditer(text)]


def modules(texts):
    """Returns the modules of the crate that files of a driver name."""
    found = set()
    for text in texts:
        code = COMMENT.sub("", text)
        found |= set(PATH.findall(code))
        for tree in USE.findall(code):
            names = tree.strip()[1:-1]
            while BRACES.search(names):
                names = BRACES.sub("", names)
            found |= {name.strip().split("::")[0] for name in names.split(",")}
    return found - {"", "self"}


def module(name):
    """The module of the crate that a file is in, such as pci of pci/io.rs."""
    return name.split("/")[0].removesuffix(".rs")


def size(old, new):
    """Returns the number of added and of removed lines of a file."""
    # The first two lines name the files.
    lines = [line[0] for line in list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]]
    return lines.count("+"), lines.count("-")


def changes(old, new, used=()):
    """Returns lines that list the differences between two crates, texts by name. Files of USED modules come first, and are marked."""
    lines = []
    for name in sorted(old.keys() | new.keys(), key=lambda name: (module(name) not in used, name)):
        before, after = old.get(name, ""), new.get(name, "")
        if before == after:
            continue
        plus, minus = size(before, after)
        there = "" if name in old and name in new else " (new)" if name in new else " (gone)"
        lines.append(f"{'* ' if module(name) in used else '  '}{name}{there}: +{plus} -{minus}")
        had, has = public(before), public(after)
        for what, some in (("gone", [item for item in had if item not in has]), ("new", [item for item in has if item not in had])):
            if some and not there:
                lines.append(f"      {what}: {', '.join(dict.fromkeys(some))}")
    return lines
