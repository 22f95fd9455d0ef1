# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest
from unittest import mock

import support
from efa_tools import record, times
from efa_tools.tally import Tally

HERE, ELSEWHERE = "1" * 40, "2" * 40
HEAD = "# Page\n\n| `tools/check` | commit |\n|---|---|\n"


class Page(support.TemporaryCache):
    def setUp(self):
        super().setUp()
        self.page = self.folder / "last-passed.md"
        self.page.write_text(HEAD)

    def end(self, command, head=HERE, changed=False, **tally):
        """Saves and records the result of a run, as with RECORD=1."""
        span = times.Span(command, 1e9, 1e9 + 600)
        with mock.patch("efa_tools.times.head", return_value=(head, changed)):
            file = times.save(span, command.partition(" ")[0], Tally(**tally), command=command)
        record.write(file, self.page)

    def rows(self):
        return [line for line in self.page.read_text().splitlines() if line.startswith("| `")][1:]

    def test_each_suite_has_the_row_of_its_last_pass(self):
        self.end("interop --driver c", passed=1234, skipped=5)
        self.end("attack", ELSEWHERE, passed=9)
        self.end("attack", passed=10)
        self.assertTrue(self.page.read_text().startswith(HEAD))
        attack = "| `attack` | `111111111111` | 2001-09-09 | 10 | 0 | 10 |"
        self.assertEqual(self.rows(), [attack, "| `interop --driver c` | `111111111111` | 2001-09-09 | 1,234 | 5 | 10 |"])

    def test_what_is_no_pass_changes_nothing(self):
        self.end("attack", ELSEWHERE, passed=9)
        before = self.page.read_text()
        self.end("attack", passed=9, failed=1)
        self.end("attack", changed=True, passed=9)
        self.end("", passed=9)
        self.assertEqual(self.page.read_text(), before)

    def test_it_is_written_on_request_only(self):
        for value, expected in (("1", True), ("", False)):
            with mock.patch.dict("os.environ", {"RECORD": value}):
                self.assertEqual(record.wanted(), expected)


class Budget(unittest.TestCase):
    def warning(self, minutes, name="check", *jobs):
        return times.over_budget(times.Span(name, 1, 1 + minutes * 60, 0, [times.Span(job, 1, 2) for job in jobs]))

    def test_a_run_that_takes_longer_has_a_warning(self):
        self.assertRegex(self.warning(13), "check took 13:00 min, and its budget with a warm cache is 12:00 min")
        self.assertRegex(self.warning(21, "check", "toolroot"), "its budget with an empty cache is 20:00 min")

    def test_others_have_none(self):
        self.assertEqual([self.warning(12), self.warning(19, "check", "toolroot"), self.warning(500, "soak")], ["", "", ""])


if __name__ == "__main__":
    unittest.main()
