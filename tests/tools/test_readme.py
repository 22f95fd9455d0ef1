# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The README's figures are those of the committed results and of the sources."""

import json
import re
import subprocess
import unittest

import support
from efa_tools import bench, laws

README = (support.CLONE / "README.md").read_text()
RESULTS = support.CLONE / "Documentation"
# Fraction by which lines of code may change before the README has to be updated.
SLACK = 0.1


def row(what, rust=None, c=None, ratio=None):
    counts = ["" if count is None else f"{count:,}" for count in (rust, c)]
    return f"| {' | '.join([what, *counts, '' if ratio is None else f'{ratio:.3f}'])} |"


def costs(figures, amazon):
    """Yields the rows of the table of costs."""

    def worst(of, reference):
        name = max(of, key=lambda name: bench.ratio(of[name], reference))
        return name, of[name]["rust"]["instructions"], of[name][reference]["instructions"], bench.ratio(of[name], reference)

    verbs = figures["verbs"]
    ratios = {name: bench.ratio(of) for name, of in verbs.items()}
    without = [ratio for name, ratio in ratios.items() if name != bench.COUNTER_READ]
    name, *of_worst = worst(verbs, "c")
    sizes = figures["text_and_data"]
    yield row(f"instructions per verb, geometric mean of {len(ratios)}", ratio=bench.geomean(ratios.values()))
    yield row(f"the same without `{bench.COUNTER_READ}`", ratio=bench.geomean(without))
    yield row(f"the worst verb, `{name}`", *of_worst)
    yield row("bytes of text and data of `efa.ko`", sizes["rust"], sizes["c"], sizes["rust"] / sizes["c"])
    features = figures["features"]
    yield f"| of these for {', '.join(features)} | {', '.join(f'{count:,}' for count in features.values())} |  |  |"
    objects = {kind: of["rust"] / of["c"] for kind, of in figures["bytes_per_object"].items()}
    kind = max(objects, key=objects.__getitem__)
    of = figures["bytes_per_object"][kind]
    yield row(f"bytes of kernel memory of the worst object, {kind}", round(of["rust"]), round(of["c"]), objects[kind])
    calls = bench.kverbs_compared(figures, amazon)
    name, *of_worst = worst(calls, "amazon")
    what = f"instructions per kernel verb, geometric mean of {len(calls)}"
    yield row(what, ratio=bench.geomean(bench.ratio(of, "amazon") for of in calls.values()))
    yield row(f"the worst kernel verb, `{name}`", *of_worst)


class Readme(unittest.TestCase):
    def test_it_is_short(self):
        self.assertLessEqual(len(README.splitlines()), 120)

    def test_costs(self):
        figures = json.loads((RESULTS / "bench.json").read_text())
        amazon = bench.amazon_figures()
        missing = [line for line in costs(figures, amazon) if line not in README.splitlines()]
        self.assertEqual(missing, [])
        for text in (f"on Linux `{figures['kernel']}`", f"Amazon's driver {amazon['driver']}"):
            self.assertIn(text, README)

    def test_sizes(self):
        shown = re.findall(r"^\$ (git grep .*)\n(\d+)$", README, re.MULTILINE)
        self.assertEqual(len(shown), 2)
        for command, lines in shown:
            counted = int(subprocess.run(command, shell=True, cwd=support.CLONE, capture_output=True, text=True, check=True).stdout)
            with self.subTest(command, counted=counted):
                self.assertLessEqual(abs(int(lines) - counted), SLACK * counted)

    def test_lines_of_the_driver(self):
        rows = re.findall(r"^\| ((?:`\w+(?:\.rs|/)`(?:, )?)+) \| ([\d,]+) \| ([\d,]+) \|", README, re.MULTILINE)
        self.assertEqual(len(rows), 3)
        for folders, lines, blocks in rows:
            patterns = [f"efa_rs/{folder.rstrip('/')}*" for folder in re.findall(r"`(.*?)`", folders)]
            text = "".join((support.CLONE / name).read_text() for name in laws.files(*patterns) if name.endswith(".rs"))
            code = re.sub(r"//.*", "", text)
            for shown, counted in ((lines, text.count("\n")), (blocks, code.count("unsafe {"))):
                with self.subTest(folders, counted=counted):
                    self.assertLessEqual(abs(int(shown.replace(",", "")) - counted), SLACK * counted)


if __name__ == "__main__":
    unittest.main()
