# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import contextlib
import io
import subprocess
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import support
from efa_tools import check, processes, steps, times
from efa_tools.failure import Failure
from efa_tools.schedule import Job
from efa_tools.tally import Tally

# Uses half a second of CPU time.
BUSY = "import time\nwhile time.process_time() < 0.5: pass"
# Use half a second, and unlimited CPU time, in a child that they wait for.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
FOREVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True)\\nwhile True: pass'])"


def python(script, **options):
    return processes.Process([sys.executable, "-c", script], **options)


class Processes(unittest.TestCase):
    def test_cpu_time_of_a_process_and_its_children(self):
        for script in (BUSY, PARENT):
            with python(script) as process:
                self.assertEqual(process.wait(), 0)
            self.assertGreaterEqual(process.cpu, 0.45)
            self.assertLess(process.cpu, 3)

    def test_cpu_time_of_one_that_is_polled(self):
        with python(BUSY) as process:
            while process.poll() is None:
                pass
        self.assertGreaterEqual(process.cpu, 0.45)

    def test_cpu_time_of_one_that_is_waited_for_with_a_limit(self):
        with python(BUSY) as process:
            with self.assertRaises(subprocess.TimeoutExpired):
                process.wait(0.01)
            self.assertEqual(process.wait(60), 0)
        self.assertGreaterEqual(process.cpu, 0.45)

    def test_cpu_time_of_a_killed_one_has_that_of_its_children(self):
        with python(FOREVER, stdout=subprocess.PIPE, process_group=0) as process:
            process.stdout.readline()
            while processes.used_by_tree(process.pid) < 0.4:
                pass
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.kill()
            subprocess.run(["kill", "-KILL", child], check=True)
            process.wait()
        self.assertGreaterEqual(process.cpu, 0.4)

    def test_all_of_the_machine(self):
        before = processes.used_by_all()
        with python(BUSY) as process:
            process.wait()
        self.assertGreaterEqual(processes.used_by_all() - before, 0.4)

    def test_there_is_no_such_process(self):
        self.assertEqual(processes.used_by_tree(2**22 + 1), 0)


class Times(support.TemporaryCache):
    def test_steps_belong_to_the_job_they_are_done_for(self):
        with times.measured("run") as run:

            def job(name):
                with times.measured(name, run), ThreadPoolExecutor(1) as pool:
                    with steps.step(f"{name} one"):
                        times.spent(2)
                    pool.submit(times.within(other), name).result()
                    times.spent(0.5)

            def other(name):
                with steps.step(f"{name} two"):
                    times.spent(1)

            threads = [threading.Thread(target=job, args=(name,)) for name in ("a", "b")]
            for thread in threads:
                thread.start()
                thread.join()
        found = {job.name: ([step.name for step in job.steps], job.cpu) for job in run.steps}
        self.assertEqual(found, {"a": (["a one", "a two"], 3.5), "b": (["b one", "b two"], 3.5)})
        self.assertEqual(run.cpu, 7)

    def test_cpu_time_of_a_command_is_its_steps(self):
        with times.measured("run") as run, steps.step("busy") as log:
            steps.run([sys.executable, "-c", PARENT], log, "Being busy")
        self.assertGreaterEqual(run.steps[0].cpu, 0.45)
        self.assertGreaterEqual(run.steps[0].length(), 0.45)

    def test_a_step_that_fails_has_its_times_too(self):
        with times.measured("run") as run, self.assertRaises(Failure), steps.step("fails") as log:
            steps.run(["false"], log, "Failing")
        self.assertEqual([step.name for step in run.steps], ["fails"])
        self.assertTrue(run.steps[0].end)

    def test_outside_a_run_nothing_is_kept(self):
        with steps.step("alone"):
            times.spent(1)
        self.assertEqual(times.load(), [])

    def test_runs_are_kept_and_the_oldest_go(self):
        with mock.patch.object(times, "KEPT", 3):
            for number in range(5):
                times.save(times.Span("check", 1e9 + number, 1e9 + number + 60), "check", Tally(passed=number))
        times.save(times.Span("lint", 1e9), "lint", Tally())
        kept = times.load("check")
        self.assertEqual([run["passed"] for run in kept], [2, 3, 4])
        self.assertEqual(kept[0]["end"] - kept[0]["start"], 60)
        self.assertEqual({run["suite"] for run in times.load()}, {"check", "lint"})

    def test_a_file_that_was_cut_short_is_left_out(self):
        file = times.save(times.Span("check", 1e9), "check", Tally())
        file.write_text(file.read_text()[:20])
        self.assertEqual(times.load(), [])

    def test_idle_time(self):
        run = times.Span("run", 0, 100, 0, [times.Span("a", 0, 60), times.Span("b", 10, 30), times.Span("c", 70, 100)])
        self.assertEqual([times.time_with(run.steps, number) for number in (0, 1, 2)], [10, 70, 20])

    def test_table(self):
        run = times.Span("run", 1000, 1100, 90, [times.Span("a", 1000, 1040, 60), times.Span("b", 1030, 1100, 30)])
        lines = times.table(run, 2)
        self.assertEqual(lines[1].split(), ["b", "0:30", "1:40", "70.0", "30.0", "0.43"])
        self.assertEqual(lines[2].split(), ["a", "0:00", "0:40", "40.0", "60.0", "1.50"])
        self.assertEqual(lines[3], "in all 1:40 min, 90 s of CPU time of 200 s that 2 cores have")
        self.assertTrue(times.table(run, 2, 20)[3].endswith("that 2 cores have; other processes used 20 s"))
        self.assertEqual(lines[4], "one job ran at a time for 1:30 min, none for 0:00 min")

    def test_table_of_many_jobs_is_short(self):
        run = times.Span("run", 0, 50, 0, [times.Span(str(number), number, number + 1, 2) for number in range(times.SHOWN + 5)])
        self.assertIn(["5", "others", "5.0", "10.0"], [line.split() for line in times.table(run, 2)])


class Run(support.TemporaryCache):
    def run_jobs(self, *jobs):
        output = io.StringIO()
        self.patch(mock.patch("efa_tools.toolroot.root"))
        with contextlib.redirect_stdout(output):
            tally = check.run(jobs, name="check")
        return check.status(tally), output.getvalue()

    def test_a_run_keeps_its_times_and_ends_with_one_line(self):
        def job():
            with steps.step("a step"):
                times.spent(1)
            return Tally(passed=2)

        def fails():
            raise Failure("No.")

        self.assertEqual(self.run_jobs(Job("one", job), Job("two", fails)), (1, "2 passed, 1 failed, 0 skipped\n"))
        (run,) = times.load("check")
        self.assertEqual((run["passed"], run["failed"], run["cpu"]), (2, 1, 1))
        self.assertEqual({job["name"]: [step["name"] for step in job["steps"]] for job in run["steps"]}, {"one": ["a step"], "two": []})


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
