# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Options of vm that are passed to the emulator unchanged."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support  # noqa: F401
from efa_tools import cli, guest


def served(options):
    """Returns the command line of the emulator in a run with these options."""
    with tempfile.TemporaryDirectory() as folder:
        run = mock.Mock(options=options, seed=1, folder=Path(folder))
        guest.Run.serve_devices(run)
    return run.start.call_args.args[1]


def given(*words):
    """Returns the options that vm parses from these words."""
    run = mock.patch.object(guest, "execute_until_interrupted")
    with mock.patch("sys.argv", ["vm", *words]), mock.patch.object(guest, "prepare") as prepare, run:
        cli.boot()
    return prepare.call_args.args[0]


class EmulatorOption(unittest.TestCase):
    def test_guesses_are_checked_in_suites_only(self):
        suite = served(guest.Options("true", devices=["profile=efa3"]))
        self.assertIn(f"strict=guesses,profile=efa3,socket={guest.RUN}/efa0.0", suite)
        self.assertIn(f"profile=efa3,socket={guest.RUN}/efa0.0", served(given("--device", "profile=efa3", "true")))

    def test_words_come_last_and_in_order(self):
        words = ["--emulator-option=--capture=efa.pcapng", "--emulator-option=-v", "--device", "profile=efa3", "true"]
        options = given(*words)
        self.assertEqual(options.emulator_options, ["--capture=efa.pcapng", "-v"])
        command = served(options)
        self.assertEqual(command[-2:], ["--capture=efa.pcapng", "-v"])


if __name__ == "__main__":
    unittest.main()
