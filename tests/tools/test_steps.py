# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import os
import re
import signal
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

import support
from efa_tools import guest, patience, processes, steps
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
        said = self.fails(f"print({APT!r}); raise SystemExit(25)", r"\AMaking it failed, as Debian's mirror did not deliver a file. Run")
        self.assertEqual(len(said.splitlines()), 2)
        self.assertIn("qemu.deb  503", said)

    def test_a_mirror_that_has_changed_is_one_sentence(self):
        for line in (
            "E: Version '1.85.1' for 'libstd-rust-dev:arm64' was not found",
            "E: Unable to correct problems, you have held broken packages.",
        ):
            said = self.fails(
                f"print({line!r}); raise SystemExit(100)", r"\AMaking it failed, as the versions .* in Debian's mirror differ .* Remove"
            )
            self.assertEqual(said.splitlines()[1].strip(), line)

    def test_a_registry_that_fails_is_one_sentence(self):
        self.fails(f"print({CARGO!r}); raise SystemExit(101)", "as the crates' registry did not deliver")

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


class Heartbeat(support.TemporaryCache):
    """Messages about the progress of long steps."""

    def setUp(self):
        super().setUp()
        self.patch(mock.patch.object(steps, "HEARTBEAT", 0.01))

    def beats(self):
        return [call.args[0] for call in steps.note.call_args_list if " so far" in call.args[0]]

    def await_beat(self, expected):
        support.wait_until(lambda: any(re.search(expected, beat) for beat in self.beats()), f"{expected} was not said")

    def test_it_says_for_how_long_it_goes_on_and_what_it_has_printed_last(self):
        threads = threading.active_count()
        with steps.step("a step") as log:
            self.await_beat(r"^a step: \d+ s so far$")
            log.write("one\n\x1b[1mtwo\x1b[0m 10 %\rtwo 20 %\r\n\n")
            self.await_beat(r"^a step: \d+ s so far: two 20 %$")
        self.assertEqual(threading.active_count(), threads)

    def test_the_output_can_be_elsewhere(self):
        with steps.step("a step", lambda: self.folder / "output"):
            self.await_beat(r"a step: \d+ s so far")
            (self.folder / "output").write_text("ok 1 elsewhere\n")
            self.await_beat("so far: ok 1 elsewhere")

    def test_the_command_itself_is_not_shown(self):
        file = self.folder / "log"
        file.write_text("one\n$ make all\n")
        self.assertEqual(steps.last_line(file), "one")
        file.write_text("$ make all\n")
        self.assertEqual(steps.last_line(file), "")

    def test_a_long_line_is_cut(self):
        file = self.folder / "log"
        file.write_text("first\n" + "x" * 5000 + "y\n")
        self.assertEqual(steps.last_line(file), "x" * steps.SHOWN + "...")

    def test_a_short_step_is_quiet(self):
        with mock.patch.object(steps, "HEARTBEAT", support.PATIENCE), steps.step("a step"):
            pass
        self.assertEqual(self.beats(), [])


AT_ONCE = """
import sys
from efa_tools import steps
with steps.step("a step") as log:
    print("open", flush=True)
    sys.stdin.readline()
    steps.run([sys.executable, "-c", "print('of', {number})"], log, "Making it")
    print("written", flush=True)
    sys.stdin.readline()
print(open(log.name).read())
"""


class Logs(support.TemporaryCache):
    def test_three_runs_at_once_have_logs_of_their_own(self):
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout")}
        runs = [self.python(AT_ONCE.format(number=number), stderr=subprocess.DEVNULL, **pipes) for number in range(3)]
        for there in ("open", "written"):
            for run in runs:
                self.assertEqual(run.stdout.readline(), f"{there}\n")
            for run in runs:
                run.stdin.write("go on\n")
                run.stdin.flush()
        for number, run in enumerate(runs):
            command, said = run.communicate()[0].split("\n", 1)
            self.assertEqual((command[:1], said.strip(), run.returncode), ("$", f"of {number}", 0))

    def test_the_newest_are_kept_and_those_that_are_written(self):
        folder = self.folder / "efa-rs" / "logs"
        folder.mkdir(parents=True)
        ended = self.python("")
        ended.wait()
        names = [f"a-step-{number}.key.{ended.pid}.log" for number in range(6)] + ["kvm.log"]
        for number, name in enumerate([f"old.key.{os.getpid()}.log", *names]):
            (folder / name).touch()
            os.utime(folder / name, (number, number))
        with mock.patch.object(steps, "KEPT", 3):
            mine = steps.log_file("another")
        self.assertEqual(sorted(file.name for file in folder.iterdir()), [*names[-3:], f"old.key.{os.getpid()}.log"])
        self.assertEqual(mine.name.split(".")[2], str(os.getpid()))


class Helpers(support.TemporaryCache):
    """Handling of programs that serve guests and end during the run."""

    def run_with(self, **scripts):
        """Returns a run with programs that execute these scripts, while QEMU continues to run."""
        made = guest.Run.__new__(guest.Run)
        made.folder, made.ends, made.in_process = self.folder, {}, False
        made.options = types.SimpleNamespace(guests=1)
        made.processes = {"qemu-0": python("import time; time.sleep(9999)")}
        self.addCleanup(made.processes["qemu-0"].wait)
        self.addCleanup(made.processes["qemu-0"].kill)
        for argument, script in scripts.items():
            name = argument.replace("_", "-")
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
        made.ends.clear()
        said = self.assertRaisesRegex(Failure, r"virtiofsd-root-0 ended during the run \(exit status 101\)")
        with mock.patch.object(patience, "PATIENCE", -1), said:
            self.check(made)

    def test_a_file_server_that_is_killed_is_told_of_at_once(self):
        made = self.run_with(virtiofsd_root_0="import os; os.kill(os.getpid(), 9)")
        with self.assertRaisesRegex(Failure, r"virtiofsd-root-0 ended during the run \(killed by SIGKILL\)"):
            self.check(made)

    def test_one_that_ends_with_its_guest_is_well(self):
        made = self.run_with(virtiofsd_root_0="raise SystemExit(1)")
        made.processes["qemu-0"].kill()
        made.processes["qemu-0"].wait()
        with mock.patch.object(patience, "PATIENCE", -1):
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
