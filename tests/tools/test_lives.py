# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support  # noqa: F401
from efa_tools import cache, lives
from efa_tools.failure import Failure

OUTPUT = """\
failed: seed 17: panicked at driver/src/rig.rs:216:9:
16 accesses: ["the device writes 8 bytes at 0x123463a038"]
7874 lives, 394 per second, 1 failed
"""


class Output(unittest.TestCase):
    def test_lives_that_fail_are_named(self):
        self.assertEqual(lives.FAILED.findall(OUTPUT), ["seed 17: panicked at driver/src/rig.rs:216:9:"])

    def test_how_many_lives_there_were(self):
        self.assertEqual(lives.LIVES.search(OUTPUT)[1], "7874 lives, 394 per second")

    def test_executions_of_a_fuzzer(self):
        text = "INFO: Seed: 1\n#0: cov: 10 ft: 10\n#1200: cov: 12 ft: 40 corp: 30 exec/s: 300 oom/timeout/crash: 0/0/1\nDONE\n"
        self.assertEqual(lives.executed(text), 1200)
        with self.assertRaises(Failure):
            lives.executed("INFO: Seed: 1\n")


class Corpus(unittest.TestCase):
    def test_it_is_unpacked_and_packed(self):
        with tempfile.TemporaryDirectory() as clone, tempfile.TemporaryDirectory() as folder:
            corpus = Path(clone, lives.CORPUS)
            corpus.parent.mkdir(parents=True)
            corpus.write_text("00ff\n41\n")
            Path(folder, "found").write_bytes(b"x")
            Path(folder, "empty").touch()
            with mock.patch.object(cache, "CLONE", Path(clone)):
                lives.unpack(Path(folder))
            lives.pack(Path(folder), corpus)
            self.assertEqual(corpus.read_text(), "00ff\n41\n78\n")


if __name__ == "__main__":
    unittest.main()
