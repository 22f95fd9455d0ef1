# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import json
import unittest

import support  # noqa: F401
from efa_tools import srd_bench

MIB = srd_bench.MIB


def row(transport, size, longest):
    cdf = [0.5 + (longest - 0.5) * percent / 100 for percent in range(101)]
    times = {"median": cdf[50], "mean": 0.9, "max": longest, "cdf": cdf}
    return {"transport": transport, "bytes": size, "ideal_us": 100.0} | times


def persistent(transport):
    return {"transport": transport, "step_ms": 10, "gbps": [[0.0, 1.0, 2.0, 1.0, 2.0], [0.0, 2.0, 4.0, 2.0, 4.0]]}


FIGURES = {
    "network": {"paths": 64},
    "incast": [row(*values) for values in (("srd", 65536, 1.04), ("tcp", 65536, 90.0), ("srd", 2 * MIB, 1.01), ("tcp", 2 * MIB, 6.0))],
    "persistent": [persistent("srd"), persistent("tcp")],
    "racks": [row("srd", 2 * MIB, 1.1), row("tcp", 2 * MIB, 19.0)],
    "all_to_all": {
        "devices": 1024,
        "messages": 1047552,
        "simulated_us": 120.0,
        "ideal_us": 100.0,
        "seconds": 60.4,
        "cpu_seconds": 31.0,
        "peak_mib": 2400,
    },
}


class SrdBench(unittest.TestCase):
    def test_the_worst_size_counts(self):
        self.assertEqual(srd_bench.line(FIGURES), "48-flow incast max FCT / ideal: 1.040")

    def test_each_experiment_has_a_row(self):
        lines = list(srd_bench.tables(FIGURES))
        self.assertRegex(lines[1], r"^incast, 48 x 64 KiB +srd +0\.770 +0\.900 +1\.035 +1\.040$")
        self.assertRegex(lines[6], r"^8 \+ 8 servers, 16 flows each +tcp +9\.750 .* 19\.000$")
        # The first of five steps is not counted.
        self.assertRegex(lines[9], r"^2 flows +srd +1\.50 +2\.25 +3\.00$")
        expected = "all-to-all: 1,024 devices, 1,047,552 messages in 60 s, 31 s of a processor, 2,400 MiB; 1.20 of the ideal time"
        self.assertEqual(lines[12], expected)

    def test_each_flow_has_a_line(self):
        panels = srd_bench.picture(FIGURES)
        self.assertEqual([len(panel["series"]) for panel in panels], [2, 2, 2, 2, 2])

    def test_the_json_is_all_of_it_with_a_line_for_each_row(self):
        text = srd_bench.document(FIGURES)
        self.assertEqual(json.loads(text), FIGURES)
        self.assertEqual(len(text.splitlines()), 2 + 3 * 2 + 8 + 2)


if __name__ == "__main__":
    unittest.main()
