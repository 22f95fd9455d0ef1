# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""rdma-core's own tests with each driver. Each test ends as rdma-core/expected says, and with all drivers alike."""

import importlib.util
import json
import random
import unittest

import pytest
from conftest import CLONE

MINUTES = 3
COMBINATIONS = {"check": ["rust cloud-amd64"], "all": ["c cloud-amd64"]}
# The device with the most features.
GUESTS = {"devices": ["profile=efa3,keep_alive_ms=0"]}
RESULTS: dict[str, dict] = {}


def unlike(one, other):
    """Returns the tests that did not end alike, or not for the same reason, or in other draws."""
    return {name: (one.get(name), other.get(name)) for name in sorted({*one, *other}) if one.get(name) != other.get(name)}


# One group: each combination is compared with those before.
@pytest.mark.xdist_group("rdma_core")
def test_rdma_core(guests, combination, options, ktap):
    done = guests.tried(f"{CLONE}/tests/rdma-core/run.py /run/efa-rs/out/results.json {options['userland']}")
    file = guests.folder / "shared/out/results.json"
    RESULTS[combination] = json.loads(file.read_text()) if file.exists() else {}
    ktap(done)
    for other, results in RESULTS.items():
        assert not (found := unlike(results, RESULTS[combination])), f"{other} and {combination} differ: {found}"


SPEC = importlib.util.spec_from_file_location("rdma_core_run", CLONE / "tests/rdma-core/run.py")
assert SPEC and SPEC.loader
judge = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(judge)
Result = judge.Result


class Example(unittest.TestCase):
    """Tests of each kind."""

    def passes(self):
        """Draws nothing."""

    def skips(self):
        self.skipTest("nothing of mlx5_0")

    def fails(self):
        self.assertEqual(1, 2)

    def draws(self):
        if random.random() < 0.5:
            self.skipTest("unlucky")

    def hangs(self):
        while True:
            pass


@pytest.mark.tier("check")
def test_outcomes(monkeypatch):
    def ending(name):
        return judge.run(Example(name), name, "mlx5_0")

    assert ending("passes") == Result("pass", more="pass")
    assert ending("skips")[:2] == ("skip", "nothing of DEVICE")
    assert ending("fails")[:2] == ("fail", "AssertionError: 1 != 2")
    draws = ending("draws")
    assert (draws[:2], len(draws.more.split())) == (("draw", "unlucky"), judge.DRAWS) and draws == ending("draws")
    monkeypatch.setattr(judge, "PATIENCE", 0.3)
    assert ending("hangs").outcome == "timeout"


@pytest.mark.tier("check")
def test_judge(capsys):
    assert judge.report(1, "a", Result("draw", "why"), Result("draw", "why", "pass skip"))
    assert judge.report(1, "a", Result("skip", "why"), Result("skip", "why"))
    assert capsys.readouterr().out.splitlines() == ["ok 1 a", "ok 1 a # SKIP why"]
    good, skipped = Result("pass"), Result("skip", "why")
    others = (Result("skip", "no device"), good, Result("fail", "1 != 2"))
    for wanted, got in ((good, skipped), (None, good), *((skipped, other) for other in others)):
        assert not judge.report(1, "a", wanted, got)
    for line in (
        "pass because\n\tC a",
        "skip\n\tC a",
        "ok\n\tC a",
        "fail why\n\tC a",
        "\tC a",
        "pass\n\tC a\n\tC a",
        "pass\n\tC a*",
        "pass\n\tC",
    ):
        with pytest.raises(judge.BadList):
            judge.read_list(line, "stable")
    listed = judge.read_list("skip a * | C a*\nskip two\n\tC ab*\n\tnext C abc\n\tstable C abx e", "stable")
    found = [judge.listed_for(f"C.test_{name}", listed) for name in ("abc", "ac", "abx", "e", "b")]
    assert found == ["C.test_ab*", "C.test_a*", "C.test_abx", "C.test_e", None]
    assert judge.report(1, "ac", listed["C.test_a*"], Result("skip", "a reason"))
    assert unlike({"a": "pass skip"}, {"a": "skip pass"}) and unlike({"a": 1}, {}) and not unlike({"a": 1}, {"a": 1})
    for userland, count in (("stable", 20), ("next", 21)):
        listed = judge.read_list((judge.FOLDER / "expected").read_text(), userland)
        assert [result.outcome for test, result in listed.items() if test.startswith("test_efa")] == ["pass"] * count
