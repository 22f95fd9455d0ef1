# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Sentences of documents, of comments in Rust and of docstrings in Python, and how many words each has."""

import ast
import re

# A sentence should have at most 25 words. This is where it becomes an error.
MOST_WORDS = 30
CODE = re.compile(r"(`+).+?\1")
# The text of a link is read, and its target is not.
LINK_TARGET = re.compile(r"\]\([^)\s]*\)|\]\[[^\]]*\]")
# What ends a sentence: a full stop, and what may close after it, before white space.
END = re.compile(r"(?<=[.!?])[)\]\"'*_]*\s+")
FENCE = re.compile(r"(```|~~~)")
ITEM = re.compile(r"(?:[-*+]|(\d+)[.)])\s+")
GLUE = "\0"
CELLS = re.compile(r"(?<!\\)\|")
COMMENT = re.compile(r"\s*(//[/!]?)(.*)")


def markdown(lines):
    """The texts of a document, each with the number of the line on which it begins.

    A text is a paragraph, an item of a list, a heading, or a cell of a table. LINES are pairs of a number and a line. Code is left out.
    """
    text, start, fence, listed = [], 0, None, False
    for number, line in [*lines, (0, "")]:
        bare = line.strip()
        mark, item = FENCE.match(bare), ITEM.match(bare)
        # In the middle of a paragraph, only the number 1 begins a list: others may be the end of a sentence.
        item = item if item and (not text or listed or item[1] in (None, "1")) else None
        if text and (mark or item or not bare or bare.startswith(("#", "|"))):
            yield start, " ".join(text)
            text = []
        if fence:
            fence = None if mark and mark[1] == fence else fence
        elif mark:
            fence = mark[1]
        elif bare.startswith("#"):
            yield number, bare.lstrip("# ")
        elif bare.startswith("|"):
            yield from ((number, cell.strip()) for cell in CELLS.split(bare))
        elif bare and (text or item or not line.startswith("    ")):
            start, listed = (start, listed) if text else (number, bool(item))
            text.append(bare[item.end() :] if item else bare)


def comments(lines):
    """The comments of a Rust file, each as its numbered lines: lines of one kind that follow each other."""
    found, kind = [], None
    for number, line in lines:
        match = COMMENT.fullmatch(line)
        if found and (not match or match[1] != kind):
            yield found
            found = []
        if match:
            kind = match[1]
            found.append((number, match[2].removeprefix(" ")))
    if found:
        yield found


def docstrings(source):
    """The docstrings of a Python file, each as its numbered lines."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) is not None:
            yield list(enumerate(text.splitlines(), node.body[0].lineno))


def texts(name, source):
    """The texts of a file, each with the number of the line on which it begins."""
    numbered = list(enumerate(source.splitlines(), 1))
    if name.endswith(".md"):
        parts = [numbered]
    elif name.endswith(".rs"):
        parts = comments(numbered)
    else:
        parts = docstrings(source)
    for part in parts:
        yield from markdown(part)


def long_sentences(name, source):
    """The sentences of a file that have too many words, each with the line of its text and the number of its words.

    Code counts as one word, and a sign as none.
    """
    for number, text in texts(name, source):
        # What is glued together is one word, in which a full stop ends no sentence.
        glued = CODE.sub(lambda code: code[0].replace(" ", GLUE), LINK_TARGET.sub("]", text))
        for sentence in END.split(glued):
            count = sum(any(letter.isalnum() for letter in word) for word in sentence.split())
            if count > MOST_WORDS:
                yield number, count, sentence.replace(GLUE, " ")
