# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Pictures of the benches' results: describes their panels, which tools/lib/draw.py draws."""

import json
import subprocess

from . import cache, layer, steps
from .failure import Failure

PROGRAM = "/efa-rs/tools/lib/draw.py"


def bars(title, values):
    """A bar for each of the ratios, by name."""
    return {"kind": "bars", "title": title, "values": values}


def curves(title, series, level_name):
    """A line for each of SERIES, values by level of a (name, dashed); both axes are logarithmic."""
    levels = sorted({level for points in series.values() for level in points})
    return {
        **{"kind": "lines", "title": title, "x_log": True, "y_log": True},
        "ticks": [(level, level_name(level)) for level in levels],
        "series": [{"name": name, "dashed": dashed, "points": sorted(points.items())} for (name, dashed), points in series.items()],
    }


def lines(title, series, logarithmic=False):
    """Lines of each name of SERIES, each a list of (x, y), over an x axis that may be logarithmic."""
    every = [{"name": name, "points": points} for name, of_name in series.items() for points in of_name]
    return {"kind": "lines", "title": title, "x_log": logarithmic, "series": every}


def draw(panels):
    """The SVG of panels, one below the other."""
    command = layer.PLOTTING.enter(["python3", PROGRAM], environment={"MPLCONFIGDIR": "/tmp", "PYTHONHASHSEED": "0"})
    done = subprocess.run(command, input=json.dumps(panels), capture_output=True, text=True, check=False)
    if done.returncode:
        log = cache.folder("logs") / "picture.log"
        log.write_text(done.stderr)
        raise Failure(f"{steps.tail(log)}\nThe picture could not be drawn. The end of its log is above, the rest is in {log}.")
    return done.stdout
