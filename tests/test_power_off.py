# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The effect of a power-off on devices, which no test in the guest can observe: see power-off/prepare.py."""

import re

import pytest
from conftest import CLONE
from guests import Guests

MINUTES = 1
COMBINATIONS = {"all": ["rust cloud-amd64", "c cloud-amd64"]}
GUESTS = {"devices": ["profile=efa3", "profile=efa2", "profile=efa2"]}
TRACED = re.compile(r"^ *[\d.]+ (?P<device>\d+) (?P<event>.*)$", re.MULTILINE)
# Events of a driver that waits for the end of a reset, and acknowledges it.
OF_A_RESET = ("read ", "write MMIO_RESP_", "write DEV_CTL = 0x0")


def problems(trace):
    """Returns the problems in the devices' traces of a power-off, by requirement."""
    events = {"0": [], "1": [], "2": []}
    for match in TRACED.finditer(trace):
        events[match["device"]].append(match["event"])
    used, unbound, silent = events.values()
    last = "reset SHUTDOWN"
    told = silent.count(last)
    after = [event for event in used[used.index(last) + 1 :] if not event.startswith(OF_A_RESET)] if last in used else ["no reset"]
    return {
        "a device in use is reset for a shutdown, and left alone then": [f"after {last}: {after}"] if after != ["reset end"] else [],
        "a device without driver is left alone": [last] * unbound.count(last),
        # The second reset may follow a reset of the bus.
        "a device that does not answer gets two resets at most": [f"{told} times {last}"] if told not in (1, 2) else [],
        "no device sees what a correct driver never does": re.findall(r"protocol error.*", trace),
    }


def test_power_off(request, options):
    with Guests(**options) as guests:
        # A process stays that has the device open.
        guests.run(f"{CLONE}/tests/power-off/prepare.py >/run/prepared 2>&1 || {{ cat /run/prepared; exit 1; }}")
    found = problems((guests.folder / "trace.log").read_text())
    request.node.ktap = [(what, "failed" if bad else "passed", "\n".join(bad)) for what, bad in found.items()]
    assert not any(found.values()), found


GOOD = """\
   31.975947 0 reset NORMAL
   31.978669 0 reset end
   41.812750 1 reset NORMAL
   41.814576 1 reset end
   42.546161 2 reset SHUTDOWN
   45.549048 0 reset SHUTDOWN
   45.549100 0 write MMIO_RESP_HI = 0x0
   45.549132 0 read DEV_STS = 0x9
   45.549140 0 write DEV_CTL = 0x0
   45.549156 0 reset end
"""


@pytest.mark.tier("check")
@pytest.mark.parametrize(
    ("trace", "bad"),
    [
        (GOOD, 0),
        ("", 2),
        (GOOD.replace("0 reset SHUTDOWN", "0 reset NORMAL"), 1),
        (GOOD.replace("2 reset SHUTDOWN", "2 reset NORMAL"), 1),
        (GOOD.replace("   45.549156 0 reset end\n", ""), 1),
        (GOOD + "   45.6 0 aq 800 DESTROY_QP(qp_handle=1) = SUCCESS [1 in flight]\n", 1),
        (GOOD + "   45.6 0 write AQ_PROD_DB = 0x1\n", 1),
        (GOOD + "   46.0 1 reset SHUTDOWN\n", 1),
        (GOOD + "   46.0 2 reset SHUTDOWN\n", 0),
        (GOOD + "   46.0 2 reset SHUTDOWN\n" * 2, 1),
        (GOOD + "   46.0 1 protocol error: a doorbell\n", 1),
    ],
    ids=range(11),
)
def test_judge(trace, bad):
    assert sum(map(bool, problems(trace).values())) == bad
