# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Evaluation of rdma-core's tests, with examples of tests."""

import contextlib
import importlib.util
import io
import random
import time
import unittest
from unittest import mock

from support import CLONE
from efa_tools import suite, userland

spec = importlib.util.spec_from_file_location("rdma_core_run", CLONE / "tests" / "rdma-core" / "run.py")
rdma_core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rdma_core)
Result = rdma_core.Result


class Example(unittest.TestCase):
    """Tests to be evaluated."""

    runs = 0

    def passes(self):
        type(self).runs += 1

    def skips(self):
        self.skipTest("nothing  of\nmlx5_0")

    def fails(self):
        self.assertEqual(1, 2)

    def raises(self):
        raise OSError(5, "no")

    def draws(self):
        if random.random() < 0.5:
            self.skipTest("unlucky")

    def draws_a_failure(self):
        random.random()
        type(self).runs += 1
        assert type(self).runs < 3

    def hangs(self):
        while True:
            time.sleep(0.05)


def run(name, limit=30):
    """Runs one of the tests; returns its result."""
    Example.runs = 0
    with mock.patch.object(rdma_core, "PATIENCE", limit):
        return rdma_core.run(Example(name), name, "mlx5_0")


class Outcome(unittest.TestCase):
    def test_pass(self):
        self.assertEqual(run("passes")[:2], ("pass", ""))

    def test_what_draws_nothing_runs_once(self):
        run("passes")
        self.assertEqual(Example.runs, 1)

    def test_skip_with_its_reason(self):
        self.assertEqual(run("skips")[:2], ("skip", "nothing of DEVICE"))

    def test_failure(self):
        self.assertEqual(run("fails")[:2], ("fail", "AssertionError: 1 != 2"))

    def test_error(self):
        self.assertEqual(run("raises").outcome, "fail")

    def test_draws_are_repeatable(self):
        first = run("draws")
        self.assertEqual((first[:2], len(first.more.split())), (("draw", "unlucky"), rdma_core.DRAWS))
        self.assertEqual(run("draws"), first)

    def test_one_draw_that_fails(self):
        self.assertEqual((run("draws_a_failure").outcome, Example.runs), ("fail", 3))

    def test_hang(self):
        self.assertEqual(run("hangs", 0.3).outcome, "timeout")


class Report(unittest.TestCase):
    def report(self, wanted, got):
        """Returns whether the result is as listed, and the last line of the report."""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            good = rdma_core.report(1, "a", wanted, got)
        return good, output.getvalue().splitlines()[-1]

    def test_as_listed(self):
        self.assertEqual(self.report(Result("pass"), Result("pass", more="pass")), (True, "ok 1 a"))
        self.assertEqual(self.report(Result("draw", "why"), Result("draw", "why")), (True, "ok 1 a"))

    def test_what_did_not_run_to_its_end_is_skipped(self):
        self.assertEqual(self.report(Result("skip", "why"), Result("skip", "why")), (True, "ok 1 a # SKIP why"))

    def test_not_as_listed(self):
        for wanted, got in (
            (Result("pass"), Result("skip", "no device")),
            (Result("skip", "why"), Result("skip", "no device")),
            (Result("skip", "why"), Result("pass")),
            (Result("draw", "why"), Result("skip", "why")),
            (Result("draw", "why"), Result("pass")),
            (Result("pass"), Result("fail", "1 != 2")),
            (None, Result("pass")),
        ):
            self.assertEqual(self.report(wanted, got), (False, "not ok 1 a"))


class List(unittest.TestCase):
    def test_lines(self):
        listed = rdma_core.read_list("# why\n\npass    a\nskip    b not for\tthis\n")
        self.assertEqual(listed, {"a": Result("pass"), "b": Result("skip", "not for\tthis")})

    def test_bad_lines(self):
        for line in ("pass", "pass a because", "skip a", "ok a", "fail a why", "pass a\npass a"):
            with self.assertRaises(rdma_core.BadList, msg=line):
                rdma_core.read_list(line)

    def test_the_lists_of_the_project(self):
        for chosen, count in ((userland.STABLE, 20), (userland.NEXT, 21)):
            listed = rdma_core.read_list((rdma_core.FOLDER / suite.RDMA_CORE_LISTS[chosen]).read_text())
            efa = {name: result.outcome for name, result in listed.items() if name.startswith("test_efa")}
            self.assertEqual((len(efa), set(efa.values())), (count, {"pass"}))


class Drivers(unittest.TestCase):
    def unlike(self, rust, c):
        results = {"rust": rust, "c": c}
        return suite.unlike({driver: {name: end._asdict() for name, end in ends.items()} for driver, ends in results.items()})

    def test_alike(self):
        self.assertEqual(self.unlike({"a": Result("pass")}, {"a": Result("pass")}), [])

    def test_one_that_only_passes_with_the_other(self):
        found = self.unlike({"a": Result("skip", "why", "skip")}, {"a": Result("pass", more="pass")})
        self.assertEqual(found, ["a: rust: skip why, c: pass"])

    def test_one_that_did_not_run(self):
        found = self.unlike({"a": Result("fail", "1 != 2", "a\ntraceback")}, {})
        self.assertEqual(found, ["a: rust: fail 1 != 2, c: did not run"])

    def test_draws_that_end_in_another_order(self):
        found = self.unlike({"a": Result("draw", "why", "pass skip")}, {"a": Result("draw", "why", "skip pass")})
        self.assertEqual(found, ["a: rust: draw why (pass skip), c: draw why (skip pass)"])

    def test_no_results(self):
        self.assertEqual(self.unlike({}, {}), ["no test ran"])


if __name__ == "__main__":
    unittest.main()
