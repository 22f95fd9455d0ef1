# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The commands in the guides, and where each is run: tests/guides/commands.toml. It needs only Python's library, as guests import it."""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLONE = Path(__file__).resolve().parents[3]
TABLE = CLONE / "tests" / "guides" / "commands.toml"
# Sections whose commands are run, named after the place, and sections of commands that other suites run, or that lack a requirement.
RUN = ("guest", "lab", "vm", "host")
NOT_RUN = ("elsewhere", "missing")

FENCE = re.compile(r"^\s*```(?P<language>\w*)$")
PROMPT = re.compile(r"^[#$] (?P<command>.*)$")
REQUEST = '{"command":'
# The comment behind a command in a line of a shell.
REMARK = re.compile(r"\s+#\s.*$")
SPAN = re.compile(r"`([^`]+)`")
CELLS = re.compile(r"(?<!\\)\|")
# Code in a sentence or in a table is a command if it begins with one of these, and has more words.
PROGRAMS = (
    *("apt", "cargo", "cat", "curl", "dkms", "dmesg", "dnf", "dpkg", "echo", "efa-emu", "find", "grep", "insmod", "ip", "ln", "lnetctl"),
    *("lspci", "make", "modinfo", "modprobe", "mokutil", "qemu-system-x86_64", "rdma", "rmmod", "systemctl", "systemd-analyze"),
    *("tools/build", "tools/check", "tools/rust-kit", "tools/vm", "udevadm", "ulimit", "wireshark"),
)


@dataclass
class Command:
    """A command as a guide has it, and the output that it shows."""

    place: str
    text: str
    output: list[str] = field(default_factory=list)


def pages():
    """All READMEs and guides."""
    return [CLONE / "README.md", CLONE / "CONTRIBUTING.md", *sorted((CLONE / "Documentation").glob("*.md")), CLONE / "host/README.md"]


def unfinished(text):
    """Whether a command of a shell continues on the next line."""
    return text.endswith("\\") or text.count("'") % 2 == 1


def of_a_fence(language, block) -> Iterator[Command]:
    """The commands of a fenced block, whose lines come with their places."""
    if language in ("sh", "console"):
        last = None
        for place, line in block:
            prompt = PROMPT.match(line)
            if last and unfinished(last.text):
                last.text += f"\n{line}"
            elif language == "console" and not prompt:
                if last:
                    last.output.append(line)
            elif line.strip() and (language == "console" or not line.startswith("#")):
                if last:
                    yield last
                last = Command(place, REMARK.sub("", prompt["command"] if prompt and language == "console" else line))
        if last:
            yield last
    elif language:
        # A block in another language is one command, which has the text of its first line.
        yield Command(block[0][0], block[0][1])
    else:
        for place, line in block:
            if line.startswith((REQUEST, "-")):
                last = Command(place, line)
                # The next line may have the reply to a request.
                following = [text for at, text in block if at == after(place)]
                last.output = [text for text in following if text.startswith('{"ok":')]
                yield last


def after(place):
    name, number = place.rsplit(":", 1)
    return f"{name}:{int(number) + 1}"


def of_a_page(name, text) -> Iterator[Command]:
    """The commands of a page: of its fenced blocks, of columns of tables that are headed "command", and of sentences."""
    language, block, column = None, [], None
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{name}:{number}"
        if fence := FENCE.match(line):
            if language is None:
                language, block = fence["language"], []
            else:
                yield from of_a_fence(language, block)
                language = None
        elif language is not None:
            block.append((place, line))
        else:
            cells = [cell.strip() for cell in CELLS.split(line)] if line.startswith("|") else [line]
            if not line.startswith("|"):
                column = None
            elif column is None:
                column = cells.index("command") if "command" in cells else len(cells)
            for index, cell in enumerate(cells):
                spans = [span.replace("\\|", "|") for span in SPAN.findall(cell)]
                yield from (Command(place, span) for span in spans if index == column or is_command(span))


def is_command(span):
    """Whether code in a sentence or in a table is a command or a request."""
    first, _, more = span.partition(" ")
    return span.startswith(REQUEST) or (first in PROGRAMS and bool(more))


def commands():
    """Returns the commands of all pages."""
    return [found for page in pages() for found in of_a_page(str(page.relative_to(CLONE)), page.read_text())]


def table():
    return tomllib.loads(TABLE.read_text())


def matches(pattern, text):
    """Whether a command matches a pattern, in which a star stands for any text."""
    return pattern == text or re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def entries(sections) -> Iterator[tuple[str, str, Any]]:
    """Yields section, pattern, and how the command is run or why it is not.

    How: an expression that the output has to match, or a table with that as `prints`, and with commands to run `before` and `after`.
    """
    for section in RUN:
        for pattern, how in sections.get(section, {}).items():
            yield section, pattern, how
    for section in NOT_RUN:
        for why, patterns in sections.get(section, {}).items():
            for pattern in patterns:
                yield section, pattern, why


def classified(found, sections):
    """Returns the entry with the longest pattern that matches a command; None if no pattern does."""
    of_it = [entry for entry in entries(sections) if matches(entry[1], found.text)]
    return max(of_it, key=lambda entry: len(entry[1]), default=None)


def problems(every, sections):
    """Returns the commands without an entry in the table, and the entries without a command."""
    used = {found.text: classified(found, sections) for found in every}
    missing = [f"{found.place}: no entry in tests/guides/commands.toml has: {found.text}" for found in every if not used[found.text]]
    chosen = {entry[:2] for entry in used.values() if entry}
    unused = [
        f"tests/guides/commands.toml: no guide has this command of [{section}]: {pattern}"
        for section, pattern, _ in entries(sections)
        if (section, pattern) not in chosen
    ]
    return list(dict.fromkeys(missing)) + unused


def of_section(section):
    """Returns the commands of a section, each with how to run it, in the order of the table."""
    sections, every = table(), commands()
    order = [pattern for _, pattern, _ in entries(sections)]
    found = [(command, entry) for command in every if (entry := classified(command, sections)) and entry[0] == section]
    found.sort(key=lambda pair: order.index(pair[1][1]))
    # A command that several guides have is run once for each output that they show.
    once = {
        (command.text, tuple(command.output)): (command, entry[2] if isinstance(entry[2], dict) else {"prints": entry[2]})
        for command, entry in found
    }
    return list(once.values())


# Values that differ between runs: numbers, also within names. The output may have a word in their place.
VALUE = re.compile(r"0x[0-9a-f]+|\d+(?:[.,]\d+)*")
NAMED = re.compile(r"^(?P<name>[a-z_]+): \S+$")


def of_the_form(shown, line):
    """Whether a line of output has the form that the guide shows."""
    if named := NAMED.match(shown):
        return re.fullmatch(rf"{named['name']}: \S+", line) is not None
    parts = [r"\w+(?:[.,]\w+)*".join(map(re.escape, VALUE.split(part))) for part in shown.split("...")]
    return re.fullmatch(".*".join(parts).rstrip(), line.rstrip()) is not None


def lacks(shown, got, path=""):
    """Returns the names that the guide shows in a reply and that the reply lacks."""
    if isinstance(shown, dict) and isinstance(got, dict):
        return [
            problem
            for name, part in shown.items()
            for problem in (lacks(part, got[name], f"{path}.{name}") if name in got else [f"{path}.{name}"])
        ]
    if isinstance(shown, list) and isinstance(got, list):
        return lacks(shown[0], got[0], f"{path}[]") if shown and got else []
    return [] if type(shown) is type(got) else [f"{path} is of another type"]


# Signs of an omission in a guide's reply, and their replacements.
LEFT_OUT = ((re.compile(r",\.\.\.(?=[\]}])"), ""), (re.compile(r"(?<=[\[{])\.\.\.(?=[\]}])"), ""))


def differs(output, printed):
    """Describes how the text that a command PRINTED differs in form from the OUTPUT in the guide; empty if it does not."""
    if not output:
        return ""
    if output[0].startswith('{"ok":'):
        text, complete = output[0], "..." not in output[0]
        for pattern, replacement in LEFT_OUT:
            text = pattern.sub(replacement, text)
        shown, got = json.loads(text), json.loads(printed)
        wrong = lacks(shown, got) or (complete and [f"{name} is not shown" for name in lacks(got, shown)])
        return f"the reply has no {', '.join(wrong)}" if wrong else ""
    lines = printed.splitlines()
    wrong = [shown for shown in output if not any(of_the_form(shown, line) for line in lines)]
    return f"no line of the output is like: {wrong[0]}" if wrong else ""
