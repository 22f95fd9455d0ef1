# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs that are interrupted by a signal, or for which there is no space on the disk."""

import contextlib
import errno
import io
import os
import signal
import subprocess
import unittest
from unittest import mock

import support
from efa_tools import cli, steps, times
from efa_tools.failure import Failure

# Two consecutive jobs. The second one runs until it is interrupted.
RUN = """
import sys, threading
from unittest import mock
from efa_tools import check, cli, schedule, steps
from efa_tools.tally import Tally

def forever():
    with steps.step("a long step"):
        print("there", flush=True)
        threading.Event().wait()

def both():
    return check.run([schedule.Job("one", lambda: Tally(passed=2)), schedule.Job("two", forever, after=("one",))], "both")

sys.argv = ["/tools/check"]
with mock.patch("efa_tools.toolroot.root"):
    sys.exit(cli.guarded(both)())
"""


class Interrupted(support.TemporaryCache):
    def interrupt(self, script, number):
        """Interrupts a program once it has printed `there`; returns its messages."""
        process = self.python(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "there\n")
        process.send_signal(number)
        printed, said = process.communicate(timeout=support.PATIENCE)
        self.assertEqual((process.returncode, printed), (128 + number, ""))
        return [line for line in said.splitlines() if not line.startswith("==>")]

    def test_it_says_what_was_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            (said,) = self.interrupt(RUN, number)
            begin = f"check was interrupted by {number.name} during a long step: complete results are kept,"
            self.assertEqual(said, f"{begin} and the next run continues from there.")

    def test_what_was_over_is_kept(self):
        self.interrupt(RUN, signal.SIGINT)
        (run,) = times.load("both")
        self.assertEqual((run["interrupted"], run["passed"], [job["name"] for job in run["steps"]]), (True, 2, ["one"]))
        self.assertGreaterEqual(run["end"], run["start"])

    def test_it_is_not_the_last_run_whose_failures_are_done_again(self):
        self.interrupt(RUN, signal.SIGINT)
        with self.assertRaisesRegex(Failure, "No run of both is kept"):
            times.failed("both")

    def test_a_signal_does_not_wake_the_main_thread(self):
        script = """
import os, signal, threading
from pathlib import Path
from efa_tools import cli, patience

def signalled():
    # A pipe's reader is not woken by what another thread gets.
    reads = Path(f"/proc/self/task/{os.getpid()}/wchan")
    patience.wait_until(lambda: reads.read_text().endswith("pipe_read"), "The main thread did not read")
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

def main():
    threading.Thread(target=signalled).start()
    os.read(os.pipe()[0], 1)

cli.guarded(main)()
"""
        process = self.python(script, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        _, said = process.communicate(timeout=support.PATIENCE)
        self.assertEqual((process.returncode, said.split(" by ")[1].split(":")[0]), (128 + signal.SIGTERM, "SIGTERM"))

    def test_the_processes_of_its_commands_end(self):
        script = "from efa_tools import interrupt, steps; interrupt.watch(); steps.call(['sh', '-c', 'sleep 999 & echo there; wait'])"
        # The output ends with the last process that has it.
        self.interrupt(script, signal.SIGTERM)

    def test_an_installation_of_packages_is_not_cut_short(self):
        program = self.folder / "apt-get"
        program.write_text("#!/bin/sh\necho there\nread line\necho over\n")
        program.chmod(0o755)
        script = f"import subprocess; from efa_tools import interrupt; interrupt.watch(); subprocess.run([{str(program)!r}])"
        process = self.python(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "there\n")
        process.terminate()
        process.wait(support.PATIENCE)
        self.assertEqual(process.communicate("\n", support.PATIENCE)[0], "over\n")

    def test_outside_a_run(self):
        script = "import sys, time; from efa_tools import cli; sys.argv = ['vm']\n"
        script += "cli.guarded(lambda: (print('there', flush=True), time.sleep(9999)))()"
        (said,) = self.interrupt(script, signal.SIGINT)
        self.assertRegex(said, "^vm was interrupted by SIGINT: ")

    def test_the_last_look_for_signals_is_before_the_end(self):
        script = "from efa_tools import interrupt; interrupt.LOOK = 1e-4; interrupt.watch(); print('there')"
        process = self.python(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((process.communicate(timeout=support.PATIENCE), process.returncode), (("there\n", ""), 0))


class NoRoom(support.TemporaryCache):
    def fails(self, error):
        def main():
            raise error

        with mock.patch("efa_tools.interrupt.watch"), contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(cli.guarded(main)(), 1)
        return said.getvalue()

    def test_of_our_own(self):
        said = self.fails(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/file"))
        self.assertRegex(said, "^There is no space left on the disk for /cache/file: free some, or set XDG_CACHE_HOME")
        said = self.fails(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/cache/file"))
        self.assertRegex(said, r"^The system refused an operation for /cache/file \(Permission denied\): ")

    def step(self, script):
        with self.assertRaises(Failure) as caught, steps.step("a step") as log:
            steps.run(["sh", "-c", script], log, "Making it")
        return str(caught.exception)

    def test_of_a_command(self):
        for line in ("tar: a: Cannot write: No space left on device", "error: failed to write: (os error 28)", "cp: Disk quota exceeded"):
            said = self.step(f"echo {line!r}; exit 2")
            self.assertRegex(
                said, f"(?s)^Making it failed, as there is no space left on a disk. Free some, .* run this again. The log .*{line[-9:-1]}"
            )
            self.assertEqual(len(said.splitlines()), 2)

    def test_of_a_command_that_could_not_even_say_so(self):
        self.patch(mock.patch("efa_tools.steps.is_full", return_value=True))
        self.assertRegex(self.step("exit 2"), "(?s)^Making it failed, as there is no space left .* is on a disk that is full$")

    def test_a_disk_with_room_is_not_full(self):
        self.assertFalse(steps.is_full(self.folder))
        self.assertTrue(steps.is_full("/proc"))


if __name__ == "__main__":
    unittest.main()
