# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Finds which files of a Rust crate name which others: by `use`, and by paths that are written out where they are used.

Names that only the compiler resolves are not found: methods, expansions of macros, and names of a glob import. Tests inside of a file
are ignored, as nothing depends on them.
"""

import re
from collections import namedtuple
from pathlib import PurePosixPath

COMMENT_OR_TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>\#*)".*?"(?P=hashes)|\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'""",
    re.DOTALL,
)
USE = re.compile(r"(?P<public>\bpub(?:\s*\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;<>]+);")
MODULE = re.compile(r"(?:\bpub(?:\s*\([^)]*\))?\s+)?\bmod\s+\w+\s*;")
PATH = re.compile(r"(?<![\w:.$])[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)+")
TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod\s+\w+\s*\{")
ITEM = re.compile(r"^(?:pub(?:\([^)]*\))?\s+)?(?:const\s+)?(?:struct|enum|union|trait|type|fn|const|static)\s+(\w+)", re.MULTILINE)
WORD = re.compile(r"\*|\w+")


# A name in LINE of FILE: its PATH from the crate's root on, and the file TARGET that defines it.
Import = namedtuple("Import", "file line path target")


def without(pattern, text):
    """Returns TEXT with spaces in place of PATTERN's matches, so that positions do not change."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def without_tests(text):
    """Returns TEXT, which has no comments, with spaces in place of its modules of tests."""
    while found := TESTS.search(text):
        end, depth = found.end(), 1
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + re.sub(r"[^\n]", " ", text[found.start() : end]) + text[end:]
    return text


def leaves(tree, path=()):
    """Yields the paths of a use tree, each with its imported name."""
    name, brace, rest = tree.strip().partition("{")
    name, _, alias = name.partition(" as ")
    path += tuple(WORD.findall(name))
    if brace:
        for part in parts(rest[: rest.rindex("}")]):
            yield from leaves(part, path)
    elif path:
        path = path[:-1] if path[-1] == "self" and len(path) > 1 else path
        yield path, alias.strip() or path[-1]


def parts(text):
    """Yields the parts of a list of use trees, whose commas are in no braces of their own."""
    start = depth = 0
    for place, letter in enumerate(f"{text},"):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            yield from filter(None, [text[start:place].strip()])
            start = place + 1


class Crate:
    """A crate: the text of its files by name. ROOT is the file of the crate itself."""

    def __init__(self, root, texts):
        self.root = root
        self.folder = PurePosixPath(root).parent
        self.texts = {name: without_tests(without(COMMENT_OR_TEXT, text)) for name, text in texts.items()}
        self.items = set(ITEM.findall(self.texts.get(root, "")))
        self.files = {self.module(name): name for name in texts}
        # Names that modules re-export: {module: {name: path}}.
        self.exports = {module: {} for module in self.files}
        for name in texts:
            for _, public, path, alias in self.uses(name):
                if public:
                    self.exports[self.module(name)][alias] = path

    def module(self, name):
        """The path of a file's module."""
        if name == self.root:
            return ()
        parts = PurePosixPath(name).relative_to(self.folder).with_suffix("").parts
        return parts[:-1] if parts[-1] == "mod" else parts

    def absolute(self, module, path, names=None):
        """Returns a path from the root on, or None if it leads out of the crate. NAMES are the imports of the file."""
        here, path = module, list(path)
        if path[0] == "crate":
            return tuple(path[1:])
        if path[0] in ("self", "super"):
            while path and path[0] in ("self", "super"):
                here = here[:-1] if path.pop(0) == "super" else here
            return here + tuple(path)
        if names and path[0] in names:
            return names[path[0]] + tuple(path[1:])
        if (*module, path[0]) in self.files:
            return (*module, *path)
        return None

    def uses(self, name):
        """Yields the imports of a file: position, whether it is a re-export, path, and imported name."""
        module = self.module(name)
        for match in USE.finditer(self.texts[name]):
            for path, alias in leaves(match["tree"]):
                if (full := self.absolute(module, path)) is not None:
                    yield match.start(), bool(match["public"]), full, alias

    def resolve(self, path):
        """Returns the module that defines a path's item, and whether the path is a module; None if no file defines it."""
        module: tuple[str, ...] = ()
        for index, name in enumerate(path):
            if (*module, name) in self.files:
                module += (name,)
                continue
            target = self.exports[module].get(name)
            if target is not None and target != path[: index + 1]:
                return self.resolve(target + path[index + 1 :])
            # Other names of the root are made by macros, or belong to other crates.
            return (module, False) if module or name in self.items else None
        return module, True

    def imports(self):
        """Returns all names that files use from other files."""
        found = set()
        for name, text in self.texts.items():
            found |= set(self.imports_of(name, text))
        return sorted(found, key=lambda item: (item.file, item.line, item.path))

    def imports_of(self, name, text):
        module = self.module(name)
        body = without(USE, without(MODULE, text))
        names = {}
        for start, public, path, alias in self.uses(name):
            names[alias] = path
            # A name that is only re-exported is no dependency of this file.
            if not public or re.search(rf"\b{alias}\b", body):
                yield from self.named(name, text, start, path)
        for match in PATH.finditer(body):
            path = self.absolute(module, re.split(r"\s*::\s*", match[0]), names)
            if path is not None:
                yield from self.named(name, body, match.start(), path)

    def named(self, name, text, start, path):
        resolved = self.resolve(path)
        # The name of a module is no dependency. The names that are used from it are.
        if resolved and not resolved[1] and self.files[resolved[0]] != name:
            yield Import(name, text.count("\n", 0, start) + 1, path, self.files[resolved[0]])


def circles(edges):
    """Returns the shortest cycle through each file that is in one, each cycle once. EDGES are pairs."""
    following = {}
    for source, target in edges:
        following.setdefault(source, set()).add(target)
    found = {}
    for start in sorted(following):
        paths = [[start]]
        seen = set()
        while paths:
            path = paths.pop(0)
            ahead = sorted(following.get(path[-1], ()))
            if start in ahead:
                found.setdefault(frozenset(path), path)
                break
            for target in ahead:
                if target not in seen:
                    seen.add(target)
                    paths.append([*path, target])
    return list(found.values())
