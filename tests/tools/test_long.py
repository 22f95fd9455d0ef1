# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import contextlib
import io
import subprocess
import unittest
from unittest import mock

import support
from efa_tools import cli, long, times
from efa_tools.failure import Failure
from efa_tools.schedule import Job
from efa_tools.tally import Tally

HERE, ELSEWHERE = "1" * 40, "2" * 40


class Results(support.TemporaryCache):
    """Runs with kept results."""

    def setUp(self):
        super().setUp()
        self.number = 0

    def keep(self, command, head=HERE, changed=False, tally=None, **options):
        """Keeps the result of a run that is later than all previous ones."""
        self.number += 1
        span = times.Span(command, 1e9 + self.number * 3600, 1e9 + self.number * 3600 + 600)
        with mock.patch("efa_tools.times.head", return_value=(head, changed)):
            times.save(span, command.split()[0], tally or Tally(passed=1234, skipped=5), command=command, **options)

    def heads(self):
        return {command: run["head"] for command, run in times.passes().items()}


class Passes(Results):
    def test_the_last_one_counts(self):
        self.keep("fuzz", ELSEWHERE)
        self.keep("fuzz", HERE)
        self.keep("soak", ELSEWHERE)
        self.assertEqual(self.heads(), {"fuzz": HERE, "soak": ELSEWHERE})

    def test_what_is_no_pass(self):
        self.keep("fuzz", ELSEWHERE)
        self.keep("fuzz", tally=Tally(passed=5, failed=1))
        self.keep("fuzz", tally=Tally(skipped=5))
        self.keep("fuzz", changed=True)
        self.keep("fuzz", interrupted=True)
        self.keep("fuzz", head="")
        self.keep("fuzz", begun=("3" * 40, False))
        self.assertEqual(self.heads(), {"fuzz": ELSEWHERE})

    def test_a_part_is_not_the_whole(self):
        self.keep("kselftest --program limits")
        self.keep("kselftest --failed")
        self.assertNotIn("kselftest", self.heads())

    def test_it_stays_when_older_runs_go(self):
        self.keep("soak")
        self.keep("fuzz", ELSEWHERE)
        self.keep("fuzz")
        with mock.patch.object(times, "KEPT", 3):
            for _ in range(5):
                self.keep("fuzz", tally=Tally(failed=1))
        self.assertEqual(self.heads(), {"fuzz": HERE, "soak": HERE})
        self.assertEqual(len(times.load()), 5)


class Run(Results):
    def setUp(self):
        super().setUp()
        self.patch(mock.patch("efa_tools.toolroot.root"))
        self.patch(mock.patch("efa_tools.long.SUITES", ("lint", "deny", "soak --driver c")))
        self.patch(mock.patch("efa_tools.times.head", return_value=(HERE, False)))
        self.results = {"lint": Tally(passed=1), "soak": Tally(passed=2)}

    def job(self, name):
        self.done.append(name)
        if name not in self.results:
            raise Failure("There is no network.")
        return self.results[name]

    def check(self, *arguments):
        self.done = []
        with (
            mock.patch("sys.argv", ["check", "check-long", *arguments]),
            mock.patch("efa_tools.cli.jobs_of", lambda arguments: [Job("a job", lambda: self.job(arguments.suite))]),
            mock.patch("efa_tools.interrupt.watch"),
            contextlib.redirect_stdout(io.StringIO()) as printed,
        ):
            status = cli.check_command()
        return status, printed.getvalue().splitlines()[-1]

    def test_each_is_done_whatever_the_others_do(self):
        self.assertEqual(self.check(), (1, "3 passed, 1 failed, 0 skipped"))
        self.assertEqual(self.done, ["lint", "deny", "soak"])
        self.assertEqual(self.heads(), {"lint": HERE, "soak --driver c": HERE})

    def test_one_that_cannot_even_begin_has_failed(self):
        with mock.patch("efa_tools.check.run", side_effect=OSError(28, "No space")):
            self.assertEqual(self.check(), (1, "0 passed, 3 failed, 0 skipped"))

    def test_the_rest(self):
        self.check()
        self.results["deny"] = Tally(passed=1)
        self.assertEqual(self.check("--rest"), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertEqual(self.done, ["deny"])
        with mock.patch("efa_tools.times.head", return_value=(ELSEWHERE, False)):
            self.check("--rest")
        self.assertEqual(self.done, ["lint", "deny", "soak"])

    def test_there_is_no_rest(self):
        self.results["deny"] = Tally(passed=1)
        self.check()
        self.assertEqual(self.check("--rest"), (0, "0 passed, 0 failed, 0 skipped"))


class Suites(unittest.TestCase):
    def test_each_is_something_that_there_is_and_named_as_its_results_are(self):
        parser, suites = cli.check_parser()
        for command in ("check", "check-all", *long.SUITES):
            self.assertEqual(cli.command_of(suites, parser.parse_args(command.split())), command)

    def test_what_is_the_default_is_not_named(self):
        parser, suites = cli.check_parser()
        for words, expected in (("", "check"), ("fuzz --seconds 600", "fuzz"), ("life --driver rust --tests=", "life")):
            self.assertEqual(cli.command_of(suites, parser.parse_args(words.split())), expected)
        words = ["abi-diff", "--profile", "efa3", "--failed"]
        self.assertEqual(cli.command_of(suites, parser.parse_args(words)), "abi-diff --profile ['efa3'] --failed")


if __name__ == "__main__":
    unittest.main()
