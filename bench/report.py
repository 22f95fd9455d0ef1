# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tables and pictures of the benches' results, and where they are written."""

import io
import os
import sys
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

CLONE = Path("/efa-rs")
sys.path.insert(0, str(CLONE / "tools"))

KIB, MIB = 1 << 10, 1 << 20
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4a4a4a")
WIDTH = 11
LICENCE = "<!-- SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause -->\n"


def note(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def size_name(size):
    """A number of bytes in the largest unit that fits."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def columns(rows):
    """Formats a table whose first column is text and whose other columns are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def write(name, text, panels):
    """Writes NAME.json and NAME.svg to the folder from which make bench copies them into the clone."""
    folder = Path(os.environ["EFA_KEEP"], "bench")
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(text)
    (folder / f"{name}.svg").write_text(draw(panels))


def bars(title, values):
    """A panel with a bar for each of the ratios, by name."""
    return {"kind": draw_bars, "title": title, "values": values}


def curves(title, series, level_name):
    """A panel with a line for each of SERIES, values by level of a (name, dashed); both axes are logarithmic."""
    levels = sorted({level for points in series.values() for level in points})
    return {
        **{"kind": draw_lines, "title": title, "x_log": True, "y_log": True},
        "ticks": [(level, level_name(level)) for level in levels],
        "series": [{"name": name, "dashed": dashed, "points": sorted(points.items())} for (name, dashed), points in series.items()],
    }


def lines(title, series, logarithmic=False):
    """A panel with lines of each name of SERIES, each a list of (x, y), over an x axis that may be logarithmic."""
    every = [{"name": name, "points": points} for name, of_name in series.items() for points in of_name]
    return {"kind": draw_lines, "title": title, "x_log": logarithmic, "series": every}


def colour(number):
    return COLOURS[number % len(COLOURS)]


def draw_bars(axes, panel):
    """Draws a horizontal bar for each value, in another colour for values above 1."""
    names, values = list(panel["values"]), list(panel["values"].values())
    drawn = axes.barh(names, values, color=[colour(value > 1) for value in values])
    axes.bar_label(drawn, [f"{value:.2f}" for value in values], padding=3)
    axes.axvline(1, color="#444", linewidth=1)
    axes.set_xlim(0, max(1.2, *values) * 1.08)
    axes.margins(y=0.01)
    axes.invert_yaxis()


def draw_lines(axes, panel):
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


def height(panel):
    """Returns the height of a panel in inches. Each bar needs the height of its name."""
    rows = len(panel.get("values") or ())
    return 1.0 + 0.24 * rows if rows else 3.6


def draw(panels):
    """Returns the SVG of panels, one below the other. It does not depend on the time or the machine."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "efa-rs", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})
    heights = [height(panel) for panel in panels]
    figure, axes = pyplot.subplots(len(panels), figsize=(WIDTH, sum(heights)), height_ratios=heights, squeeze=False, layout="tight")
    for place, panel in zip(axes[:, 0], panels, strict=True):
        place.set_title(panel["title"], fontsize=10, fontweight="bold", loc="left")
        place.grid(True, axis="both" if panel["kind"] is draw_lines else "x", color="#ddd", linewidth=0.8)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
        panel["kind"](place, panel)
    output = io.StringIO()
    figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None})
    head, tag, rest = output.getvalue().partition("<svg ")
    # Trailing blanks are removed, as checks of whitespace reject them.
    return "\n".join(line.rstrip() for line in (head + LICENCE + tag + rest).splitlines()) + "\n"
