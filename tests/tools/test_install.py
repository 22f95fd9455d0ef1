# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What make check-install adds up, without a machine."""

import unittest
from unittest import mock

import support  # noqa: F401
from efa_tools import install, namespace, package, steps
from efa_tools.failure import Failure
from efa_tools.tally import Tally


class Scenario:
    tally = Tally()
    machine = mock.Mock()

    def __init__(self, *_):
        pass

    def end(self):
        return Tally(passed=3)


def without_machine(_):
    raise Failure("It has no root.")


class Scenarios(unittest.TestCase):
    def test_one_that_cannot_run_keeps_no_other_from_it(self):
        scenarios = {"first": (without_machine, True), "second": (Scenario, False)}
        with (
            mock.patch.object(package, "deb"),
            mock.patch.object(namespace, "remove"),
            mock.patch.object(steps, "note") as note,
            mock.patch.multiple(install, fresh=Scenario, depends=Scenario, SCENARIOS=scenarios),
        ):
            total = install.run()
        self.assertEqual((total.passed, total.failures), (6, ["first could not run to its end"]))
        self.assertIn("It has no root.", str(note.call_args))


if __name__ == "__main__":
    unittest.main()
