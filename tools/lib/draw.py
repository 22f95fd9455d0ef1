#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Draws the panels that efa_tools/plot.py describes, one below the other: reads JSON, writes an SVG. Needs matplotlib."""

import io
import json
import sys

import matplotlib
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4a4a4a")
WIDTH = 11
LICENCE = "<!-- SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause -->\n"


def colour(number):
    return COLOURS[number % len(COLOURS)]


def bars(axes, panel):
    """Draws a horizontal bar for each value, in another colour for values above 1."""
    names, values = list(panel["values"]), list(panel["values"].values())
    drawn = axes.barh(names, values, color=[colour(value > 1) for value in values])
    axes.bar_label(drawn, [f"{value:.2f}" for value in values], padding=3)
    axes.axvline(1, color="#444", linewidth=1)
    axes.set_xlim(0, max(1.2, *values) * 1.08)
    axes.margins(y=0.01)
    axes.invert_yaxis()


def lines(axes, panel):
    """Draws lines over an x axis with ticks that may have names. Lines of one name share a colour."""
    names = list(dict.fromkeys(one["name"] for one in panel["series"]))
    many = len(panel["series"]) > 2 * len(names)
    for one in panel["series"]:
        number = names.index(one["name"])
        x, y = zip(*one["points"], strict=True)
        style = {"color": colour(number), "linestyle": "--" if one.get("dashed") else "-", "linewidth": 0.7 if many else 1.6}
        axes.plot(x, y, label=one["name"], **style)
    for axis, logarithmic in ((axes.xaxis, panel.get("x_log")), (axes.yaxis, panel.get("y_log"))):
        if logarithmic:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axis.set_minor_formatter(NullFormatter())
    if ticks := panel.get("ticks"):
        # At most 16 ticks, as more would overlap.
        shown = ticks[:: 1 + len(ticks) // 16]
        axes.set_xticks([place for place, _ in shown], [name for _, name in shown])
        axes.minorticks_off()
    if not panel.get("y_log"):
        axes.set_ylim(bottom=0)
    # One entry for each name: a solid line, if it has one.
    known = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        if label not in known or known[label].get_linestyle() != "-":
            known[label] = handle
    axes.legend(known.values(), known.keys(), loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


KINDS = {"bars": bars, "lines": lines}


def height(panel):
    """Returns the height of a panel in inches. Each bar needs the height of its name."""
    rows = len(panel.get("values") or ())
    return 1.0 + 0.24 * rows if rows else 3.6


def draw(panels):
    # The output must not depend on the time or the machine.
    matplotlib.rcParams.update({"svg.hashsalt": "efa-rs", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})
    heights = [height(panel) for panel in panels]
    figure, axes = pyplot.subplots(len(panels), figsize=(WIDTH, sum(heights)), height_ratios=heights, squeeze=False, layout="tight")
    for place, panel in zip(axes[:, 0], panels, strict=True):
        place.set_title(panel["title"], fontsize=10, fontweight="bold", loc="left")
        place.grid(True, axis="both" if panel["kind"] == "lines" else "x", color="#ddd", linewidth=0.8)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
        KINDS[panel["kind"]](place, panel)
    output = io.StringIO()
    figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None})
    head, tag, rest = output.getvalue().partition("<svg ")
    # Trailing blanks are removed, as checks of whitespace reject them.
    return "\n".join(line.rstrip() for line in (head + LICENCE + tag + rest).splitlines()) + "\n"


if __name__ == "__main__":
    matplotlib.use("svg")
    sys.stdout.write(draw(json.load(sys.stdin)))
