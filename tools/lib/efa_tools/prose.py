# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Sentences of documents, comments and messages, and their words."""

import ast
import inspect
import io
import re
import tokenize

# Limit on the words of a sentence, beyond which it is an error. A sentence should have at most 25 words.
MOST_WORDS = 30
# Household words where RDMA and Linux have a term (notify, report, revoke, expire), and subjects without a noun.
VAGUE = re.compile(r"\b(?:told|tells|nobody|somebody|anybody|goes|takes? back|gives? back)\b|^Who(?:m|se)?\b", re.IGNORECASE)
CODE = re.compile(r"(`+).+?\1")
# The target of a link, which is not read, unlike its text.
LINK_TARGET = re.compile(r"\]\([^)\s]*\)|\]\[[^\]]*\]")
# The end of a sentence: a full stop, and possible closing signs, before white space.
END = re.compile(r"(?<=[.!?])[)\]\"'*_]*\s+")
FENCE = re.compile(r"(```|~~~)")
ITEM = re.compile(r"(?:[-*+]|(\d+)[.)])\s+")
GLUE = "\0"
CELLS = re.compile(r"(?<!\\)\|")
# A line of a comment, as sign and text: in Rust and C; in Lua; elsewhere.
SLASHES, DASHES, HASHES = (re.compile(rf"\s*({sign})(.*)") for sign in ("//[/!]?", "--", "#+"))
# Tokens of C and Rust: comments, strings, and characters, which may be quotes.
C = re.compile(
    r"""(?s)//[^\n]*|/\*(?P<block>.*?)\*/|\bb?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)"""
    r"""|"(?P<string>(?:\\.|[^"\\])*)"|'(?:\\[^']*|[^'\\])'"""
)
STAR = re.compile(r"(?m)^[ \t]*\*+ ?")
# Tokens of a shell and of TOML: comments that take lines, and strings. A command in a string may have strings.
SHELL = re.compile(r"""(?sm)^\s*\#[^\n]*|'[^']*'|"(?P<string>(?:\\.|\$\((?:[^()]|\([^()]*\))*\)|[^"\\])*)\"""")
CONTINUED = re.compile(r"\\\n\s*")
# Parts of strings that are not messages, but scripts, expressions, or tables.
NO_MESSAGE = re.compile(r"\$\w|\w ?= ?\S|&&| > |://|\\[^n\"]|\S  +\S|\]\+")
# A macro of a man page whose arguments are part of a sentence.
FONT = re.compile(r"\.[BIR]{1,2} (.*)")
DESCRIPTION = re.compile(r"(?ms)^%description.*?\n(.*?)^%")


def numbered(text, first=1):
    return list(enumerate(text.splitlines(), first))


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


def comments(lines, sign=HASHES):
    """Yields the comments with lines of their own. Each is a list of numbered lines, which are consecutive and of one kind."""
    found, kind = [], None
    for number, line in lines:
        match = sign.fullmatch(line)
        if found and (not match or match[1] != kind):
            yield found
            found = []
        if match:
            kind = match[1]
            found.append((number, match[2].removeprefix(" ")))
    if found:
        yield found


def strings(source, token):
    """The comments in blocks and the messages of a source."""
    for match in token.finditer(source):
        first, found = source.count("\n", 0, match.start()) + 1, match.groupdict()
        if block := found.get("block"):
            yield numbered(STAR.sub("", block), first)
        elif text := found.get("raw") or CONTINUED.sub("", found["string"] or ""):
            yield from message(text.replace(r"\n", "\n").replace(r"\"", '"'), first)


def message(text, first):
    """Yields the string as a part, if it may be a message."""
    if not NO_MESSAGE.search(text):
        yield numbered(text, first)


def c(source):
    """The comments and messages of Rust and C."""
    yield from comments(numbered(source), SLASHES)
    yield from strings(source, C)


def shell(source):
    """The comments and messages of a shell and of TOML."""
    yield from comments(numbered(source))
    yield from strings(source, SHELL)


def python(source):
    """The comments, docstrings and messages of Python."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    yield from comments([(number, line if number in lines else "") for number, line in numbered(source)])
    done = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(node)) is not None and isinstance(start := node.body[0], ast.Expr):
                done.add(id(start.value))
                yield numbered(text, start.lineno)
        elif isinstance(node, ast.JoinedStr):
            done |= {id(value) for value in node.values}
            # An inserted value is a word.
            yield from message("".join(value.value if isinstance(value, ast.Constant) else "{x}" for value in node.values), node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in done:
            yield from message(inspect.cleandoc(node.value), node.lineno)


def manual(source):
    """The text of a man page."""
    fonts = [(number, line, FONT.fullmatch(line)) for number, line in numbered(source)]
    yield [(number, font[1] if font else "" if line.startswith(".") else line) for number, line, font in fonts]


def control(source):
    """The descriptions of Debian packages, and the comments."""
    yield from comments(numbered(source))
    yield [(number, line.strip() if line.startswith(" ") and line != " ." else "") for number, line in numbered(source)]


def spec(source):
    """The description of an RPM, and the comments."""
    yield from comments(numbered(source))
    for match in DESCRIPTION.finditer(source):
        yield numbered(match[1], source.count("\n", 0, match.start(1)) + 1)


READERS = {
    # Licences, output of tools, and pictures.
    r"^LICENSES?\b|\.(lock|json|svg)$": lambda _: [],
    r"\.(md|msg)$": lambda source: [numbered(source)],
    r"\.(rs|c|h)$": c,
    r"\.py$": python,
    r"\.(sh|toml)$": shell,
    r"\.[18]$": manual,
    r"\.lua$": lambda source: comments(numbered(source), DASHES),
    r"\.spec$": spec,
    r"debian/control$": control,
}
PROGRAMS = {"python3": python, "sh": shell, "bash": shell}
SHEBANG = re.compile(r"#!.*\b(python3|sh|bash)\b")


def parts(name, source):
    """Returns the parts of a file that have sentences. Files of other kinds than those above have comments that begin with a #."""
    for pattern, reader in READERS.items():
        if re.search(pattern, name):
            return reader(source)
    program = SHEBANG.match(source)
    return PROGRAMS[program[1]](source) if program else comments(numbered(source))


def sentences(name, source):
    """The sentences of a file, each with the line of its text. Code in a sentence is one word."""
    for number, text in (text for part in parts(name, source) for text in markdown(part)):
        # Glued text is one word, in which a full stop ends no sentence.
        glued = CODE.sub(lambda code: code[0].replace(" ", GLUE), LINK_TARGET.sub("]", text))
        yield from ((number, sentence) for sentence in END.split(glued))


def long_sentences(name, source):
    """The sentences of a file that have too many words, each with its line and the number of its words. A sign is no word."""
    for number, sentence in sentences(name, source):
        count = sum(any(letter.isalnum() for letter in word) for word in sentence.split())
        if count > MOST_WORDS:
            yield number, f"{count} words", sentence.replace(GLUE, " ")


def vague_words(name, source):
    """The sentences of a file with a word in place of which a term is to be used, each with its line and the word."""
    for number, sentence in sentences(name, source):
        # A text without a space may be a name.
        if " " in sentence and (word := VAGUE.search(CODE.sub("", sentence))):
            yield number, f"'{word[0]}'", sentence.replace(GLUE, " ")
