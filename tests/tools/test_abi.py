# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import contextlib
import io
import os
import types
import unittest
from unittest import mock

import support
from efa_tools import abi, cache, cli, store, times
from efa_tools.failure import Failure
from efa_tools.tally import Tally

HEAD = "# Where the drivers differ\n\n| case | c | rust | reason |\n|---|---|---|---|\n"


def output(**cases):
    return "".join(f"{case} | {result}\n" for case, result in cases.items()) + f"{len(cases)} cases have run\n"


class Table(unittest.TestCase):
    def test_a_line_has_both_results_and_a_reason(self):
        allowed = abi.table(HEAD + "| cq: a | EINVAL; x +1 | ok | why |\n")
        self.assertEqual(allowed, {"cq: a": abi.Allowed({"c": "EINVAL; x +1", "rust": "ok"}, "why")})

    def test_a_line_without_a_reason_is_refused(self):
        for line in ("| cq: a | EINVAL | ok | |\n", "| cq: a | EINVAL | ok |\n"):
            with self.assertRaisesRegex(Failure, "line above"):
                abi.table(HEAD + line)

    def test_a_case_has_one_line(self):
        with self.assertRaisesRegex(Failure, "two lines for `cq: a`"):
            abi.table(HEAD + "| cq: a | x | y | z |\n" * 2)

    def test_a_line_for_larger_pages_goes_before_that_for_all(self):
        text = HEAD + "| cq: a | x | y | z |\n| cq: b | x | y | z |\n\n## Pages of 16 KiB\n\n| cq: a | ok | ok | fits |\n"
        small, large = abi.table(text), abi.table(text, 16384)
        self.assertEqual((small["cq: a"].results["c"], large["cq: a"].results["c"]), ("x", "ok"))
        self.assertEqual((sorted(small), sorted(large)), (["cq: a", "cq: b"],) * 2)

    def test_the_tables_own_is_good(self):
        for pages in (4096, 16384):
            abi.table((support.CLONE / "tests" / "abi" / "differences.md").read_text(), pages)


class Results(unittest.TestCase):
    def test_other_lines_do_not_matter(self):
        self.assertEqual(abi.results("noise\n" + output(a="ok", b="EINVAL; c"), "c"), {"a": "ok", "b": "EINVAL; c"})

    def test_a_run_that_was_cut_short_is_noticed(self):
        for text in ("", "a | ok\n", "a | ok\n2 cases have run\n"):
            with self.assertRaisesRegex(Failure, "ended early with the driver c"):
                abi.results(text, "c")


class Compare(unittest.TestCase):
    def problems(self, c, rust, table=""):
        return {case: text.split("\n")[0] for case, text in abi.compare({"c": c, "rust": rust}, abi.table(HEAD + table))}

    def test_the_same_is_no_problem(self):
        self.assertEqual(self.problems({"a": "ok"}, {"a": "ok"}), {})

    def test_a_difference_is_one(self):
        self.assertEqual(self.problems({"a": "ok"}, {"a": "EINVAL"}), {"a": "the drivers differ"})

    def test_a_case_that_only_one_has_is_one(self):
        self.assertEqual(self.problems({"a": "ok"}, {}), {"a": "the drivers differ"})

    def test_an_allowed_difference_is_none(self):
        self.assertEqual(self.problems({"a": "ok"}, {"a": "EINVAL"}, "| a | ok | EINVAL | why |\n"), {})

    def test_another_difference_than_the_allowed_one_is_one(self):
        found = self.problems({"a": "ok"}, {"a": "EFAULT"}, "| a | ok | EINVAL | why |\n")
        self.assertEqual(found, {"a": "differences.md allows another difference"})

    def test_an_allowed_difference_that_is_gone_is_one(self):
        line = "| a | ok | EINVAL | why |\n"
        gone = "differences.md allows a difference that does not occur"
        self.assertEqual(self.problems({"a": "ok"}, {"a": "ok"}, line), {"a": gone})
        self.assertEqual(self.problems({}, {}, line), {"a": gone})

    def test_a_broken_case_is_one_though_it_is_the_same(self):
        self.assertEqual(self.problems({"a": "BROKEN x"}, {"a": "BROKEN x"}), {"a": "it could not run"})


class Devices(unittest.TestCase):
    def test_the_first_has_the_profile(self):
        text = "# comment\nefa3 profile=efa3\nfew profile=efa2,max_mr=4\n"
        self.assertEqual(abi.devices(text), ["profile=efa3", "profile=efa2,max_mr=4"])
        self.assertEqual(abi.devices(text, "efa4"), ["profile=efa4", "profile=efa2,max_mr=4"])
        self.assertEqual(abi.devices("efa3 profile=efa3,min_sq_depth=0\n", "efa4"), ["profile=efa4,min_sq_depth=0"])

    def test_every_guest_has_the_default_one_first(self):
        first = next(line for line in (abi.FOLDER / "devices").read_text().splitlines() if not line.startswith("#"))
        self.assertRegex(first, f"^{abi.PROFILES[0]} profile={abi.PROFILES[0]}(,|$)")


class Reference(support.TemporaryCache):
    """The cache of the C driver's results."""

    def setUp(self):
        super().setUp()
        self.runs = []
        self.files = {name: self.folder / name for name in ("efa.ko", "efa-emu", "case_one.py", "devices")}
        for name, file in self.files.items():
            file.write_text(name)
        self.patch(mock.patch("efa_tools.abi.FOLDER", self.folder))
        self.patch(mock.patch("efa_tools.abi.LIBRARY", self.folder))
        self.patch(mock.patch("efa_tools.toolroot.kernel", lambda flavour: f"7.3-{flavour}"))
        self.patch(mock.patch("efa_tools.build.c_module", lambda release: self.files["efa.ko"]))
        self.patch(mock.patch("efa_tools.build.emulator", lambda: self.files["efa-emu"]))
        self.patch(mock.patch("efa_tools.abi.run", self.run_cases))

    def run_cases(self, driver, flavour, profile):
        self.runs.append((driver, flavour, profile))
        return {"a": f"{len(self.runs)}"}

    def test_they_are_kept(self):
        self.assertEqual([abi.reference("cloud-amd64", "efa3") for _ in range(2)], [{"a": "1"}] * 2)
        self.assertEqual(self.runs, [("c", "cloud-amd64", "efa3")])

    def test_old_ones_are_kept_while_they_are_used(self):
        abi.reference("cloud-amd64", "efa3")
        (kept,) = cache.folder("abi").iterdir()
        os.utime(kept, (0, 0))
        with mock.patch.object(store, "KEPT", 0):
            self.assertEqual(abi.reference("cloud-amd64", "efa3"), {"a": "1"})

    def test_they_are_renewed(self):
        abi.reference("cloud-amd64", "efa3")
        self.assertEqual(abi.reference("cloud-amd64", "efa3", renew=True), {"a": "2"})
        self.assertEqual(abi.reference("cloud-amd64", "efa3"), {"a": "2"})

    def test_a_case_that_could_not_run_is_run_again(self):
        with mock.patch("efa_tools.abi.run", return_value={"a": f"{abi.BROKEN}no"}):
            self.assertEqual(abi.reference("cloud-amd64", "efa3"), {"a": f"{abi.BROKEN}no"})
        self.assertEqual(abi.reference("cloud-amd64", "efa3"), {"a": "1"})

    def test_what_they_depend_on_has_them_run_again(self):
        abi.reference("cloud-amd64", "efa3")
        for file in self.files.values():
            file.write_text(f"another {file.name}")
            abi.reference("cloud-amd64", "efa3")
        abi.reference("amd64", "efa3")
        abi.reference("cloud-amd64", "efa4")
        self.assertEqual(len(self.runs), 7)

    def test_a_run_that_fails_is_not_kept(self):
        with mock.patch("efa_tools.abi.run", side_effect=Failure("no")), self.assertRaises(Failure):
            abi.reference("cloud-amd64", "efa3")
        self.assertEqual(abi.reference("cloud-amd64", "efa3"), {"a": "1"})


class Diff(support.TemporaryCache):
    def keep_nothing(self):
        self.patch(mock.patch("efa_tools.abi.reference", lambda flavour, profile, renew=False: abi.run("c", flavour, profile, "")))

    def test_each_case_counts(self):
        self.keep_nothing()
        runs = {"c": {"a": "ok", "b": "ok", "c": "x"}, "rust": {"a": "ok", "b": "EINVAL", "c": "y"}}
        self.patch(mock.patch("efa_tools.abi.run", lambda driver, flavour, profile, case="": runs[driver]))
        self.patch(mock.patch("efa_tools.abi.table", lambda text, pages: {"c": abi.Allowed({"c": "x", "rust": "y"}, "why")}))
        tally, line = abi.diff("cloud-amd64")
        self.assertEqual((tally.passed, tally.failures), (2, ["abi-diff efa3: b"]))
        self.assertEqual(line, "3 cases, 1 allowed differences, 1 others")

    def test_what_a_kernel_has_otherwise_is_not_compared(self):
        found = {"c": {"a": "ok", "b 1": "ok", "b 2": "ok"}, "rust": {"a": "ok", "b 1": "ENOENT", "b 2": "ok"}}
        self.patch(mock.patch("efa_tools.abi.table", lambda text, pages: {"b 2": abi.Allowed({"c": "x", "rust": "y"}, "why")}))
        tally, line = abi.judge("abi-diff debug", found, but=["b *"])
        self.assertEqual((tally.passed, tally.failures, line), (1, [], "1 cases, 0 allowed differences, 0 others"))
        with self.assertRaisesRegex(Failure, "no case `c`, .* remove it from the list"):
            abi.judge("abi-diff debug", found, but=["b *", "c"])

    def test_the_debug_kernel_has_some_otherwise(self):
        self.assertIn("dmabuf: of the system's heap", abi.elsewhere())

    def command(self, *arguments):
        """Runs tools/check abi-diff; returns its exit status and what it printed, line by line."""
        with (
            mock.patch("sys.argv", ["check", "abi-diff", *arguments]),
            mock.patch("efa_tools.interrupt.watch"),
            contextlib.redirect_stdout(io.StringIO()) as printed,
        ):
            status = cli.check_command()
        return status, printed.getvalue().splitlines()

    def test_each_profile_is_a_job(self):
        self.keep_nothing()
        runs = {"efa3": {"a": "ok"}, "efa4": {"a": "ok", "b": "ok"}}
        differ = {"efa4"}

        def run(driver, flavour, profile, case):
            return runs[profile] | ({"c": driver} if profile in differ else {})

        self.patch(mock.patch("efa_tools.toolroot.root"))
        self.patch(mock.patch("efa_tools.abi.PROFILES", tuple(runs)))
        self.patch(mock.patch("efa_tools.abi.run", run))
        self.patch(mock.patch("efa_tools.abi.table", lambda text, pages: {}))
        report = self.folder / "junit.xml"
        status, lines = self.command("--junit", str(report))
        self.assertEqual((status, lines[-1]), (1, "3 passed, 1 failed, 0 skipped"))
        first = ["efa3: 1 cases, 0 allowed differences, 0 others", "efa4: 3 cases, 0 allowed differences, 1 others"]
        self.assertEqual(sorted(lines[:-1]), first)
        self.assertIn('name="abi-diff cloud-amd64 efa4"', report.read_text())
        self.assertEqual(times.load("abi-diff")[0]["failed"], 1)
        differ.clear()
        self.assertEqual(self.command("--failed"), (0, ["efa4: 2 cases, 0 allowed differences, 0 others", "2 passed, 0 failed, 0 skipped"]))

    def debug(self, output, found):
        """Returns the tally for this output and tally of the debug kernel. With the C driver, both cases have the result `ok`."""
        run = types.SimpleNamespace(shared=self.folder)
        (self.folder / "out").mkdir()
        if output:
            (self.folder / "out" / "abi").write_text(output)
        self.patch(mock.patch("efa_tools.suite.in_debug_guest", lambda *arguments, **options: (found, run)))
        self.patch(mock.patch("efa_tools.abi.run", lambda driver, flavour, profile, case="": {"a": "ok", "b": "ok"}))
        self.patch(mock.patch("efa_tools.abi.table", lambda text, pages: {}))
        self.patch(mock.patch("efa_tools.abi.elsewhere", lambda: []))
        self.keep_nothing()
        return abi.diff_on_debug_kernel("cloud-amd64")

    def test_on_the_debug_kernel_its_own_results_count_too(self):
        tally, line = self.debug(output(a="ok", b="EINVAL"), Tally(3, 1, 0, ["leaks"]))
        self.assertEqual((tally.passed, tally.failures), (4, ["leaks", "abi-diff debug: b"]))
        self.assertEqual(line, "2 cases, 0 allowed differences, 1 others")

    def test_on_the_debug_kernel_cases_that_were_cut_short_are_noticed(self):
        with self.assertRaisesRegex(Failure, "ended early"):
            self.debug("a | ok\n", Tally(3))

    def test_on_the_debug_kernel_no_results_are_noticed(self):
        with self.assertRaisesRegex(Failure, "ended early"):
            self.debug("", Tally(3))


class Program(unittest.TestCase):
    def test_the_cases_have_names_of_their_own(self):
        """All cases are created when the program starts, even without a device."""
        script = "import sys; sys.path.insert(0, 'tests/abi'); import run, harness; print(len(harness.Cases.all))"
        process = support.TemporaryCache.python(self, script, cwd=support.CLONE, stdout=-1)
        count, _ = process.communicate()
        self.assertGreater(int(count or 0), 400)

    def test_differences_are_those_of_cases(self):
        script = (
            "import sys; sys.path.insert(0, 'tests/abi'); import run, harness; sys.path.insert(0, 'tools/lib');"
            "from efa_tools import abi; table = abi.table((abi.FOLDER / 'differences.md').read_text());"
            "print(sorted(set(table) - set(harness.Cases.all)))"
        )
        process = support.TemporaryCache.python(self, script, cwd=support.CLONE, stdout=-1)
        self.assertEqual(process.communicate()[0].strip(), "[]")


if __name__ == "__main__":
    unittest.main()
