# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest

import support  # noqa: F401
from efa_tools import suite

GOOD = """\
   31.975947 0 reset NORMAL
   31.978669 0 reset end
   41.812750 1 reset NORMAL
   41.814576 1 reset end
   42.000000 0 aenq KEEP_ALIVE syndrome=0
   42.546161 2 reset SHUTDOWN
   42.546350 2 read DEV_STS = 0x1
   45.549048 0 reset SHUTDOWN
   45.549100 0 write MMIO_RESP_HI = 0x0
   45.549110 0 write MMIO_RESP_LO = 0x6465000
   45.549132 0 read DEV_STS = 0x9
   45.549140 0 write DEV_CTL = 0x0
   45.549156 0 reset end
"""


def bad(trace):
    """Returns the number of checks that find a problem."""
    return sum(1 for problems in suite.power_off_problems(trace).values() if problems)


class PowerOff(unittest.TestCase):
    def test_as_it_should_be(self):
        self.assertEqual(bad(GOOD), 0)

    def test_no_reset(self):
        self.assertEqual(bad(GOOD.replace("0 reset SHUTDOWN", "0 reset NORMAL")), 1)
        self.assertEqual(bad(GOOD.replace("2 reset SHUTDOWN", "2 reset NORMAL")), 1)

    def test_a_reset_that_is_not_awaited(self):
        self.assertEqual(bad(GOOD.replace("   45.549156 0 reset end\n", "")), 1)

    def test_a_command_after_the_reset(self):
        self.assertEqual(bad(GOOD + "   45.600000 0 aq 800 DESTROY_QP(qp=1) = SUCCESS [1 in flight]\n"), 1)

    def test_a_write_after_the_reset(self):
        self.assertEqual(bad(GOOD + "   45.600000 0 write AQ_PROD_DB = 0x1\n"), 1)

    def test_a_reset_too_many(self):
        self.assertEqual(bad(GOOD + "   46.0 1 reset SHUTDOWN\n"), 1)
        self.assertEqual(bad(GOOD + "   46.0 2 reset SHUTDOWN\n"), 0)
        self.assertEqual(bad(GOOD + "   46.0 2 reset SHUTDOWN\n" * 2), 1)

    def test_a_protocol_error(self):
        self.assertEqual(bad(GOOD + "   46.0 1 protocol error: a doorbell\n"), 1)

    def test_an_empty_trace(self):
        self.assertEqual(bad(""), 2)


if __name__ == "__main__":
    unittest.main()
