# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import contextlib
import io
import unittest
from unittest import mock
from xml.etree import ElementTree as xml

import support
from efa_tools import abi, cli, host_tests, junit, ktap, times
from efa_tools.failure import Failure
from efa_tools.schedule import Job
from efa_tools.tally import Case, Tally

OUTPUT = """KTAP version 1
1..3
  KTAP version 1
  1..3
  ok 1 one
  # two: got 1, wanted 2
  # which is not \x00 well
  not ok 2 two
  ok 3 three # SKIP there is none
not ok 1 program # exit=1
ok 2 other
ok 3 absent # SKIP
"""


class Cases(unittest.TestCase):
    def test_of_ktap(self):
        tally = ktap.parse(OUTPUT)
        self.assertEqual(str(tally), "2 passed, 1 failed, 2 skipped")
        said = "two: got 1, wanted 2\nwhich is not \x00 well"
        self.assertEqual(
            tally.cases,
            [
                Case("program: one", "passed"),
                Case("program: two", "failed", said),
                Case("program: three", "skipped", "there is none"),
                Case("other", "passed"),
                Case("absent", "skipped"),
            ],
        )

    def test_of_cargo_and_unittest(self):
        text = "test a::b ... ok\ntest src/lib.rs - c (line 3) ... FAILED\ntest d ... ignored, slow\ntest d2 ... noise\n"
        self.assertEqual(host_tests.CARGO_TEST.findall(text), [("a::b", "ok"), ("src/lib.rs", "FAILED"), ("d", "ignored")])
        text = "test_a (test_x.Y.test_a) ... ok\ntest_b (test_x.Y.test_b)\nWhat it is. ... FAIL\ntest_c (m.C.test_c) ... skipped 'why'\n"
        found = host_tests.UNITTEST.findall(text)
        self.assertEqual(found, [("test_x.Y.test_a", "ok"), ("test_x.Y.test_b", "FAIL"), ("m.C.test_c", "skipped")])

    def test_of_the_differential_test(self):
        with mock.patch("efa_tools.abi.table", return_value={}), mock.patch("efa_tools.steps.note"):
            tally, _ = abi.judge("abi", {"c": {"a": "1", "b": "1"}, "rust": {"a": "1", "b": "2"}})
        self.assertEqual([(case.name, case.outcome) for case in tally.cases], [("abi: a", "passed"), ("abi: b", "failed")])
        self.assertIn("rust: 2", tally.cases[1].said)


class Report(support.TemporaryCache):
    def test_all_is_in_it(self):
        file = self.folder / "new" / "junit.xml"
        tally = ktap.parse(OUTPUT)
        tally.passed += 7
        junit.write(file, [("kselftest", tally, 12.34), ("laws", Tally(), 0)])
        one, two = xml.parse(file).getroot()
        self.assertEqual(one.attrib, {"name": "kselftest", "time": "12.3", "tests": "12", "failures": "1", "skipped": "2", "errors": "0"})
        self.assertEqual([case.get("name") for case in one], [case.name for case in tally.cases])
        (failure,) = one.findall("testcase/failure")
        self.assertEqual((failure.get("message"), failure.text[-6:]), ("two: got 1, wanted 2", "? well"))
        self.assertEqual([skip.get("message") for skip in one.findall("testcase/skipped")], ["there is none", ""])
        self.assertEqual(len(two), 0)


class Failed(support.TemporaryCache):
    def setUp(self):
        super().setUp()
        self.patch(mock.patch("efa_tools.toolroot.root"))
        self.done = []

    def job(self, name, tally):
        def run():
            self.done.append(name)
            if tally is None:
                raise Failure("It can't.")
            return tally

        return Job(name, run)

    def check(self, *arguments):
        jobs = [self.job("good", Tally(passed=1)), self.job("bad", Tally(failed=1)), self.job("worse", None)]
        self.done.clear()
        output = io.StringIO()
        with (
            mock.patch("sys.argv", ["check", "lint", *arguments]),
            mock.patch("efa_tools.check.lint", return_value=jobs),
            mock.patch("efa_tools.interrupt.watch"),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            status = cli.check_command()
        return status, sorted(self.done), output.getvalue()

    def test_what_failed_is_done_again(self):
        file = self.folder / "all.xml"
        self.assertEqual(self.check("--junit", str(file))[:2], (1, ["bad", "good", "worse"]))
        self.assertIn("It can't.", file.read_text())
        self.assertEqual(self.check("--failed")[:2], (1, ["bad", "worse"]))
        self.assertEqual(times.failed("lint"), {"bad", "worse"})

    def test_nothing_has_run(self):
        self.assertEqual(self.check("--failed")[:2], (1, []))
        self.assertIn("No run of lint is kept", self.check("--failed")[2])

    def test_what_failed_is_no_part_of_this(self):
        with mock.patch("efa_tools.times.failed", return_value={"another"}):
            status, done, said = self.check("--failed")
        self.assertEqual((status, done), (1, []))
        expected = "lint (another) are none of those that these options select (good; bad; worse): give the options"
        self.assertIn(expected, said)

    def test_nothing_failed(self):
        with mock.patch("efa_tools.times.failed", return_value=set()):
            status, done, said = self.check("--failed")
        self.assertEqual((status, done), (1, []))
        self.assertIn("Nothing failed in the last run of lint: leave --failed out", said)


if __name__ == "__main__":
    unittest.main()
