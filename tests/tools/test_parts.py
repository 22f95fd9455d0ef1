# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Selection of one program, or of one test case, of a suite."""

import os
import subprocess
import sys
import unittest
from unittest import mock

import support
from efa_tools import abi, check, cli, host_tests, suite
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
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
        return done.returncode, done.stdout.splitlines()

    def test_all_of_them(self):
        status, lines = self.run_cases("")
        self.assertEqual((status, lines[1]), (0, "1..3"))

    def test_some(self):
        status, lines = self.run_cases("create_qp*")
        self.assertEqual((status, lines[1:5]), (0, ["1..2", "# EFA_SEED=1", "ok 1 create_qp: one", "ok 2 create_qp: two"]))

    def test_none(self):
        status, lines = self.run_cases("destroy*")
        self.assertEqual((status, lines[1]), (4, "1..0 # SKIP no test case is named destroy*"))


class Seed(support.TemporaryCache):
    """Random inputs of the tests of the emulator."""

    def setUp(self):
        super().setUp()
        self.patch(mock.patch.dict(os.environ, {"EFA_SEED": "7"}))

    def seeds(self, run, suite):
        """Returns the seed of each call of the mock RUN that runs the tests of a SUITE."""
        suite()
        runs = [call for call in run.call_args_list if "--no-run" not in call.args]
        return [call.kwargs.get("environment") for call in runs]

    def test_on_the_host(self):
        run = self.patch(mock.patch("efa_tools.build.cargo"))
        self.assertEqual(self.seeds(run, host_tests.test_host), [{"PROPTEST_RNG_SEED": "7"}])

    def test_in_a_guest(self):
        self.patch(mock.patch("efa_tools.build.foreign_tests", return_value=(self.folder, ["true"])))
        prepare = self.patch(mock.patch("efa_tools.guest.prepare"))
        self.patch(mock.patch("efa_tools.guest.execute", return_value=0))
        host_tests.test_host_in_guest("arm64")
        self.assertIn("export PROPTEST_RNG_SEED=7\n", prepare.call_args.args[0].command)


class Attack(support.TemporaryCache):
    def environment(self, *words):
        """Returns the environment of the tests in an attack with these options."""
        cargo = self.patch(mock.patch("efa_tools.build.cargo"))
        parser = cli.check_parser()
        (job,) = cli.jobs_of(parser.parse_args(["attack", *words]))
        job.run()
        return cargo.call_args.kwargs["environment"]

    def test_how_long_and_how_often(self):
        self.assertEqual(self.environment(), {"EFA_SECONDS": "10"})
        self.assertEqual(self.environment("--seconds", "3", "--rounds", "100"), {"EFA_SECONDS": "3", "EFA_ROUNDS": "100"})

    def test_rounds_of_make(self):
        command = ["make", "-C", support.CLONE, "--dry-run", "attack", "ROUNDS=100"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self.assertIn("tools/check attack --rounds 100", " ".join(done.stdout.split()))


class Kselftest(support.TemporaryCache):
    def command(self, program, case=""):
        guest = self.patch(mock.patch("efa_tools.suite.in_guest", return_value=(Tally(), None)))
        (job,) = check.kselftests("rust", "cloud-amd64", program, case)
        job.run()
        return guest.call_args.args[1], guest.call_args.kwargs["append"]

    def test_a_program_and_what_the_kernel_says_of_it(self):
        self.assertEqual(self.command("limits"), ("/efa-rs/tests/kselftest/run.sh limits.py dmesg.py", ""))

    def test_several(self):
        self.assertEqual(self.command("limits,probe.py")[0], "/efa-rs/tests/kselftest/run.sh limits.py probe.py dmesg.py")

    def test_a_case_of_it(self):
        expected = "EFA_CASES='create_qp: it'\"'\"'s *' /efa-rs/tests/kselftest/run.sh objects_timeouts.py"
        self.assertEqual(self.command("objects_timeouts", "create_qp: it's *")[0], expected)

    def test_a_case_of_any(self):
        command = self.command("", "*refused*")[0]
        self.assertTrue(command.startswith("EFA_CASES='*refused*' /efa-rs/tests/kselftest/run.sh probe.py attributes.py "))
        self.assertTrue(command.endswith(" lifecycle.py effects.py objects_timeouts.py probe_timeouts.py dmesg.py"))

    def test_bounce_buffers_need_a_kernel_that_has_them(self):
        self.assertEqual(self.command("bounce")[1], "swiotlb=force")

    def test_all(self):
        self.assertEqual(len(check.kselftests("rust", "cloud-amd64")), 2)

    def test_what_there_is_not(self):
        for program, expected in (
            ("limit", "There is no program limit in tests/kselftest: choose of .*limits"),
            ("run", "There is no program run "),
        ):
            with self.assertRaisesRegex(Failure, expected):
                suite.kselftest_part("rust", "cloud-amd64", program, "")


class Interop(support.TemporaryCache):
    def parts(self, **options):
        between = self.patch(mock.patch("efa_tools.suite.between_guests", return_value=Tally()))
        suite.interop("rust", "cloud-amd64", **options)
        return [(call.args[1], call.args[2], call.args[6]) for call in between.call_args_list]

    def test_a_part_and_its_cases(self):
        self.assertEqual(self.parts(program="perftest", case="ib_send*"), [(2, ["perftest"], "EFA_CASES='ib_send*' ")])

    def test_rounds(self):
        self.assertEqual(self.parts(program="mpi", rounds=200), [(2, ["mpi"], "EFA_ROUNDS=200 ")])

    def test_what_four_guests_do(self):
        self.assertEqual(self.parts(program="soak"), [(4, ["soak"], "")])

    def test_all(self):
        self.assertEqual(self.parts(short=True), [(2, ["short"], ""), (4, ["short", "soak"], "")])


class Tools(support.TemporaryCache):
    def test_a_file_there_is_not(self):
        with self.assertRaisesRegex(Failure, "There is no file test_nothing in tests/tools: choose one of boot_overlay, .*test_toolroot"):
            host_tests.test_tools("test_nothing")

    def test_one_test(self):
        tally = host_tests.test_tools("test_makefile", "*groups*")
        self.assertEqual(str(tally), "1 passed, 0 failed, 0 skipped")


class Names(unittest.TestCase):
    """Names of jobs, by which --failed finds them."""

    def test_each_part_has_a_name_of_its_own(self):
        chosen = [("", ""), ("limits", ""), ("limits", "a*"), ("", "a*")]
        kselftests = [check.kselftests("rust", "cloud-amd64", *part)[0].name for part in chosen]
        where = "kselftest rust cloud-amd64"
        self.assertEqual(kselftests, [where, f"{where} limits", f"{where} limits a*", f"{where} a*"])
        userlands = [("stable", "", ""), ("next", "", ""), ("stable", "perftest", "a*")]
        interops = [check.interop("rust", "cloud-amd64", False, *part).name for part in userlands]
        where = "interop rust cloud-amd64"
        self.assertEqual(interops, [where, f"{where} next", f"{where} perftest a*"])
        rdma_cores = [check.rdma_core(("rust", "c"), "cloud-amd64", chosen).name for chosen in ("stable", "next")]
        self.assertEqual(rdma_cores, ["rdma-core rust c cloud-amd64", "rdma-core rust c cloud-amd64 next"])
        (abi_diff,) = check.abi_diffs("cloud-amd64", ["efa3", "efa3"], "cq: *")
        self.assertEqual(abi_diff.name, "abi-diff cloud-amd64 efa3 cq: *")


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
