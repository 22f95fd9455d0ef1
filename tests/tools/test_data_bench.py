# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest

import support  # noqa: F401
from efa_tools import data_bench

MIB = data_bench.MIB


def transport(factor):
    bandwidths = {
        name: {64: 1.0 * factor, 4096: (8.0 if name == "send" else 10.0) * factor, MIB: 100.0 * factor, 8 * MIB: 80.0 * factor}
        for name in data_bench.BANDWIDTHS
    }
    return bandwidths | {name: {2: 990.0 / factor, 64: 1000.0 / factor} for name in data_bench.LATENCIES}


FIGURES = {
    "efa": transport(40),
    "rxe": transport(1),
    "memcpy": {64: 9000.0, 4096: 9000.0, MIB: 8000.0, 8 * MIB: 4000.0},
    "endpoints": {"one_pair": 100.0, "four_pairs": 180.0, "alone_us": 20.0, "attacked_us": 50.0},
}


class DataBench(unittest.TestCase):
    def test_the_worst_of_the_large_messages_and_64_bytes_count(self):
        figures = {**FIGURES, "efa": {**FIGURES["efa"], "write": {64: 1.0, 4096: 400.0, MIB: 2000.0, 8 * MIB: 2400.0}}}
        self.assertEqual(
            data_bench.summary(figures),
            [
                "rdma write / memcpy: 0.25",
                "rdma write / rxe: 20.0",
                "send rate / write rate: 0.80",
                "4 pairs / 1 pair: 1.80",
                "bystander latency under attack / alone: 2.50",
                "send latency / rxe: 0.03",
            ],
        )

    def test_each_size_has_a_row_and_what_was_not_measured_is_empty(self):
        figures = {**FIGURES, "rxe": {**FIGURES["rxe"], "send": {64: 1.5}}}
        lines = list(data_bench.tables(figures))
        self.assertRegex(lines[0], r"^MiB/s +memcpy +efa write .* rxe send$")
        self.assertRegex(lines[1], r"^64 B +9,000\.00 .* 1\.50$")
        self.assertRegex(lines[4], r"^8 MiB +4,000\.00 +3,200\.00 .* 80\.00 +$")
        self.assertRegex(lines[6], r"^us, typical +efa send latency")
        self.assertRegex(lines[7], r"^2 B +24\.75 ")

    def test_names_of_sizes(self):
        self.assertEqual([data_bench.size_name(size) for size in (2, 4096, 8 * MIB)], ["2 B", "4 KiB", "8 MiB"])

    def test_each_measurement_has_a_line(self):
        lines = [line for panel in data_bench.picture(FIGURES) for line in panel["series"]]
        self.assertEqual(len(lines), 1 + 6 + 6)
        self.assertEqual(sum(line["dashed"] for line in lines), 6)


if __name__ == "__main__":
    unittest.main()
