# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The commands in READMEs and guides: each has an entry in guides/commands.toml, and exits with status 0 where that runs it."""

import json
import re
import shutil
import tomllib
from collections import namedtuple

from conftest import CLONE, ran, succeeds
from guests import LIMIT, result

GUIDES = CLONE / "tests/guides"
MINUTES = 4
COMBINATIONS = {"all": ["rust cloud-amd64"]}
GUESTS = {"count": 2, "cpus": 1, "devices": ["profile=efa3"] * 2, "hotplug": True}
SECTIONS = tomllib.loads((GUIDES / "commands.toml").read_text())
# Sections whose commands are run, named after the place, and sections of commands that other suites run, or that lack a requirement.
RUN, NOT_RUN = ("ssh", "guest", "vm", "host"), ("elsewhere", "missing")

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
    *("bench/driver.py", "dkms/rust-kit", "ssh", "tools/enter", "tools/vm", "udevadm", "ulimit", "wireshark"),
)


# A command as a guide has it.
Command = namedtuple("Command", "place text")


def unfinished(text):
    """Whether a command of a shell continues on the next line."""
    return text.endswith("\\") or text.count("'") % 2 == 1


def of_a_fence(language, block):
    """Yields the commands of a fenced block, whose lines come with their places."""
    if language and language not in ("sh", "console"):
        # A block in another language is one command, which has the text of its first line.
        yield Command(*block[0])
        return
    place, text = "", ""
    for here, line in block:
        prompt = PROMPT.match(line)
        if text and unfinished(text):
            text += f"\n{line}"
        else:
            if text:
                yield Command(place, text)
            starts = (
                prompt if language == "console" else line.startswith((REQUEST, "-")) if not language else line.strip() and line[0] != "#"
            )
            place, text = here, REMARK.sub("", prompt["command"] if prompt and language == "console" else line) if starts else ""
    if text:
        yield Command(place, text)


def of_a_page(name, text):
    """Yields the commands of a page: of its fenced blocks, of columns of tables that are headed "command", and of sentences."""
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
    """Returns the commands of all READMEs and guides."""
    pages = (
        CLONE / "README.md",
        CLONE / "CONTRIBUTING.md",
        *sorted((CLONE / "Documentation").glob("*.md")),
        CLONE / "host/README.md",
        CLONE / "bench/README.md",
    )
    return [found for page in pages if page.exists() for found in of_a_page(str(page.relative_to(CLONE)), page.read_text())]


def matches(pattern, text):
    """Whether a command matches a pattern, in which a star stands for any text."""
    return pattern == text or re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def entries(sections):
    """Yields section, pattern, and how the command is run or why it is not."""
    for section in RUN:
        yield from ((section, pattern, how) for pattern, how in sections.get(section, {}).items())
    for section in NOT_RUN:
        yield from ((section, pattern, why) for why, patterns in sections.get(section, {}).items() for pattern in patterns)


def classified(found, sections):
    """Returns the entry with the longest pattern that matches a command; None if no pattern does."""
    return max((entry for entry in entries(sections) if matches(entry[1], found.text)), key=lambda entry: len(entry[1]), default=None)


def problems(every, sections):
    """Returns the commands without an entry in the table, and the entries without a command."""
    used = {found: classified(found, sections) for found in every}
    missing = [f"{found.place}: no entry in tests/guides/commands.toml has: {found.text}" for found in every if not used[found]]
    chosen = {entry[:2] for entry in used.values() if entry}
    return missing + [
        f"no guide has this command of [{section}]: {name}" for section, name, _ in entries(sections) if (section, name) not in chosen
    ]


def of_section(section):
    """Returns the commands of a section, each once, with how to run it, in the order of the table."""
    order = list(SECTIONS[section])
    found = {command.text: (command, entry) for command in commands() if (entry := classified(command, SECTIONS)) and entry[0] == section}
    ordered = sorted(found.values(), key=lambda pair: order.index(pair[1][1]))
    return [(command, entry[2] if isinstance(entry[2], dict) else {"prints": entry[2]}) for command, entry in ordered]


def runs(command, how, text):
    """Runs a command on the host: it succeeds, and prints what it has to."""
    done = ran(["bash", "-c", text], cwd=CLONE, timeout=LIMIT)
    said = f"{command.place}: {command.text}: exit status {done.returncode}\n{done.stdout[-4000:]}"
    assert done.returncode == 0 and re.search(how.get("prints", ""), done.stdout, re.DOTALL), said


def test_each_command_has_an_entry():
    assert not (found := problems(commands(), SECTIONS)), "\n".join(found)


PAGE = """
```sh
first -a    # a remark that isn't one
second '
    over lines'
third \\
  and on
```
```console
# as root
its output
$ as a user
```
```
{"command":"hello"}
{"ok":{"protocol":1}}
  a diagram
```
| command | what |
|---|---|
| `one \\| two`, or `three` | `no command` |

Run `apt update`, and look at `apt` and `a page`.
"""


def test_commands_are_found():
    wanted = [
        "first -a",
        "second '\n    over lines'",
        "third \\\n  and on",
        "as root",
        "as a user",
        '{"command":"hello"}',
        "one | two",
        "three",
        "apt update",
    ]
    assert [found.text for found in of_a_page("page", PAGE)] == wanted


def test_entries():
    assert "page:1: no entry" in problems([Command("page:1", "new")], {})[0]
    assert problems([], {"missing": {"a GPU": ["old *"]}}) == ["no guide has this command of [missing]: old *"]
    # The entry that says most counts.
    sections = {"guest": {"rdma *": ""}, "missing": {"a GPU": ["rdma link *"]}}
    assert classified(Command("page:1", "rdma link show"), sections) == ("missing", "rdma link *", "a GPU")


def test_make_accepts_its_commands():
    """make knows each target that any file names, and SUITE, ONLY and WHAT in the guides name what exists."""
    targets = set(re.findall(r"^\.PHONY: (.*)$", (CLONE / "Makefile").read_text(), re.MULTILINE))
    targets = {name for line in targets for name in line.split()}
    found = succeeds(["git", "grep", "-noE", "`make [a-z][a-z-]*", "--", "*.md", "*.py", "*.rs", "*.toml", ":!CHANGELOG.md"], cwd=CLONE)
    unknown = [line for line in found.splitlines() if line.rpartition(" ")[2] not in targets]
    assert not unknown, "\n".join(unknown)
    files = list(CLONE.glob("**/test_*.py"))
    suites, programs = {path.stem.removeprefix("test_") for path in files} | {"NAME"}, {path.stem for path in CLONE.glob("tests/*/*.py")}
    functions = set(re.findall(r"\bdef test_(\w+)", "\n".join(path.read_text() for path in files)))
    for text in sorted({found.text for found in commands() if re.match(r"make [a-z]", found.text)}):
        succeeds(["bash", "-c", f"make -n {text[5:]}"], cwd=CLONE)
        for name in re.findall(r"SUITE=([\w,]+)", text):
            assert set(name.split(",")) <= suites, f"{text}: there is no such suite"
        for name in re.findall(r"ONLY='?(?:test_)?(\w+)", text):
            assert name == "NAME" or name in suites | programs | functions, f"{text}: there is no such test"


def test_readme():
    """README is short, and its sizes are those of the sources, within a tenth."""
    readme = (CLONE / "README.md").read_text()
    assert len(readme.splitlines()) <= 120
    shown = [
        (lines, int(succeeds(command, shell=True, cwd=CLONE)))
        for command, lines in re.findall(r"^\$ (git grep .*)\n(\d+)$", readme, re.MULTILINE)
    ]
    rows = re.findall(r"^\| ((?:`\w+(?:\.rs|/)`(?:, )?)+) \| ([\d,]+) \| ([\d,]+) \|", readme, re.MULTILINE)
    assert (len(shown), len(rows)) == (2, 3)
    for folders, lines, blocks in rows:
        paths = [CLONE / "efa_rs" / folder for folder in re.findall(r"`(.*?)`", folders)]
        files = [file for path in paths for file in (path.glob("**/*.rs") if path.is_dir() else [path]) if "generated" not in file.name]
        text = "".join(file.read_text() for file in files)
        shown += [(lines, text.count("\n")), (blocks, re.sub(r"//.*", "", text).count("unsafe {"))]
    wrong = [pair for pair in shown if abs(int(pair[0].replace(",", "")) - pair[1]) > pair[1] / 10]
    assert not wrong, f"the README has the first number, and the sources the second: {wrong}"


# The package of each row in the table of versions.
PACKAGES = {
    **{"rdma-core": "rdma-core", "libfabric": "libfabric-bin", "perftest": "perftest", "UCX": "libucx0", "Open MPI": "openmpi-bin"},
    "QEMU, for emulated devices": "qemu-system-x86",
}


def test_versions():
    """The table of versions has the versions of the guests' packages."""
    page = (CLONE / "Documentation/programs.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+) \| (\d+(?:\.\d+)+(?: or newer)?) \|", page, re.MULTILINE))
    assert rows.pop("Linux") == (CLONE / "tools/series").read_text().split("\n", 1)[0].split()[0] or "Linux" not in rows
    assert set(rows) == set(PACKAGES)
    said = succeeds(["dpkg-query", "-W", *PACKAGES.values()])
    installed = {
        package.partition(":")[0]: re.sub(r"^\d+:", "", version) for package, version in (line.split() for line in said.splitlines())
    }
    for name, version in rows.items():
        numbers, there = version.removesuffix(" or newer"), installed[PACKAGES[name]]
        if numbers == version:
            assert re.match(rf"{re.escape(version)}(?!\d)", there), f"{name}: {there}"
        else:
            assert [int(one) for one in re.findall(r"\d+", there)[:2]] >= [int(one) for one in numbers.split(".")], f"{name}: {there}"


def test_ssh(guests):
    """Commands that are run on the host while two guests stay."""
    for command, how in of_section("ssh"):
        text = re.sub(r"^tools/vm ctl", f"{result('emulator')}/efa-emu ctl {guests.folder}/control", command.text)
        runs(command, how, text.replace("-F FILE", f"-F {guests.folder}/config"))


def test_guest(guests, case, ktap):
    """Commands that need a device, in a guest, after those that need a working one: the last one removes the module."""
    listed = [[command.place, command.text, how] for command, how in of_section("guest")]
    (guests.folder / "shared/commands.json").write_text(json.dumps(listed))
    ktap(guests.tried(f"EFA_CASES='{case}' {GUIDES}/guest.py /run/efa-rs/commands.json"))


def test_vm(options, tmp_path):
    """Commands that boot guests of their own. An empty folder is in place of the reader's build."""
    assert options["driver"] == "rust"
    for command, how in of_section("vm"):
        runs(command, how, re.sub(r"^tools/vm", "python3 tools/vm.py", re.sub(r"~/[\w/]+", str(tmp_path), command.text)))


# A device that a guide leaves out, and commands that end an emulator once it serves. Its exit status is that of the script.
DEVICE = "--device socket=efa.sock"
SERVE = """ & emulator=$!
until [ -S efa.sock ]; do kill -0 $emulator || { wait $emulator; exit; }; sleep 0.1; done
"""
STOP = """
kill $emulator
wait $emulator
"""
# A second emulator, for a command that joins one.
LISTEN = """efa-emu --device number=1,socket=other.sock --listen 127.0.0.1:4791 & other=$!
trap 'kill $other' EXIT
until [ -S other.sock ]; do kill -0 $other || exit; sleep 0.1; done
"""
# Names in the guides, and their replacements in the run.
HERE = {"socket=PATH": "socket=efa.sock", "efa1.sock": "efa.sock", "efa2.sock": "efa.sock", "192.0.2.1": "127.0.0.1"}


def runnable(text):
    """Returns the script that runs a guide's command of the emulator, with the parts that the guide omits."""
    if text.startswith("--"):
        text = f"efa-emu {text}"
    if text.startswith("efa-emu --fabric"):
        text += f" {DEVICE}"
    for name, here in (HERE | {"efa-emu ...": f"efa-emu {DEVICE}"}).items():
        text = text.replace(name, here)
    if text.startswith("efa-emu ctl"):
        text = f"efa-emu {DEVICE} --control {text.split()[2]}{SERVE}{text} || exit{STOP}"
    elif "--device" in text:
        text = (LISTEN if "--join" in text else "") + text.removesuffix(" &") + SERVE + STOP
    return text.replace("/run/efa-emu/lab/", "")


def test_host(options, tmp_path):
    """Commands of the emulator's program, in a folder of their own."""
    assert options["driver"] == "rust"
    shutil.copy(result("emulator") / "efa-emu", tmp_path)
    for command, how in of_section("host"):
        runs(command, how, f"cd {tmp_path}; PATH={tmp_path}:$PATH\n{runnable(command.text)}")
