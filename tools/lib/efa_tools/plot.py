# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Draws the bench's results as SVG."""

import math
from html import escape

ROW, LABEL, WIDTH = 18, 250, 420
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4a4a4a")


def text(x, y, content, anchor="start", style=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(content)}</text>'


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def bars(values, top):
    """A horizontal bar for each ratio, with lines at round ones; returns the elements and where they end."""
    most = max(1.2, *values.values())
    height = ROW * len(values)
    found = [text(LABEL, top, "Instructions of the kernel per call, Rust driver / C driver", style='font-weight="bold"')]
    for step in range(math.floor(most / 0.2) + 1):
        x = LABEL + WIDTH * step * 0.2 / most
        style = 'stroke="#444"' if step == 5 else 'stroke="#ddd"'
        found += [line(x, top + 8, x, top + 12 + height, style), text(x, top + 26 + height, f"{step * 0.2:.1f}", "middle")]
    for number, (name, value) in enumerate(values.items()):
        y = top + 12 + number * ROW
        colour = COLOURS[0] if value <= 1 else COLOURS[1]
        found.append(text(LABEL - 6, y + 12, name, "end"))
        found.append(f'<rect x="{LABEL}" y="{y + 2}" width="{WIDTH * value / most:.1f}" height="{ROW - 5}" fill="{colour}"/>')
        found.append(text(LABEL + WIDTH * value / most + 4, y + 12, f"{value:.2f}"))
    return found, top + height + 40


def curves(title, series, top, level_name, height=240):
    """A line for each of SERIES, values by level of a (name, dashed); both axes are logarithmic."""
    values = [value for points in series.values() for value in points.values()]
    levels = sorted({level for points in series.values() for level in points})
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    right = LABEL + WIDTH

    def x(level):
        return LABEL + WIDTH * math.log10(level / levels[0]) / math.log10(levels[-1] / levels[0])

    def y(value):
        return top + 12 + height * (high - math.log10(value)) / (high - low)

    found = [text(LABEL, top, title, style='font-weight="bold"')]
    for level in levels:
        found.append(line(x(level), top + 12, x(level), top + 12 + height, 'stroke="#ddd"'))
        found.append(text(x(level), top + 28 + height, level_name(level), "middle"))
    steps = (1, 2, 5) if high - low < 3 else (1,)
    for value in (number * 10.0**power for power in range(math.floor(low), math.ceil(high)) for number in steps):
        if low <= math.log10(value) <= high:
            found += [line(LABEL, y(value), right, y(value), 'stroke="#ddd"'), text(LABEL - 6, y(value) + 4, f"{value:,g}", "end")]
    names = list(dict.fromkeys(name for name, _ in series))
    for (name, dashed), points in series.items():
        colour = COLOURS[names.index(name) % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{x(level):.1f},{y(value):.1f}" for level, value in sorted(points.items()))
        found.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
    for number, name in enumerate(names):
        place = top + 24 + number * ROW
        style = f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"'
        found.append(line(right + 14, place - 4, right + 34, place - 4, style))
        found.append(text(right + 40, place, name))
    return found, top + height + 44


def document(elements, bottom):
    """The file of a picture."""
    width = LABEL + WIDTH + 130
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom}" font-family="sans-serif" font-size="12">'
    licence = "<!-- SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause -->"
    return "\n".join([head, licence, '<rect width="100%" height="100%" fill="white"/>', *elements, "</svg>", ""])


def draw(ratios, series):
    """The picture of the verbs' cost: RATIOS by verb; SERIES are instructions by (kind, driver) and number of objects."""
    elements, bottom = bars(ratios, 24)
    if series:
        lines = {(kind, driver == "c"): points for (kind, driver), points in sorted(series.items())}
        title = "Instructions to make one more object; dashed: the C driver"
        more, bottom = curves(title, lines, bottom + 10, lambda level: f"{level:,} objects")
        elements += more
    return document(elements, bottom)
