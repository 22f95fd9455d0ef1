# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""How tests/life are shared out among guests, and what is shown of them."""

import math
import unittest

from support import TemporaryCache

from efa_tools import life, suite
from efa_tools.failure import Failure

AVAILABLE = {
    "life.py": {"dies, idle": math.inf, "dies, busy": math.inf, "pulled out, idle": 100, "pulled out, busy": 100},
    "outcomes.py": {"dies": math.inf, "pulled out": math.inf},
    "deaths.py": {"it dies again": math.inf},
}


class Shares(unittest.TestCase):
    def test_few_rounds(self):
        self.assertEqual(
            life.shares(AVAILABLE, None, []),
            [life.Share("life.py", {"life.py": []}), life.Share("outcomes.py deaths.py", {"outcomes.py": [], "deaths.py": []})],
        )

    def test_chosen(self):
        self.assertEqual(
            life.shares(AVAILABLE, None, ["dies, idle", "again"]),
            [life.Share("life.py", {"life.py": ["dies, idle"]}), life.Share("deaths.py", {"deaths.py": ["it dies again"]})],
        )

    def test_many_rounds(self):
        """A guest for each trigger; where a guest has a limit, as many as that takes, which together have all rounds."""
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
            "EFA_TESTS='dies, idle;it'\"'\"'s gone' EFA_ROUNDS=7 kselftest_override_timeout=1180 run.sh ../life/life.py dmesg.py",
        )


class Names(TemporaryCache):
    def test_all_programs(self):
        """The programs tell their tests where there is no device."""
        for program in {name for names in life.OTHERS.values() for name in names} | {life.ENDLESS}:
            self.assertGreater(len(life.tests(program)), 10)
        self.assertEqual(life.tests(life.ENDLESS)["pulled out, idle"], 100)


class Progress(TemporaryCache):
    def test_lines(self):
        from efa_tools import steps

        suite.show_progress("life", "  # dies, idle: 3 of 10 rounds, told within 0.1 s\r\n")
        steps.note.assert_called_once_with("life: dies, idle: 3 of 10 rounds, told within 0.1 s")
        steps.note.reset_mock()
        for line in ("  ok 1 dies, idle", "  # dies, idle: round 3: not told"):
            suite.show_progress("life", line)
        steps.note.assert_not_called()


if __name__ == "__main__":
    unittest.main()
