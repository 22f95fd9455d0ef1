# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest

import support  # noqa: F401
from efa_tools import ktap


def counts(text):
    tally = ktap.parse(text)
    return tally.passed, tally.failed, tally.skipped


class Ktap(unittest.TestCase):
    def test_results_are_counted(self):
        self.assertEqual(counts("KTAP version 1\n1..3\nok 1 a\nnot ok 2 - b\nok 3 c # SKIP no device\n"), (1, 1, 1))

    def test_subtests_count_in_place_of_their_test(self):
        text = "KTAP version 1\n1..2\n  KTAP version 1\n  1..2\n  ok 1 a\n  ok 2 b # SKIP why\nok 1 first\nok 2 second\n"
        self.assertEqual(counts(text), (2, 0, 1))

    def test_subtests_may_be_quoted(self):
        text = "TAP version 13\n1..1\n# TAP version 13\n# 1..2\n# ok 1 a\n# not ok 2 b\nnot ok 1 selftests: efa: x\n"
        self.assertEqual(counts(text), (1, 1, 0))

    def test_diagnostics_are_not_results(self):
        self.assertEqual(counts("1..1\n# ok so far\n# not ok either\nok 1 a\n"), (1, 0, 0))

    def test_a_test_that_fails_after_its_subtests_passed_has_failed(self):
        self.assertEqual(counts("1..1\n  1..1\n  ok 1 a\nnot ok 1 program # exit=1\n"), (1, 1, 0))

    def test_planned_tests_that_did_not_run_have_failed(self):
        self.assertEqual(counts("1..3\nok 1 a\n"), (1, 2, 0))

    def test_planned_subtests_that_did_not_run_have_failed(self):
        self.assertEqual(counts("1..1\n  1..4\n  ok 1 a\nok 1 program\n"), (1, 3, 0))

    def test_a_test_cut_off_in_its_subtests_has_failed(self):
        self.assertEqual(counts("1..2\n  1..2\n  ok 1 a\n"), (1, 3, 0))

    def test_more_tests_than_planned_is_a_failure(self):
        self.assertEqual(counts("1..1\nok 1 a\nok 2 b\n"), (2, 1, 0))

    def test_no_output_is_a_failure(self):
        self.assertEqual(counts(""), (0, 1, 0))

    def test_bail_out_is_a_failure(self):
        self.assertEqual(counts("1..1\nok 1 a\nBail out! the device is gone\n"), (1, 1, 0))

    def test_a_skipped_program_is_one_skipped_test(self):
        self.assertEqual(counts("1..1\n  1..0 # SKIP no control port\nok 1 faults # SKIP\n"), (0, 0, 1))

    def test_failures_have_what_their_tests_said(self):
        text = (
            "1..1\n  1..4\n  # of a\n  ok 1 a\n  # of b\n  # more\n  not ok 2 b\n  not ok 3 c # SKIP\n  not ok 4 d\n# Totals\nnot ok 1 e\n"
        )
        expected = ["  # of b", "  # more", "  not ok 2 b", "  not ok 4 d", "# Totals", "not ok 1 e"]
        self.assertEqual(ktap.failures(text), expected)

    def test_failures_that_say_much_are_cut(self):
        text = "1..1\n" + "# line\n" * (ktap.DIAGNOSTICS + 2) + "not ok 1 a\n"
        self.assertEqual(ktap.failures(text), ["# line"] * ktap.DIAGNOSTICS + ["(2 more lines)", "not ok 1 a"])


if __name__ == "__main__":
    unittest.main()
