# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Choice of the programs that run on the debug kernel, and of the guest for each."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support
from support import CLONE
from efa_tools import check, guest, qemu
from efa_tools.tally import Tally


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("debug", "kselftest"):
            (self.folder / name).mkdir()
        shutil.copy(CLONE / "tests/debug/run.sh", self.folder / "debug")
        shutil.copy(CLONE / "tests/kselftest/Makefile", self.folder / "kselftest")
        (self.folder / "kselftest" / "run.sh").write_text('#!/bin/sh\necho "$@"\n')
        (self.folder / "kselftest" / "run.sh").chmod(0o755)

    def programs(self, *arguments):
        done = subprocess.run([self.folder / "debug/run.sh", *arguments], capture_output=True, text=True, check=True)
        return done.stdout.split()

    def test_each_is_in_one_of_two_guests_and_what_looks_at_all_in_both(self):
        at_once, others, every = self.programs("--at-once"), self.programs("--others"), self.programs()
        self.assertEqual(set(at_once) & set(others), {"../debug/kernel.py"})
        self.assertEqual(set(at_once) | set(others), set(every))
        self.assertEqual({chosen[-1] for chosen in (at_once, others, every)}, {"../debug/kernel.py"})
        self.assertIn("../debug/stress.py", at_once)
        self.assertIn("../debug/faults.py", others)

    def test_those_that_are_named(self):
        self.assertEqual(self.programs("limits.py", "../debug/kernel.py"), ["limits.py", "../debug/kernel.py"])


class Threads(support.TemporaryCache):
    def machine(self, accelerator, threads):
        command = qemu.machine("kernel", accelerator, "1G", 2, "", threads=threads)
        return command[command.index("-accel") + 1]

    def test_emulated_cpus_take_turns_in_one_thread(self):
        self.assertEqual(self.machine("tcg", False), "tcg,thread=single")
        self.assertEqual(self.machine("tcg", True), "tcg")
        self.assertEqual(self.machine("kvm", False), "kvm")

    def test_things_are_done_at_once_where_that_is_the_subject(self):
        in_guest = self.patch(mock.patch("efa_tools.suite.in_guest", return_value=(Tally(), None)))
        for job in check.check_debug("rust")[:2]:
            job.run()
        called = {call.args[1].split()[-1]: call.kwargs["threads"] for call in in_guest.call_args_list}
        self.assertEqual(called, {"--others": False, "--at-once": True})

    def test_by_default_they_take_turns(self):
        self.assertFalse(guest.Options("true").threads)


if __name__ == "__main__":
    unittest.main()
