# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests of the search for a newer kernel."""

import subprocess
import unittest
from unittest import mock

import support
from efa_tools import canary
from efa_tools.failure import Failure

# Output of apt-cache madison for an archive. The version in experimental is a parameter.
MADISON = """linux-headers-cloud-amd64 | 7.3.4-1~bpo13+1 | http://packages.invalid/debian trixie-backports/main amd64 Packages
linux-headers-cloud-amd64 | {} | http://packages.invalid/debian experimental/main amd64 Packages
linux-headers-cloud-amd64 | 7.2.13-1 | http://packages.invalid/debian sid/main amd64 Packages"""


class Canary(support.TemporaryCache):
    def look(self, experimental, suite=""):
        """Returns the result of canary.look() for an archive with that kernel in experimental."""
        programs = {
            "apt-cache": f"echo '{MADISON.format(experimental)}'",
            "dpkg-query": "echo 7.3.4-1~bpo13+1",
            "dpkg": """[ "$3" = gt ] && [ "$2" != "$4" ] && [ "$(printf '%s\\n' "$2" "$4" | sort -V | tail -n 1)" = "$2" ]""",
        }
        for name, script in programs.items():
            (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.folder / name).chmod(0o755)
        self.patch(mock.patch("efa_tools.canary.SOURCES", "set -eu"))
        self.patch(mock.patch("efa_tools.canary.writable"))
        self.patch(mock.patch("efa_tools.toolroot.kernel", return_value="7.3.4+deb13-cloud-amd64"))
        self.patch(mock.patch("efa_tools.namespace.enter", lambda root, command: ["env", f"PATH={self.folder}:/usr/bin:/bin", *command]))
        self.patch(mock.patch("efa_tools.namespace.remove"))
        return canary.look(suite)

    def test_a_newer_one(self):
        self.assertEqual(self.look("7.4~rc1-1~exp1"), ("7.3.4-1~bpo13+1", "7.4~rc1-1~exp1", True))

    def test_ours_is_the_newest(self):
        self.assertEqual(self.look("7.3~rc7-1~exp1"), ("7.3.4-1~bpo13+1", "7.3.4-1~bpo13+1", False))

    def test_that_of_a_suite(self):
        self.assertEqual(self.look("7.3~rc7-1~exp1", "experimental"), ("7.3.4-1~bpo13+1", "7.3~rc7-1~exp1", False))

    def test_a_suite_that_has_none(self):
        with self.assertRaisesRegex(Failure, "There is no kernel in bullseye"):
            self.look("7.4~rc1-1~exp1", "bullseye")

    def run_with(self, newer, suite=""):
        self.patch(mock.patch("efa_tools.canary.look", return_value=("7.3.4", "7.4~rc1-1~exp1", newer)))
        (self.folder / "layer/usr/src/linux-headers-7.4-cloud-amd64").mkdir(parents=True)
        self.patch(mock.patch("efa_tools.canary.install", return_value=self.folder))
        return self.patch(mock.patch("efa_tools.canary.build_module")), canary.run(suite)

    def test_without_a_newer_one_nothing_is_built(self):
        build, tally = self.run_with(newer=False)
        self.assertEqual((str(tally), build.called), ("1 passed, 0 failed, 0 skipped", False))
        self.assertEqual(tally.cases[0].name, "the toolroot's kernel is the newest that Debian has")

    def test_the_module_is_built_for_a_newer_one(self):
        build, tally = self.run_with(newer=True)
        self.assertEqual((str(tally), build.call_args.args), ("1 passed, 0 failed, 0 skipped", (self.folder, "7.4-cloud-amd64")))

    def test_one_of_a_suite_need_not_be_newer(self):
        build, _ = self.run_with(newer=False, suite="experimental")
        self.assertTrue(build.called)

    def test_scripts_are_well_formed(self):
        scripts = canary.LOOK.format(flavour="f", ours="o", suite="s"), canary.INSTALL.format(version="1", flavour="f", compilers="sid")
        for script in (canary.SOURCES, *scripts):
            self.assertEqual(subprocess.run(["sh", "-n", "-c", script], check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()
