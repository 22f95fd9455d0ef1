# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import re
import subprocess
import unittest

from support import CLONE, tool

TEXT = (CLONE / "Makefile").read_text()


class Help(unittest.TestCase):
    def setUp(self):
        done = subprocess.run(["make", "-C", CLONE, "--no-print-directory", "help"], capture_output=True, text=True, check=True)
        self.lines = done.stdout.splitlines()

    def test_each_target_has_a_line_and_no_other(self):
        targets = {name for line in re.findall(r"^\.PHONY: (.*)$", TEXT, re.MULTILINE) for name in line.split()}
        shown = [line.split()[1] for line in self.lines if line.startswith("  make ")]
        self.assertEqual(sorted(shown), sorted(targets - {"help"}))

    def test_targets_are_in_groups(self):
        heads = [line.split(":")[0] for line in self.lines if re.match(r"[A-Z][a-z]", line)]
        self.assertEqual(list(dict.fromkeys(heads)), ["Try it", "Build", "Test", "Measure", "Package"])

    def test_each_variable_of_a_target_is_explained(self):
        used = {name for line in self.lines for name in re.findall(r"\b([A-Z]+)=", line)}
        explained = {line.split()[0] for line in self.lines if re.match(r"[A-Z]{2,} ", line)}
        self.assertEqual(used - explained, set())

    def test_each_rule_is_a_target_of_the_kind(self):
        rules = {name for line in re.findall(r"^([a-z][^:=\n]*):(?!=)", TEXT, re.MULTILINE) for name in line.split()}
        phony = {name for line in re.findall(r"^\.PHONY: (.*)$", TEXT, re.MULTILINE) for name in line.split()}
        self.assertEqual(rules, phony)

    def test_each_suite_has_a_target(self):
        targets = [line.split()[1] for line in self.lines if line.startswith("  make ") and "removes" not in line]
        done = subprocess.run(["make", "-C", CLONE, "--dry-run", *targets], capture_output=True, text=True, check=True)
        suites = re.findall(r"^    (\S+)", tool("check", "--help").stdout, re.MULTILINE)
        self.assertEqual(set(suites), set(re.findall(r"^tools/check (\S+)", done.stdout, re.MULTILINE)))


if __name__ == "__main__":
    unittest.main()
