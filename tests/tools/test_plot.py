# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest
from unittest import mock
from xml.etree import ElementTree as xml

import support
from efa_tools import cache, layer, plot, toolroot
from efa_tools.failure import Failure

# A panel of each kind.
PANELS = [
    plot.bars("Ratios", {"create CQ": 1.2, "a < b": 0.9}),
    plot.curves("Curves", {("read", True): {64: 2.0, 4096: 100.0}, ("write", False): {64: 3.0, 4096: 50.0}}, str),
    plot.lines("Lines", {"SRD": [[(0, 1), (1, 2)], [(0, 2), (1, 3)]]}),
]


def there():
    """Whether the plotting tools are in the cache: a test of the tools does not install them."""
    script = layer.SCRIPT.format(packages=" ".join(layer.PLOTTING.packages))
    return (cache.folder("layer") / cache.key(toolroot.key(), script)).exists()


class Draw(unittest.TestCase):
    @unittest.skipUnless(there(), "needs the plotting tools in the cache: make bench-srd")
    def test_each_panel_is_drawn_and_twice_the_same(self):
        one, two = plot.draw(PANELS), plot.draw(PANELS)
        self.assertEqual(one, two)
        texts = ["".join(element.itertext()) for element in xml.fromstring(one.encode()).iter("{http://www.w3.org/2000/svg}text")]
        for wanted in ("Ratios", "Curves", "Lines", "a < b", "1.20", "write", "SRD"):
            self.assertIn(wanted, texts)
        self.assertIn("SPDX-License-Identifier", one)

    def test_curves_have_names_at_their_ticks(self):
        self.assertEqual(PANELS[1]["ticks"], [(64, "64"), (4096, "4096")])


class Trouble(support.TemporaryCache):
    def test_what_cannot_be_drawn_is_said(self):
        self.patch(mock.patch.object(layer.Layer, "enter", return_value=["sh", "-c", "echo no such font >&2; exit 1"]))
        with self.assertRaisesRegex(Failure, "no such font\nThe picture could not be drawn"):
            plot.draw(PANELS)


if __name__ == "__main__":
    unittest.main()
