# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import os
import tomllib
import unittest
from pathlib import Path
from unittest import mock

import support
from efa_tools import cache, layer, linters, source_checks, steps
from efa_tools.failure import Failure


class Files(support.TemporaryCache):
    def test_a_script_is_known_by_its_first_line(self):
        self.patch(mock.patch.object(cache, "CLONE", self.folder))
        for line, wanted in (
            ("#!/bin/sh", "sh"),
            ("#! /usr/bin/env bash", "bash"),
            ("#!/usr/bin/env python3", "python3"),
            ("#!/usr/sbin/nft", None),
            ("/bin/sh", None),
            ("", None),
        ):
            (self.folder / "script").write_text(f"{line}\n")
            self.assertEqual(source_checks.interpreter("script"), wanted, line)
        (self.folder / "script").write_bytes(b"\x7fELF\xff\xfe")
        self.assertIsNone(source_checks.interpreter("script"))

    def test_ours_are_found_whatever_they_are_called(self):
        self.assertLess({"tools/check", "tools/guest/ssh", "tools/lib/draw.py", "emulator/lab/efa-emu-lab"}, set(source_checks.python()))
        wanted = {"dkms.conf", "dkms/build", "debian/efa-rs-dkms.postinst", "tools/enter.sh", *source_checks.RECIPES}
        self.assertLess(wanted, set(source_checks.shell()))

    def test_mypy_reads_folders_that_there_are(self):
        settings = tomllib.loads((support.CLONE / "pyproject.toml").read_text())["tool"]["mypy"]
        self.assertEqual([name for name in settings["files"] + settings["mypy_path"] if not (support.CLONE / name).is_dir()], [])


class Program(support.TemporaryCache):
    """Linters, replaced by a shell script."""

    def setUp(self):
        super().setUp()
        self.entered = self.patch(mock.patch.object(layer.Layer, "enter", side_effect=self.enter))
        self.script = "true"

    def enter(self, command, binds=(), environment=None):
        # The folder with the names does not exist any more after the run.
        self.names = [(Path(source) / "names").read_text() for source, target, _ in binds if target == linters.NAMES]
        return ["sh", "-c", self.script]

    def test_it_gets_the_names_in_a_file(self):
        with steps.step("shellcheck") as log:
            linters.shellcheck(log, ["a.sh", "b.sh"], "--exclude=SC1")
        self.assertEqual(self.names, ["a.sh\nb.sh\n"])
        (command, *_), _ = self.entered.call_args
        self.assertEqual(command[-3:], ["shellcheck", "--format=gcc", "--exclude=SC1"])

    def test_what_it_finds_is_told(self):
        self.script = "echo tools/x.py:1:1: F401 unused; exit 123"
        tally = source_checks.ruff_check()
        self.assertEqual((tally.passed, tally.failures), (0, ["ruff check"]))
        self.script = "true"
        self.assertEqual(source_checks.ruff_check().passed, 1)

    def test_ruff_is_installed_once(self):
        self.assertEqual(linters.installed(), self.folder / "efa-rs" / "ruff" / linters.RUFF)
        linters.installed()
        self.assertEqual(self.entered.call_count, 1)
        requirements = (linters.installed() / "requirements").read_text()
        self.assertEqual(requirements, f"ruff=={linters.RUFF} --hash=sha256:{linters.SHA256}\n")
        (command, binds, environment), _ = self.entered.call_args
        self.assertIn("--require-hashes", command)
        self.assertEqual(binds[0][1:], (linters.INSTALLED, "rw"))
        self.assertEqual(environment["PIP_CONFIG_FILE"], linters.SETTINGS)

    def test_an_index_that_fails_is_one_sentence(self):
        self.script = "echo 'ERROR: No matching distribution found for ruff==0'; exit 1"
        with self.assertRaisesRegex(Failure, "^Installing ruff failed, as the Python package index did not deliver"):
            linters.installed()
        self.assertFalse((self.folder / "efa-rs" / "ruff" / linters.RUFF).exists())

    def test_pip_is_set_up_as_on_the_host(self):
        home = self.folder / "home"
        (home / ".config" / "pip").mkdir(parents=True)
        (home / ".config" / "pip" / "pip.conf").touch()
        (self.folder / "named.conf").touch()
        self.patch(mock.patch.dict(os.environ, {"HOME": str(home)}))
        os.environ.pop("PIP_CONFIG_FILE", None)
        self.assertEqual(linters.settings(), [(home / ".config/pip/pip.conf", linters.SETTINGS, "ro")])
        os.environ["PIP_CONFIG_FILE"] = str(self.folder / "named.conf")
        self.assertEqual(linters.settings(), [(self.folder / "named.conf", linters.SETTINGS, "ro")])


class Checkpatch(support.TemporaryCache):
    """All findings of checkpatch are failures, except for the listed ones."""

    SAID = "a.rs:1: CHECK:LONG_LINE: line length of 101 exceeds 100 columns\nb/c.h:2: WARNING:MSLEEP: msleep < 20ms\n"

    def checked(self, *not_followed):
        self.patch(mock.patch.object(source_checks, "NOT_FOLLOWED", dict.fromkeys(not_followed, "A reason.")))
        self.patch(mock.patch.object(linters, "checkpatch", return_value=list(linters.FOUND.finditer(self.SAID))))
        return source_checks.checkpatch()

    def test_what_is_listed_is_not_followed(self):
        self.assertEqual(self.checked(("*.rs", "LONG_LINE"), ("b/*", "MSLEEP")).passed, 1)

    def test_what_is_not_listed_is_a_failure(self):
        for listed in ((), (("*.rs", "LONG_LINE"),), (("*.rs", "LONG_LINE"), ("*.rs", "MSLEEP"))):
            self.assertEqual(self.checked(*listed).failures, ["checkpatch"])

    def test_what_is_listed_in_vain_is_a_failure(self):
        self.assertEqual(self.checked(("*", "LONG_LINE"), ("*", "MSLEEP"), ("*", "TYPO")).failures, ["checkpatch"])


if __name__ == "__main__":
    unittest.main()
