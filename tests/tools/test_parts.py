# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""One program, or one test case, of what is run."""

import os
import subprocess
import sys
import unittest
from unittest import mock

import support
from efa_tools import abi, check, suite
from efa_tools.failure import Failure
from efa_tools.tally import Tally

PROGRAM = """
from selftest import Suite
suite = Suite()
for name in ("create_qp: one", "create_qp: two", "create_cq: one"):
    suite.add(name, lambda: None, needs_emulator=False)
suite.run()
"""


class Selftest(unittest.TestCase):
    def run_cases(self, pattern):
        environment = {
            **os.environ,
            "PYTHONPATH": str(suite.KSELFTEST),
            "EFA_CASES": pattern,
            "EFA_DRIVER": "rust",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout.splitlines()

    def test_all_of_them(self):
        status, lines = self.run_cases("")
        self.assertEqual((status, lines[1]), (0, "1..3"))

    def test_some(self):
        status, lines = self.run_cases("create_qp*")
        self.assertEqual((status, lines[1:4]), (0, ["1..2", "ok 1 create_qp: one", "ok 2 create_qp: two"]))

    def test_none(self):
        status, lines = self.run_cases("destroy*")
        self.assertEqual((status, lines[1]), (4, "1..0 # SKIP no test case is named destroy*"))


class Kselftest(support.TemporaryCache):
    def command(self, program, case=""):
        guest = self.patch(mock.patch("efa_tools.suite.in_guest", return_value=(Tally(), None)))
        (job,) = check.kselftests("rust", "cloud-amd64", program, case)
        job.run()
        return guest.call_args.args[1], guest.call_args.kwargs["append"]

    def test_a_program_and_what_the_kernel_says_of_it(self):
        self.assertEqual(self.command("limits"), ("/efa-rs/tests/kselftest/run.sh limits.py dmesg.sh", ""))

    def test_several(self):
        self.assertEqual(self.command("limits,probe.sh")[0], "/efa-rs/tests/kselftest/run.sh limits.py probe.sh dmesg.sh")

    def test_a_case_of_it(self):
        expected = "EFA_CASES='create_qp: it'\"'\"'s *' /efa-rs/tests/kselftest/run.sh objects_faults.py"
        self.assertEqual(self.command("objects_faults", "create_qp: it's *")[0], expected)

    def test_a_case_of_any(self):
        command = self.command("", "*refused*")[0]
        self.assertIn("limits.py objects_faults.py", command)
        self.assertNotIn(".sh ", command.partition("run.sh")[2])

    def test_bounce_buffers_need_a_kernel_that_has_them(self):
        self.assertEqual(self.command("bounce")[1], "swiotlb=force")

    def test_all(self):
        self.assertEqual(len(check.kselftests("rust", "cloud-amd64")), 2)

    def test_what_there_is_not(self):
        for program, case, expected in (
            ("limit", "", "There is no program limit in tests/kselftest: choose of .*limits"),
            ("run", "", "There is no program run "),
            ("probe", "x*", "in shell rely on each other"),
        ):
            with self.assertRaisesRegex(Failure, expected):
                suite.kselftest_part("rust", "cloud-amd64", program, case)


class Interop(support.TemporaryCache):
    def parts(self, **options):
        between = self.patch(mock.patch("efa_tools.suite.between_guests", return_value=Tally()))
        suite.interop("rust", "cloud-amd64", **options)
        return [(call.args[1], call.args[2], call.args[6]) for call in between.call_args_list]

    def test_a_part_and_its_cases(self):
        self.assertEqual(self.parts(program="perftest", case="ib_send*"), [(2, ["perftest"], "EFA_CASES='ib_send*' ")])

    def test_what_four_guests_do(self):
        self.assertEqual(self.parts(program="soak"), [(4, ["soak"], "")])

    def test_all(self):
        self.assertEqual(self.parts(short=True), [(2, ["short"], ""), (4, ["short", "soak"], "")])


class Tools(support.TemporaryCache):
    def test_a_file_there_is_not(self):
        with self.assertRaisesRegex(Failure, "There is no file test_nothing in tests/tools: choose one of .*test_vm"):
            suite.test_tools("test_nothing")

    def test_one_test(self):
        tally = suite.test_tools("test_makefile", "*groups*")
        self.assertEqual(str(tally), "1 passed, 0 failed, 0 skipped")


class Abi(unittest.TestCase):
    def test_only_differences_of_the_chosen_cases_have_to_be_there(self):
        allowed = {f"{name}: x": abi.Allowed({"c": "1", "rust": "2"}, "why") for name in ("cq", "mr")}
        found = {"c": {"cq: x": "1"}, "rust": {"cq: x": "2"}}
        with mock.patch("efa_tools.abi.table", return_value=allowed), mock.patch("efa_tools.steps.note"):
            self.assertEqual(abi.judge("abi", found)[0].failed, 1)
            for case in ("cq", "cq: *"):
                tally, line = abi.judge("abi", found, case)
                self.assertEqual((tally.failed, line), (0, "1 cases, 1 allowed differences, 0 others"))


if __name__ == "__main__":
    unittest.main()
