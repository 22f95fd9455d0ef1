# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import threading
import unittest

import support  # noqa: F401
from efa_tools import check, patience, schedule
from efa_tools.schedule import Job, Machine

TWO = Machine(2, 16)


def job(name, seconds=1, **options):
    return Job(name, lambda: name.upper(), seconds, **options)


def run(jobs, machine=TWO):
    return schedule.run(jobs, machine, lambda job: job.run())


class Trial:
    """Starts jobs as schedule.run() does, and ends them in the order of their start. Records which jobs ran at the same time."""

    def __init__(self, jobs, machine=TWO):
        self.order, self.beside = [], {job.name: set() for job in jobs}
        waiting, running = schedule.by_urgency(jobs), []
        while waiting or running:
            if job := schedule.next_of(waiting, running, machine):
                waiting.remove(job)
                for other in running:
                    self.beside[other.name].add(job.name)
                    self.beside[job.name].add(other.name)
                running.append(job)
                self.order.append(job.name)
            else:
                running.pop(0)


class Order(unittest.TestCase):
    def test_results_are_in_the_order_of_the_jobs(self):
        self.assertEqual(run([job("a", 1), job("b", 9), job("c", 5)]), ["A", "B", "C"])

    def test_no_job_is_no_result(self):
        self.assertEqual(run([]), [])

    def test_longest_first(self):
        done = Trial([job("a", 1), job("b", 9), job("c", 5)], Machine(1, 16))
        self.assertEqual(done.order, ["b", "c", "a"])

    def test_what_a_long_one_waits_for_is_first(self):
        done = Trial([job("a", 50), job("long", 99, after=("build",)), job("build", 1)], Machine(1, 16))
        self.assertEqual(done.order, ["build", "long", "a"])

    def test_nothing_begins_before_what_it_needs_is_over(self):
        done = Trial([job("guest", 9, after=("build", "not among them")), job("build", 1)])
        self.assertEqual(done.beside, {"guest": set(), "build": set()})

    def test_a_circle_is_refused(self):
        with self.assertRaisesRegex(ValueError, "after itself"):
            run([job("a", after=("b",)), job("b", after=("a",))])

    def test_one_that_dies_is_told_of_after_the_others(self):
        done = []

        def do(job):
            if job.name == "bad":
                raise RuntimeError("it died")
            done.append(job.name)

        with self.assertRaisesRegex(RuntimeError, "it died"):
            schedule.run([job("bad", 9), job("a"), job("b")], TWO, do)
        self.assertEqual(sorted(done), ["a", "b"])


class Room(unittest.TestCase):
    def test_there_are_no_more_than_the_cores_are_enough_for(self):
        self.assertTrue(TWO.has_room(job("a"), [job("b")]))
        self.assertFalse(TWO.has_room(job("a"), [job("b"), job("c")]))
        self.assertFalse(TWO.has_room(job("a", cores=0.6), [job("b", cores=2)]))

    def test_what_is_begun_at_once_runs_at_once(self):
        both = threading.Barrier(2, timeout=patience.PATIENCE)
        self.assertEqual(len(schedule.run([job("a"), job("b")], TWO, lambda job: both.wait())), 2)

    def test_a_third_one_has_room_beside_those_that_mostly_wait(self):
        self.assertTrue(TWO.has_room(job("a", cores=0.6), [job("b", cores=0.6), job("c", cores=0.9)]))

    def test_one_that_does_nothing_is_counted_too(self):
        idle = [job(str(number), cores=0) for number in range(10)]
        self.assertFalse(TWO.has_room(idle[0], idle[1:7]))

    def test_many_cores_do_many(self):
        jobs = [job(str(number), cores=2) for number in range(12)]
        self.assertEqual(sum(Machine(16, 99).has_room(jobs[-1], jobs[:number]) for number in range(12)), 8)

    def test_memory_counts(self):
        self.assertTrue(Machine(16, 8).has_room(job("a", memory=3), [job("b", memory=3)]))
        self.assertFalse(Machine(16, 5).has_room(job("a", memory=3), [job("b", memory=3)]))

    def test_what_is_too_large_for_the_machine_is_done_alone(self):
        done = Trial([job("large", memory=99, cores=9), job("other")])
        self.assertEqual(done.beside, {"large": set(), "other": set()})

    def test_timed_ones_are_the_last_and_beside_nothing_else(self):
        jobs = [
            job("timed", 99, timed=True),
            job("a", 1),
            job("b", 2, after=("a",)),
            job("two", 50, timed=True),
            job("alone", 9, timed=True, cores=2),
        ]
        done = Trial(jobs)
        self.assertEqual(done.order[:2], ["a", "b"])
        self.assertEqual(done.beside["timed"], {"two"})
        self.assertEqual(done.beside["alone"], set())

    def test_this_machine_has_something(self):
        machine = Machine.here()
        self.assertGreaterEqual(machine.cores, 1)
        self.assertGreater(machine.memory, 0.1)


class Learning(unittest.TestCase):
    def step(self, name, seconds, cpu):
        return {"name": name, "start": 100, "end": 100 + seconds, "cpu": cpu}

    def test_jobs_take_what_they_took_last(self):
        jobs = [job("a"), job("timed", timed=True, cores=2), job("new", 7)]
        schedule.learn(
            jobs,
            [
                self.run_of(self.step("a", 10, 5)),
                self.run_of(self.step("a", 20, 30), self.step("timed", 40, 4)),
                self.run_of(self.step("a", 1, 1), self.step("new", 1, 1), failed=1),
                # Other processes used a fifth of two cores during these 100 s.
                self.run_of(self.step("a", 70, 5), others=40),
            ],
        )
        self.assertEqual([(job.seconds, job.cores) for job in jobs], [(20, 1.5), (40, 2), (7, 1)])

    def run_of(self, *steps, failed=0, others=0):
        return {"failed": failed, "steps": steps, "others": others, "cores": 2, "start": 100, "end": 200}


class Everything(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fast, cls.all = check.fast(), check.everything()

    def test_names_are_of_one_job_each(self):
        for jobs in (self.fast, self.all):
            self.assertEqual(len({job.name for job in jobs}), len(jobs))

    def test_what_a_job_waits_for_is_a_job(self):
        for jobs in (self.fast, self.all):
            self.assertEqual({name for job in jobs for name in job.after} - {job.name for job in jobs}, set())

    def test_check_is_a_part_of_check_all(self):
        self.assertLess({job.name for job in self.fast}, {job.name for job in self.all})

    def test_devices_that_go_are_timed_where_limits_count(self):
        self.assertEqual({job.timed for job in self.all if job.name.startswith("life")}, {False})
        timed = {job.name.partition("cloud-amd64 ")[2]: job.timed for job in check.life_jobs("rust", "cloud-amd64", measured=True)}
        functional = {"life.py": False, "outcomes.py deaths.py": False}
        self.assertEqual(timed, {**functional, "life.py limits": True, "deaths.py limits": True})


if __name__ == "__main__":
    unittest.main()
