#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Makes the patches for Linux that series.toml describes from efa_rs/ and samples/. tests/test_upstream.py builds and checks each.

usage: series.py TREE FOLDER      TREE is Linux's source, and FOLDER gets the patches
"""

import difflib
import functools
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import rewrite

FOLDER = Path(__file__).resolve().parent
CLONE = FOLDER.parent
TABLE = tomllib.loads((FOLDER / "series.toml").read_text())
# The function that rewrites a Rust file, by its place in the tree.
REWRITES = {"rust/kernel/": rewrite.source, "samples/": rewrite.outside, "drivers/": rewrite.driver}
# Patterns of the files that a driver is built from.
DRIVER_FILES = ("*.rs", "*.[ch]", "*.awk", "Kbuild", "Makefile.*")


@dataclass
class Patch:
    """A patch: its message, and the files that it changes, before and after."""

    name: str
    # Its series, and its number in it.
    series: str
    number: int
    changes: dict[str, tuple[str, str]]
    # All files that differ from those of the tree once it is applied, and the configuration that it is built with.
    state: dict[str, str]
    config: str

    @property
    def message(self):
        return (FOLDER / f"{self.name}.msg").read_text()

    @functools.cached_property
    def text(self):
        """The patch as git would mail it, without a sender."""
        parts = [f"Subject: [PATCH] {self.message.rstrip()}\n---\n\n"]
        for path, (old, new) in sorted(self.changes.items()):
            before = f"a/{path}" if old else "/dev/null"
            lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), before, f"b/{path}")
            parts.append(f"diff --git a/{path} b/{path}\n" + "new file mode 100644\n" * (not old) + "".join(lines))
        return "".join(parts) + "--\n"

    @property
    def added(self):
        """The number of lines that the patch adds."""
        return len(re.findall(r"^\+(?!\+\+ )", self.text, re.MULTILINE))


@dataclass
class Contents:
    """The contents of all patches up to one, as in series.toml."""

    modules: list[str] = field(default_factory=list)
    includes: list[str] = field(default_factory=list)
    on: list[str] = field(default_factory=list)
    config: list[str] = field(default_factory=list)
    edit: list[dict[str, str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    # Modules with items that only a later patch uses, and names of items that are left out with all that mentions them.
    dead: set[str] = field(default_factory=set)
    without: list[str] = field(default_factory=list)

    def without_in(self, module):
        """The names of items that are left out in a module; those with a dot name the module."""
        named = (name.rpartition(".") for name in self.without)
        return {name for place, _, name in named if place in ("", module)}


@functools.cache
def formatted(text):
    """Formats a Rust file."""
    done = subprocess.run(["rustfmt", "--edition", "2021", "--emit", "stdout"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"rustfmt rejects a rewritten file: correct the tables in rewrite.py.\n{done.stderr}")
    return rewrite.wrapped(done.stdout)


def with_tests(source, text):
    """Appends the tests of a file of the layer, if it has any, to its rewritten text."""
    tests = FOLDER / "tests" / source.removeprefix("efa_rs/rdma/")
    return f"{text}\n{tests.read_text()}" if source.startswith("efa_rs/rdma/") and tests.exists() else text


def edited(text, edit):
    """Returns a file after an edit: TEXT added before or after an anchor, or instead of what is cut from one anchor to another."""
    added, cut = edit.get("text", ""), ""
    if "cut" in edit:
        begin = text.find(edit["cut"])
        end = text.find(edit["to"], begin)
        if min(begin, end) < 0:
            raise ValueError(f"{edit['file']} does not have {edit['cut']!r} and {edit['to']!r}: correct upstream/series.toml.")
        cut = text[begin:end]
        text = text[:begin] + ("" if "before" in edit else added) + text[end:]
        if "before" not in edit:
            return text
    anchor = edit.get("after") or edit["before"]
    if text.count(anchor) != 1:
        raise ValueError(f"{edit['file']} has {anchor!r} not just once, where upstream/series.toml adds lines: correct that.")
    return text.replace(anchor, anchor + added if "after" in edit else cut + added + anchor)


def made(contents, original):
    """Returns all files that differ from those of the tree once the CONTENTS are in it."""
    texts, on = {}, set(contents.on)
    for edit in contents.edit:
        path = edit["file"]
        texts[path] = edited(texts.get(path) or original(path), edit)
    root = rewrite.resolved((CLONE / "efa_rs/rdma.rs").read_text(), on)
    missing = {match["name"] for match in rewrite.MODULE.finditer(root)} - set(contents.modules)
    files = {name: CLONE / f"efa_rs/rdma/{name}.rs" for name in contents.modules}
    modules = {name: file.read_text() for name, file in files.items() if file.exists()}
    kinds = contents.without_in("")
    for text in modules.values():
        kinds |= rewrite.reduced(text, missing, kinds, on)[1]
    modules = {name: rewrite.reduced(text, missing, kinds | contents.without_in(name), on)[0] for name, text in modules.items()}
    rust, in_crate, called = {}, [*modules.values()], set()
    for source, target in contents.files.items():
        text = (CLONE / source).read_text()
        if not target.endswith(".rs"):
            texts[target] = rewrite.rewritten(text, rewrite.DRIVER)
            continue
        if source.startswith("efa_rs/sys/"):
            # Items for the rest of sys/ are for drivers in the tree.
            text = text.replace("pub(super) ", "pub(crate) ")
        function = next(function for start, function in REWRITES.items() if target.startswith(start))
        text = rewrite.reduced(text, (), kinds | contents.without_in(Path(source).stem), on)[0]
        if function == rewrite.source:
            in_crate.append(text)
        else:
            called |= rewrite.called([text])
        rust[target] = with_tests(source, function(text))
    if modules:
        rust["rust/kernel/rdma.rs"] = rewrite.module(root, modules, contents.modules, contents.dead)
    for name, text in modules.items():
        rust[f"rust/kernel/rdma/{name}.rs"] = with_tests(f"efa_rs/rdma/{name}.rs", rewrite.source(text))
    texts |= {path: formatted(text) for path, text in rust.items()}
    for path in texts:
        if path.endswith("/ffi/helpers.c"):
            texts[path] = rewrite.with_functions(texts[path], called)
    if contents.includes:
        helpers = (CLONE / "efa_rs/ffi/helpers.c").read_text()
        texts["rust/helpers/rdma.c"] = rewrite.helpers(helpers, rewrite.called(in_crate), sorted({*contents.includes}))
    return texts


def driver(target, files):
    """The files of efa_rs/ that are not in FILES yet, and their places in the folder TARGET."""
    taken = {*files, "efa_rs/rdma.rs"}
    found = {str(file.relative_to(CLONE)) for pattern in DRIVER_FILES for file in (CLONE / "efa_rs").rglob(pattern)}
    mine = sorted(file for file in found - taken if not file.startswith("efa_rs/rdma/"))
    return {file: f"{target}/{file.removeprefix('efa_rs/')}" for file in mine}


def patches(tree):
    """Returns the patches of all series in their order, for Linux's source in TREE."""
    contents, last, found = Contents(), {}, []

    def original(path):
        return (tree / path).read_text() if (tree / path).exists() else ""

    entries = [(series["name"], number, entry) for series in TABLE["series"] for number, entry in enumerate(series["patch"], 1)]
    for place, (series, number, entry) in enumerate(entries):
        for name in ("modules", "includes", "on", "config", "edit"):
            setattr(contents, name, getattr(contents, name) + entry.get(name, []))
        later = [other for _, _, other in entries[place + 1 :]]
        contents.dead = {name for other in later for name in other.get("completes", [])}
        contents.without = [*TABLE["without"], *(name for other in later for name in other.get("items", []))]
        contents.files |= entry.get("files", {})
        contents.files |= driver(entry["driver"], contents.files) if "driver" in entry else {}
        state = made(contents, original)
        changes = {path: (last.get(path) or original(path), text) for path, text in state.items()}
        changes = {path: texts for path, texts in changes.items() if texts[0] != texts[1]}
        config = (FOLDER / "config").read_text() + "".join(f"{option}\n" for option in contents.config)
        found.append(Patch(entry["message"], series, number, changes, state, config))
        last = state
    return found


def write(found, folder):
    """Writes patches as files, with the cover letter of each series."""
    for old in folder.glob("*/*.patch"):
        old.unlink()
    for name in dict.fromkeys(patch.series for patch in found):
        mine = [patch for patch in found if patch.series == name]
        lines = [f"{patch.number:4}. {patch.message.splitlines()[0]}  (+{patch.added})\n" for patch in mine]
        letter = f"{(FOLDER / f'{name}.msg').read_text().rstrip()}\n\n{''.join(lines)}"
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "0000-cover-letter.patch").write_text(f"Subject: [PATCH 0/{len(mine)}] {letter}")
        for patch in mine:
            text = patch.text.replace("[PATCH]", f"[PATCH {patch.number}/{len(mine)}]", 1)
            (folder / name / f"{patch.number:04}-{patch.name}.patch").write_text(text)


if __name__ == "__main__":
    if not sys.argv[2:]:
        sys.exit(__doc__.strip())
    write(patches(Path(sys.argv[1])), Path(sys.argv[2]))
