# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import signal
import sys
import types
import unittest
from unittest import mock

import support
from efa_tools import guest, processes, steps
from efa_tools.failure import Failure

APT = """Get:1 https://packages.invalid/debian trixie InRelease [140 kB]
Err:5 https://packages.invalid/debian trixie/main amd64 qemu-system-x86 amd64 1:10.0.3
  503  Service Unavailable
E: Failed to fetch https://packages.invalid/debian/pool/main/q/qemu/qemu.deb  503  Service Unavailable
E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?
E: mmdebstrap failed to run
"""
CARGO = """    Updating crates.io index
warning: spurious network error (3 tries remaining): [6] Could not resolve hostname
error: failed to download from `https://registry.invalid/crate`
"""


class Run(support.TemporaryCache):
    def fails(self, script, expected):
        with self.assertRaises(Failure) as caught, steps.step("a step") as log:
            steps.run([sys.executable, "-c", script], log, "Making it")
        self.assertRegex(str(caught.exception), expected)
        return str(caught.exception)

    def test_a_mirror_that_fails_is_one_sentence(self):
        said = self.fails(
            f"print({APT!r}); raise SystemExit(25)", r"\AMaking it failed, as Debian's mirror did not give what it was asked for: run"
        )
        self.assertEqual(len(said.splitlines()), 2)
        self.assertIn("qemu.deb  503", said)

    def test_a_registry_that_fails_is_one_sentence(self):
        self.fails(f"print({CARGO!r}); raise SystemExit(101)", "as the crates' registry did not give")

    def test_what_an_earlier_command_of_the_step_said_is_not_the_cause(self):
        with self.assertRaisesRegex(Failure, "exit status 3"), steps.step("a step") as log:
            steps.run([sys.executable, "-c", f"print({CARGO!r})"], log, "One")
            steps.run([sys.executable, "-c", "print('no'); raise SystemExit(3)"], log, "Two")

    def test_anything_else_shows_the_end_of_the_log(self):
        self.fails("print('the cause'); raise SystemExit(7)", r"(?s)    the cause\nMaking it failed \(exit status 7\)")

    def test_a_signal_has_a_name(self):
        self.fails("import os; os.kill(os.getpid(), 9)", r"Making it failed \(killed by SIGKILL\)")
        self.assertEqual(steps.ending(-signal.SIGSEGV), "killed by SIGSEGV")
        self.assertEqual(steps.ending(-200), "killed by signal 200")
        self.assertEqual(steps.ending(139), "exit status 139, as of one that was killed by SIGSEGV")


class Helpers(support.TemporaryCache):
    """What is made of programs that serve guests and end."""

    def run_with(self, **scripts):
        """A run whose programs do this; QEMU goes on."""
        made = guest.Run.__new__(guest.Run)
        made.folder, made.ends = self.folder, {}
        made.options = types.SimpleNamespace(guests=1)
        made.processes = {"qemu-0": python("import time; time.sleep(60)")}
        self.addCleanup(made.processes["qemu-0"].wait)
        self.addCleanup(made.processes["qemu-0"].kill)
        for name, script in scripts.items():
            name = name.replace("_", "-")
            (self.folder / f"{name}.log").write_text("what it said last\n")
            made.processes[name] = python(script)
            made.processes[name].wait()
        return made

    def check(self, made):
        made.check_helpers([made.processes["qemu-0"]])

    def test_an_emulator_that_dies_is_told_of_with_its_signal_and_its_log(self):
        made = self.run_with(efa_emu="import os; os.kill(os.getpid(), 11)")
        with self.assertRaisesRegex(Failure, r"what it said last\nefa-emu ended during the run \(killed by SIGSEGV\): .*/efa-emu.log"):
            self.check(made)

    def test_a_file_server_that_dies_is_told_of_with_its_status(self):
        made = self.run_with(virtiofsd_root_0="raise SystemExit(101)")
        self.check(made)
        with mock.patch.object(guest, "HELPER_LIMIT", -1):
            with self.assertRaisesRegex(Failure, r"virtiofsd-root-0 ended during the run \(exit status 101\)"):
                self.check(made)

    def test_one_that_ends_with_its_guest_is_well(self):
        made = self.run_with(virtiofsd_root_0="raise SystemExit(1)")
        made.processes["qemu-0"].kill()
        made.processes["qemu-0"].wait()
        with mock.patch.object(guest, "HELPER_LIMIT", -1):
            self.check(made)

    def test_logs_that_say_nothing_are_not_named(self):
        made = self.run_with(efa_emu="pass")
        (self.folder / "trace.log").touch()
        (self.folder / "guest0.console.log").write_text("Linux\n")
        self.assertEqual([file.name for file in made.logs().values()], ["efa-emu.log", "guest0.console.log"])


def python(script):
    return processes.Process([sys.executable, "-c", script])


if __name__ == "__main__":
    unittest.main()
