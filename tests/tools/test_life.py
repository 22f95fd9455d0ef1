# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Distribution of tests/life among guests, and display of their progress."""

import gc
import math
import mmap
import os
import sys
import tempfile
import unittest
import weakref
from pathlib import Path
from unittest import mock

from support import CLONE, TemporaryCache

sys.path += [str(CLONE / folder) for folder in ("tests/life", "tests/kselftest", "tools/guest")]

import crowd
import detections
import loads
import stage
import timing
from efa_tools import life, stalls, steps, suite
from efa_tools.failure import Failure
from selftest import Failed, wait_until

AVAILABLE = {
    "life.py": {"dies, idle": math.inf, "dies, busy": math.inf, "pulled out, idle": 100, "pulled out, busy": 100},
    "outcomes.py": {"dies": math.inf, "pulled out": math.inf},
    "deaths.py": {"both devices die": math.inf},
}


class Shares(unittest.TestCase):
    def test_few_rounds(self):
        self.assertEqual(
            life.shares(AVAILABLE, None, []),
            [life.Share("life.py", {"life.py": []}), life.Share("outcomes.py deaths.py", {"outcomes.py": [], "deaths.py": []})],
        )

    def test_chosen(self):
        self.assertEqual(
            life.shares(AVAILABLE, None, ["dies, idle", "both"]),
            [life.Share("life.py", {"life.py": ["dies, idle"]}), life.Share("deaths.py", {"deaths.py": ["both devices die"]})],
        )

    def test_many_rounds(self):
        """There is a guest for each trigger, or, with a limit of rounds per guest, as many as are needed for all rounds."""
        shares = life.shares(AVAILABLE, 250, [", "])
        self.assertEqual(shares[0], life.Share("dies", {"life.py": ["dies, idle", "dies, busy"]}, 250))
        for name in ("pulled out, idle", "pulled out, busy"):
            rounds = [share.rounds for share in shares if share.programs["life.py"] == [name]]
            self.assertEqual(rounds, [100, 100, 50])
        self.assertEqual(len(shares), 7)
        self.assertEqual(len({share.name for share in shares}), 7)

    def test_few_of_what_is_limited(self):
        """As long as all loads together stay below the limit, one guest is enough."""
        shares = life.shares(AVAILABLE, 50, ["pulled out, "])
        self.assertEqual(shares, [life.Share("pulled out", {"life.py": ["pulled out, idle", "pulled out, busy"]}, 50)])

    def test_none(self):
        with self.assertRaisesRegex(Failure, "has nothing or never in its name"):
            life.shares(AVAILABLE, 10, ["nothing", "never"])

    def test_command(self):
        share = life.Share("", {"life.py": ["dies, idle", "it's gone"]}, 7)
        self.assertEqual(
            share.command("run.sh", ["dmesg.py"]),
            "EFA_TESTS='dies, idle;it'\"'\"'s gone' EFA_ROUNDS=7 kselftest_override_timeout=3880 run.sh ../life/life.py dmesg.py",
        )


class Jobs(TemporaryCache):
    def names(self, *arguments, **options):
        return [name.partition("cloud-amd64 ")[2] for name, *_ in life.jobs("rust", "cloud-amd64", *arguments, **options)]

    def test_without_limits_each_test_is_run_once(self):
        self.assertEqual(self.names(), ["life.py", "outcomes.py deaths.py"])

    def test_where_limits_count_there_is_more(self):
        self.assertEqual(self.names(measured=True), ["life.py", "outcomes.py deaths.py", "life.py limits", "deaths.py limits"])
        rounds = life.jobs("rust", "cloud-amd64", 20, ["unbind, idle"], measured=True)
        self.assertEqual([name.partition("cloud-amd64 ")[2] for name, *_ in rounds], ["unbind", "life.py limits"])

    def test_the_debug_kernel_has_no_limits(self):
        self.assertEqual([timed for *_, timed in life.jobs("rust", "debug", measured=True)], [False, False])

    def test_what_has_no_limits(self):
        self.assertEqual(self.names(None, ["non-fatal error of PCI Express"], measured=True)[0], "outcomes.py deaths.py")

    def test_command_with_limits(self):
        share = life.Share("", {"life.py": []}, measured=True)
        self.assertIn("EFA_LIMITS=1 ", share.command("run.sh", []))


class Names(TemporaryCache):
    def test_all_programs(self):
        """The programs list their tests even without a device."""
        for program in {name for names in life.OTHERS.values() for name in names} | {life.ENDLESS}:
            self.assertGreater(len(life.tests(program)), 5)
        self.assertEqual(life.tests(life.ENDLESS)["pulled out, idle"], 100)


RESET, RESETTING = "efa_reset: 0000:01:00.0 fatal_error", "efa_state: 0000:01:00.0 resetting"
UP, NOTIFIED = "efa_state: 0000:01:00.0 up", "notified: (ib_uverbs_async_handler+0x0/0x80 [ib_uverbs]) event=0x8"


class Order(unittest.TestCase):
    def check(self, *events):
        found = object.__new__(detections.Detections)
        found.read = lambda: None
        found.text = "".join(f"    python3-7   [000] ..... {number}.250000: {event}\n" for number, event in enumerate(events))
        found.check_order(mock.Mock(address="0000:01:00.0"))

    def test_programs_are_notified_first(self):
        self.check(RESET, RESETTING, NOTIFIED, UP)
        # An event of another device, and two programs of a device that the bus resets.
        self.check(RESET, "efa_state: 0000:02:00.0 up", RESETTING, NOTIFIED, NOTIFIED, RESETTING, UP)

    def test_many_programs_of_a_device_that_the_bus_resets(self):
        self.check(RESET.replace("fatal_error", "requested"), RESETTING, NOTIFIED, NOTIFIED, RESETTING, NOTIFIED, UP)

    def test_programs_that_are_notified_late_or_again(self):
        for events in (
            (RESET, RESETTING, NOTIFIED, RESETTING, NOTIFIED, UP),
            (RESET, RESETTING, UP, NOTIFIED),
            (RESET, RESETTING, RESET, RESETTING, NOTIFIED, UP),
            (RESET, RESETTING, UP),
            (NOTIFIED, RESET, RESETTING, UP),
            (RESET, RESETTING, NOTIFIED, UP, NOTIFIED),
            (),
        ):
            with self.assertRaisesRegex(Failed, "do not get their event before"):
                self.check(*events)


class Limits(unittest.TestCase):
    def limits(self, *totals):
        """Returns limits with these successive totals of the time that guest and host have stalled."""
        made = mock.patch.object(timing, "COUNTS", True), mock.patch.object(timing, "Stalls", mock.Mock())
        with made[0], made[1]:
            limits = timing.Limits()
        limits.stalls.total.side_effect = totals
        limits.begin_round()
        return limits

    def test_what_is_late_fails(self):
        limits = self.limits(5.0, 5.1)
        limits.check("notified", 0.9, 1.0)
        with self.assertRaisesRegex(Failed, "notified after 1.50 s, which may be 1.0"):
            limits.check("notified", 1.5, 1.0)

    def test_a_delay_by_a_stall_is_inconclusive(self):
        limits = self.limits(5.0, 5.3)
        with mock.patch("builtins.print"):
            limits.check("notified", 1.5, 1.0)
        self.assertEqual(len(limits.inconclusive), 1)
        self.assertEqual(limits.summary(), ", notified within 1.50 s")

    def test_limits_that_do_not_count(self):
        timing.Limits().check("notified", 1000, 1)

    def test_a_kernel_that_does_not_count_the_wait_for_a_processor(self):
        with mock.patch.object(Path, "read_text", side_effect=FileNotFoundError):
            self.assertEqual(timing.queued(), 0)

    def test_a_host_that_stalls(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "stalls"
            with mock.patch.object(stalls, "TICK", -1), stalls.recorded(file):
                wait_until(lambda: int(file.read_text()) > 0, "the host stalls")
            self.assertEqual(len(file.read_text()), stalls.DIGITS)


class Processes(unittest.TestCase):
    def test_one_that_fails_before_all_have_begun(self):
        load = loads.Objects.__new__(loads.Objects)
        load.begun = os.eventfd(0, os.EFD_NONBLOCK)
        self.addCleanup(os.close, load.begun)
        load.members = [mock.Mock(**{"answers.return_value": True, "result.side_effect": [None, Failed("process 0: OSError")]})]
        with self.assertRaisesRegex(Failed, "process 0: OSError"):
            load.start(1)

    def test_their_memory_is_freed_without_a_garbage_collection(self):
        classes = "CompletionChannel CompletionQueue QueuePair AddressHandle MemoryRegion IoctlMemoryRegion Mapping"
        with mock.patch.multiple(crowd, **dict.fromkeys(["opened", *classes.split()], mock.DEFAULT)) as made:
            made["opened"].return_value.alloc_pd.return_value = 1, b""
            one = crowd.Crowd(None, 1, region=mmap.PAGESIZE)
            one.run(100)
        gc.disable()
        self.addCleanup(gc.enable)
        memory = weakref.ref(one.memory)
        del one
        self.assertIsNone(memory())


class Peer(unittest.TestCase):
    def test_it_is_closed_if_it_is_open(self):
        made, far = stage.Stage.__new__(stage.Stage), mock.Mock()
        for made.far in (far, None):
            made.close_far()
            self.assertIsNone(made.far)
        far.close.assert_called_once_with()


class Progress(TemporaryCache):
    def test_lines(self):
        suite.show_progress("life", "  # dies, idle: 3 of 10 rounds, notified within 0.1 s\r\n")
        steps.note.assert_called_once_with("life: dies, idle: 3 of 10 rounds, notified within 0.1 s")
        steps.note.reset_mock()
        for line in ("  ok 1 dies, idle", "  # dies, idle: round 3: not notified"):
            suite.show_progress("life", line)
        steps.note.assert_not_called()


if __name__ == "__main__":
    unittest.main()
