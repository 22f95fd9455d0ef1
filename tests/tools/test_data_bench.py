# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest
import xml.etree.ElementTree as xml

import support  # noqa: F401
from efa_tools import data_bench

MIB = data_bench.MIB


def transport(factor):
    bandwidths = {name: {64: 1.0 * factor, MIB: 100.0 * factor, 8 * MIB: 80.0 * factor} for name in data_bench.BANDWIDTHS}
    return bandwidths | {name: {2: 990.0 / factor, 64: 1000.0 / factor} for name in data_bench.LATENCIES}


def incast(flows, multipath):
    return {"flows": flows, "multipath": multipath, "median": 1.0 if multipath else 1.5, "max": 1.25 if multipath else 4.0}


FIGURES = {
    "efa": transport(40),
    "rxe": transport(1),
    "memcpy": {64: 9000.0, MIB: 8000.0, 8 * MIB: 4000.0},
    "incast": [incast(flows, multipath) for flows in (2, 48) for multipath in (True, False)],
}


class DataBench(unittest.TestCase):
    def test_the_worst_of_the_large_messages_and_64_bytes_count(self):
        figures = {**FIGURES, "efa": {**FIGURES["efa"], "write": {64: 1.0, MIB: 2000.0, 8 * MIB: 2400.0}}}
        self.assertEqual(
            data_bench.summary(figures),
            [
                "rdma write / memcpy: 0.25",
                "rdma write / rxe: 20.0",
                "send latency / rxe: 0.03",
                "48-flow incast max FCT / ideal: 1.250",
            ],
        )

    def test_each_size_has_a_row_and_what_was_not_measured_is_empty(self):
        figures = {**FIGURES, "rxe": {**FIGURES["rxe"], "send": {64: 1.5}}}
        lines = list(data_bench.tables(figures))
        self.assertRegex(lines[0], r"^MiB/s +memcpy +efa write .* rxe send$")
        self.assertRegex(lines[1], r"^64 B +9,000\.00 .* 1\.50$")
        self.assertRegex(lines[3], r"^8 MiB +4,000\.00 +3,200\.00 .* 80\.00 +$")
        self.assertRegex(lines[5], r"^us, typical +efa send latency")
        self.assertRegex(lines[6], r"^2 B +24\.75 ")
        self.assertRegex(lines[9], r"^flows: time / ideal +median, multipath +max, multipath +median, one path +max, one path$")
        self.assertRegex(lines[11], r"^48 +1\.000 +1\.250 +1\.500 +4\.000$")

    def test_names_of_sizes(self):
        self.assertEqual([data_bench.size_name(size) for size in (2, 4096, 8 * MIB)], ["2 B", "4 KiB", "8 MiB"])

    def test_each_measurement_has_a_line(self):
        root = xml.fromstring(data_bench.picture(FIGURES).encode())
        name = "{http://www.w3.org/2000/svg}"
        lines = root.findall(f"{name}polyline")
        self.assertEqual(len(lines), 1 + 6 + 6 + 4)
        self.assertEqual(sum("stroke-dasharray" in line.attrib for line in lines), 6 + 2)


if __name__ == "__main__":
    unittest.main()
