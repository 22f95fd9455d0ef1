# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Chooses kernels of a stand-in for an archive."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from conftest import CLONE

MINUTES = 1
TIER = "check"

# A stand-in for apt-cache. Its archive is a file, of which each line has a package and its version.
APT_CACHE = """#!/bin/sh
case $1 in
pkgnames) cut -d ' ' -f 1 "$ARCHIVE" | grep -F "$2" | sort -u ;;
madison) sed -n "s/^$2 \\(.*\\)/ $2 | \\1 | an archive/p" "$ARCHIVE" ;;
esac
"""
PARTS = ("headers", "modules", "image")


def packages(release, version, flavours=("cloud-amd64", "amd64"), parts=PARTS):
    return [f"linux-{part}-{release}-{flavour} {version}" for flavour in flavours for part in parts]


class ChooseKernel(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "apt-cache").write_text(APT_CACHE)
        (self.folder / "apt-cache").chmod(0o755)

    def choose(self, *lines, flavours=("cloud-amd64", "amd64")):
        archive = self.folder / "archive"
        archive.write_text("".join(f"{line}\n" for line in lines))
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "ARCHIVE": str(archive)}
        command = [CLONE / "tools/choose-kernel", "9.8", " ".join(PARTS), *flavours]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    def is_chosen(self, result, release, version, flavours=("cloud-amd64", "amd64")):
        self.assertEqual(result.returncode, 0, result.stderr)
        wanted = [line.replace(" ", "=") for line in packages(release, version, flavours)]
        self.assertEqual(sorted(result.stdout.split()), sorted([f"linux-source-9.8={version}", *wanted]))
        self.assertIn(f"Linux 9.8 is {release} ({version}).", result.stderr)

    def test_the_newest_is_taken(self):
        old, new, other = packages("9.8.9+deb13", "9.8.9-1"), packages("9.8.12+deb13.1", "9.8.12-2"), packages("9.9.1+deb13", "9.9.1-1")
        sources = "linux-source-9.8 9.8.12-2", "linux-source-9.8 9.8.9-1", "linux-source-9.9 9.9.1-1"
        self.is_chosen(self.choose(*sources, *old, *new, *other), "9.8.12+deb13.1", "9.8.12-2")

    def test_one_that_is_not_complete_is_passed_over(self):
        old, new = packages("9.8.9+deb13", "9.8.9-1"), packages("9.8.12+deb13", "9.8.12-1")
        sources = ["linux-source-9.8 9.8.12-1", "linux-source-9.8 9.8.9-1"]
        for missing in (sources[0], *new[1:]):
            with self.subTest(missing):
                result = self.choose(*(line for line in (*sources, *old, *new) if line != missing))
                self.is_chosen(result, "9.8.9+deb13", "9.8.9-1")
                what = missing.split()[0]
                self.assertIn(f"Linux 9.8.12+deb13 is not taken, as the archive has no {what} of version 9.8.12-1.", result.stderr)

    def test_another_version_of_a_package_does_not_do(self):
        lines = packages("9.8.9+deb13", "9.8.9-1")
        lines[-1] = lines[-1].replace("9.8.9-1", "9.8.9-2")
        self.fails_well(self.choose("linux-source-9.8 9.8.9-1", *lines))

    def test_a_flavour_is_not_part_of_a_release(self):
        lines = packages("9.8.9+deb13", "9.8.9-1")
        self.is_chosen(self.choose("linux-source-9.8 9.8.9-1", *lines, flavours=["amd64"]), "9.8.9+deb13", "9.8.9-1", ["amd64"])

    def test_a_series_that_is_gone(self):
        self.fails_well(self.choose("linux-source-9.9 9.9.1-1", *packages("9.9.1+deb13", "9.9.1-1")))
        # A discontinued series leaves binaries without source and headers.
        self.fails_well(self.choose(*packages("9.8.9+deb13", "9.8.9-1", parts=["modules", "image"])))

    def fails_well(self, result):
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(result.stderr, "no kernel of Linux 9.8 that is complete: if Debian no longer ships the series, name another one")
