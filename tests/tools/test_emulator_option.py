# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Options of vm that are passed to the emulator as they are."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support  # noqa: F401
from efa_tools import cli, guest


class EmulatorOption(unittest.TestCase):
    def test_words_come_last_and_in_order(self):
        words = ["--emulator-option=--capture=efa.pcapng", "--emulator-option=-v", "--device", "profile=efa3", "true"]
        run = mock.patch.object(guest, "execute_until_interrupted")
        with mock.patch("sys.argv", ["vm", *words]), mock.patch.object(guest, "prepare") as prepare, run:
            cli.boot()
        options = prepare.call_args.args[0]
        self.assertEqual(options.emulator_options, ["--capture=efa.pcapng", "-v"])
        with tempfile.TemporaryDirectory() as folder:
            run = mock.Mock(options=options, seed=1, folder=Path(folder))
            guest.Run.serve_devices(run)
        command = run.start.call_args.args[1]
        self.assertEqual(command[-2:], ["--capture=efa.pcapng", "-v"])


if __name__ == "__main__":
    unittest.main()
