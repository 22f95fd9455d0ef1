# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests of the search for the guides' commands, and of the comparison of their output. tests/guides runs the commands."""

import os
import re
import subprocess
import tempfile
import unittest

import support
from efa_tools import guides, toolroot

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
{"ok":{"protocol":1,...}}
  a diagram
```
| command | what |
|---|---|
| `one \\| two`, or `three` | `no command` |

| when | what |
|---|---|
| `no command` | `{"command":"clear"}` |

Run `apt update`, and look at `apt` and `a page`.
"""


class Commands(unittest.TestCase):
    def test_all_are_found(self):
        found = [(command.text, command.output) for command in guides.of_a_page("page", PAGE)]
        wanted = [
            ("first -a", []),
            ("second '\n    over lines'", []),
            ("third \\\n  and on", []),
            ("as root", ["its output"]),
            ("as a user", []),
            ('{"command":"hello"}', ['{"ok":{"protocol":1,...}}']),
            ("one | two", []),
            ("three", []),
            ('{"command":"clear"}', []),
            ("apt update", []),
        ]
        self.assertEqual(found, wanted)

    def test_a_command_without_an_entry_is_a_problem(self):
        self.assertEqual(
            guides.problems([guides.Command("page:1", "new")], {}), ["page:1: no entry in tests/guides/commands.toml has: new"]
        )

    def test_an_entry_without_a_command_is_a_problem(self):
        (problem,) = guides.problems([], {"missing": {"a GPU": ["old *"]}})
        self.assertIn("no guide has this command of [missing]: old *", problem)

    def test_the_entry_that_says_most_counts(self):
        sections = {"guest": {"rdma *": ""}, "missing": {"a GPU": ["rdma link *"]}}
        self.assertEqual(guides.classified(guides.Command("page:1", "rdma link show"), sections), ("missing", "rdma link *", "a GPU"))

    def test_make_accepts_its_commands(self):
        targets = {found.text for found in guides.commands() if re.match(r"make [a-z]", found.text)}
        for text in sorted(targets):
            with self.subTest(text):
                result = subprocess.run(
                    ["bash", "-c", f"make -n {text.removeprefix('make ')}"], cwd=support.CLONE, capture_output=True, check=False
                )
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_suites_that_run_commands_exist(self):
        for why in guides.table()["elsewhere"]:
            for target in re.findall(r"make ([a-z][\w-]+)", why):
                with self.subTest(why):
                    result = subprocess.run(["make", "-n", target], cwd=support.CLONE, capture_output=True, check=False)
                    self.assertEqual(result.returncode, 0, result.stderr)


# The package of each row in the table of versions.
PACKAGES = {
    "rdma-core": "rdma-core",
    "libfabric": "libfabric-bin",
    "perftest": "perftest",
    "UCX": "libucx0",
    "Open MPI": "openmpi-bin",
    "QEMU, for emulated devices": "qemu-system-x86",
}


def numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


class Versions(unittest.TestCase):
    """The table of versions has the versions of the guests' packages."""

    def test_they_are_those_of_the_toolroot(self):
        page = (support.CLONE / "Documentation" / "programs.md").read_text()
        rows = dict(re.findall(r"^\| ([^|]+) \| (\d+(?:\.\d+)+(?: or newer)?) \|", page, re.MULTILINE))
        self.assertEqual(rows.pop("Linux"), toolroot.SERIES)
        self.assertEqual(set(rows), set(PACKAGES))
        installed = dict(line.split() for line in toolroot.versions_in(toolroot.root(), *PACKAGES.values()))
        for name, version in rows.items():
            with self.subTest(name):
                there = re.sub(r"^\d+:", "", installed[PACKAGES[name]])
                if oldest := re.fullmatch(r"([\d.]+) or newer", version):
                    self.assertGreaterEqual(numbers(there), numbers(oldest[1]))
                else:
                    self.assertRegex(there, rf"^{re.escape(version)}(?!\d)")


class WithoutADevice(unittest.TestCase):
    """A guide's command prints one line about the requirement that a machine lacks."""

    COMMANDS = (
        ("tools/vm exec -- fi_info -p efa", "No guests with an agent run: start some"),
        ("tools/vm ctl '{}'", "No guests with an agent run: start some"),
        ("XDG_CACHE_HOME=/proc/none tools/vm true", "The cache folder /proc/none.* cannot be made .*: set XDG_CACHE_HOME"),
        ("tests/kselftest/emu '{}'", "There is no control port .*: this is no guest with emulated devices"),
        ("tools/guest/monitor.py pull 0", "There is no port .*: start this guest with tools/vm --hotplug"),
        ("tools/rust-kit --kernel 9.9.9 --output /nowhere", "linux-headers-9.9.9"),
        ("PATH= $(command -v python3) emulator/lab/efa-emu-lab --check IMAGE.qcow2", "There is no program qemu-system-x86_64: install"),
        ("make -s deb BUGS=nowhere", "BUGS=nowhere is not an address"),
        ("GIT_DIR=/nowhere make -s dist", "is no clone that git can read: clone the repository"),
        ("EFA_PATIENCE=x tools/vm true", "EFA_PATIENCE is 'x': set it to a number of seconds"),
    )

    def test_each_says_what_it_lacks(self):
        with tempfile.TemporaryDirectory() as cache:
            for text, wanted in self.COMMANDS:
                with self.subTest(text):
                    environment = {**os.environ, "XDG_CACHE_HOME": cache}
                    result = subprocess.run(
                        ["bash", "-c", text], cwd=support.CLONE, env=environment, capture_output=True, text=True, check=False
                    )
                    self.assertNotEqual(result.returncode, 0)
                    # make prints make[1] if another make has started this test.
                    lines = [line for line in result.stderr.splitlines() if not re.match(r"==>|make(\[\d+\])?: ", line)]
                    self.assertEqual(len(lines), 1, lines)
                    self.assertRegex(lines[0], wanted)


class Outputs(unittest.TestCase):
    def test_numbers_may_differ(self):
        self.assertEqual(guides.differs(["1: dev0: fw 0x01 ..."], "2: dev1: fw 0x23 and more"), "")
        self.assertIn("is like: 1: dev0", guides.differs(["1: dev0: fw 0x01 ..."], "2: dev1: other"))

    def test_values_of_names_may_differ(self):
        self.assertEqual(guides.differs(["state: up"], "state: failed"), "")
        self.assertIn("state: up", guides.differs(["state: up"], "condition: up"))

    def test_a_reply_has_the_names_that_are_shown(self):
        shown = '{"ok":{"paths":[{"lost":0},...],"settings":{...}}}'
        self.assertEqual(guides.differs([shown], '{"ok":{"paths":[{"lost":5}],"settings":{"loss":1}}}'), "")
        self.assertIn(".ok.paths[].lost", guides.differs([shown], '{"ok":{"paths":[{}],"settings":{}}}'))

    def test_a_reply_that_is_shown_whole_has_no_other_names(self):
        self.assertIn("more is not shown", guides.differs(['{"ok":{"rule":1}}'], '{"ok":{"rule":2,"more":3}}'))


if __name__ == "__main__":
    unittest.main()
