# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import json
import unittest
from unittest import mock
from xml.etree import ElementTree as xml

import support
from efa_tools import cache, cli, layer, plot, times, toolroot
from efa_tools.failure import Failure
from efa_tools.tally import Tally

# One of each kind.
PANELS = [
    plot.bars("Ratios", {"create CQ": 1.2, "a < b": 0.9}),
    plot.curves("Curves", {("read", True): {64: 2.0, 4096: 100.0}, ("write", False): {64: 3.0, 4096: 50.0}}, str),
    plot.lines("Lines", {"SRD": [[(0, 1), (1, 2)], [(0, 2), (1, 3)]]}),
    plot.spans("Spans", [{"name": "kselftest", "start": 0, "end": 4, "cpu": 3}, {"name": "fuzzing", "start": 2, "end": 5, "cpu": 6}]),
    plot.stacks("Stacks", ["one", "two"], {"kselftest": [1, 2], "fuzzing": [3, 0]}),
]


def there():
    """Whether the plotting tools are in the cache: a test of the tools does not install them."""
    script = layer.SCRIPT.format(packages=" ".join(layer.PLOTTING.packages))
    return (cache.folder("layer") / cache.key(toolroot.key(), script)).exists()


class Draw(unittest.TestCase):
    @unittest.skipUnless(there(), "needs the plotting tools in the cache: make times")
    def test_each_panel_is_drawn_and_twice_the_same(self):
        one, two = plot.draw(PANELS), plot.draw(PANELS)
        self.assertEqual(one, two)
        texts = ["".join(element.itertext()) for element in xml.fromstring(one.encode()).iter("{http://www.w3.org/2000/svg}text")]
        for wanted in ("Ratios", "Curves", "Lines", "Spans", "Stacks", "a < b", "1.20", "write", "SRD", "fuzzing", "two"):
            self.assertIn(wanted, texts)
        self.assertIn("SPDX-License-Identifier", one)

    def test_curves_have_names_at_their_ticks(self):
        self.assertEqual(PANELS[1]["ticks"], [(64, "64"), (4096, "4096")])


class Trouble(support.TemporaryCache):
    def test_what_cannot_be_drawn_is_said(self):
        self.patch(mock.patch.object(layer.Layer, "enter", return_value=["sh", "-c", "echo no such font >&2; exit 1"]))
        with self.assertRaisesRegex(Failure, "no such font\nThe picture could not be drawn"):
            plot.draw(PANELS)


class Times(support.TemporaryCache):
    def save(self, name, start, **options):
        file = times.save(times.Span(name, start, start + 100, 150), name, Tally(passed=1))
        content = {**json.loads(file.read_text()), **options}
        file.write_text(json.dumps(content))

    def job(self, name, start, end, cpu):
        return {"name": name, "start": start, "end": end, "cpu": cpu, "steps": []}

    def test_the_last_run_is_shown_job_by_job_and_the_last_ones_by_what_they_spent(self):
        self.save("check", 1000, head="a" * 40, steps=[self.job("one", 1000, 1060, 50), self.job("two", 1010, 1090, 20)])
        self.save("check", 2000, head="b" * 40, steps=[self.job("two", 2000, 2050, 70)])
        self.save("lint", 3000)
        spans, spent = times.picture("check", 10, coloured=1)
        self.assertEqual(spans["spans"], [{"name": "two", "start": 0, "end": 50, "cpu": 70}])
        self.assertEqual([name.split()[0] for name in spent["names"]], ["aaaaaaaa", "bbbbbbbb"])
        self.assertEqual(spent["parts"], {"two": [20, 70], "others": [50, 0]})

    def test_without_a_run_it_says_what_to_do(self):
        with self.assertRaisesRegex(Failure, "No run of check-all is kept.*make check-all"):
            times.picture("check-all", 10)

    def test_a_picture_is_written_where_it_is_wanted(self):
        self.save("check", 1000, steps=[self.job("one", 1000, 1060, 50)])
        self.patch(mock.patch("efa_tools.plot.draw", return_value="<svg/>"))
        with mock.patch("sys.argv", ["times", "check", "--output", str(self.folder / "it.svg")]), mock.patch("sys.stdout"):
            self.assertEqual(cli.times_command(), 0)
        self.assertEqual((self.folder / "it.svg").read_text(), "<svg/>")


if __name__ == "__main__":
    unittest.main()
