# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Simulates the emulator's SRD with many concurrent senders, and TCP on the same network: emulator/fabric/examples/simulation."""

import json
import statistics

from . import bench, build, plot, steps

NAMES = {"srd": "SRD", "tcp": "TCP with ECMP"}
KIB, MIB = 1 << 10, 1 << 20
# The size of messages whose distribution the paper on SRD shows.
SIZE = 2 * MIB
FLOWS = 48


def measure():
    """Runs the experiments; returns their figures."""
    program = build.simulation()
    with steps.step("bench incast and racks"):
        figures = json.loads(build.run_in_toolroot(program))
    with steps.step("bench all-to-all"):
        return figures | {"all_to_all": json.loads(build.run_in_toolroot(program, "all-to-all"))}


def worst(figures):
    """The longest time of any flow of an incast over SRD, of any size."""
    return max(row["max"] for row in figures["incast"] if row["transport"] == "srd")


def size_name(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def shares(row):
    """Returns the mean rate of each flow of an endless incast in Gbit/s, without the first fifth of the time."""
    return [statistics.mean(flow[len(flow) // 5 :]) for flow in row["gbps"]]


def tables(figures):
    """The lines that a run prints."""
    rows: list[tuple[str, ...]] = [("flow completion time / ideal", "transport", "median", "mean", "99 %", "max")]
    named = [(f"incast, {FLOWS} x {size_name(row['bytes'])}", row) for row in figures["incast"]]
    named += [("8 + 8 servers, 16 flows each", row) for row in figures["racks"]]
    for name, row in named:
        values = (row["median"], row["mean"], row["cdf"][99], row["max"])
        rows.append((name, row["transport"], *(f"{value:,.3f}" for value in values)))
    yield from bench.columns(rows)
    yield ""
    rows = [("endless incast, Gbit/s of a flow", "transport", "least", "mean", "most")]
    for row in figures["persistent"]:
        flows = shares(row)
        each = (min(flows), statistics.mean(flows), max(flows))
        rows.append((f"{len(flows)} flows", row["transport"], *(f"{value:.2f}" for value in each)))
    yield from bench.columns(rows)
    yield ""
    every = figures["all_to_all"]
    yield (
        f"all-to-all: {every['devices']:,} devices, {every['messages']:,} messages in {every['seconds']:.0f} s,"
        f" {every['cpu_seconds']:.0f} s of a processor, {every['peak_mib']:,} MiB;"
        f" {every['simulated_us'] / every['ideal_us']:.2f} of the ideal time"
    )
    yield ""


def cdf(row):
    """Returns points of the distribution: (time / ideal time, percent of flows that take no longer)."""
    return [(max(value, 0.1), percent) for percent, value in enumerate(row["cdf"])]


def picture(figures):
    """Returns the panels of the SVG."""
    longest = {}
    for row in figures["incast"]:
        longest.setdefault((NAMES[row["transport"]], False), {})[row["bytes"]] = row["max"]
    title = f"Incast of {FLOWS} flows: longest completion time / ideal, by size"
    panels = [plot.curves(title, longest, size_name)]
    distribution = {NAMES[row["transport"]]: [cdf(row)] for row in figures["incast"] if row["bytes"] == SIZE}
    title = f"Incast of {FLOWS} flows of {size_name(SIZE)}: percent that take no longer than time / ideal"
    panels.append(plot.lines(title, distribution, logarithmic=True))
    for row in figures["persistent"]:
        flows = [[(step * row["step_ms"], gbps) for step, gbps in enumerate(flow)] for flow in row["gbps"]]
        title = f"Endless incast of {len(flows)} flows: Gbit/s of each flow, by ms"
        panels.append(plot.lines(title, {NAMES[row["transport"]]: flows}))
    distribution = {NAMES[row["transport"]]: [cdf(row)] for row in figures["racks"]}
    title = "8 + 8 servers of two racks, 16 flows each: percent that take no longer than time / ideal"
    panels.append(plot.lines(title, distribution, logarithmic=True))
    return panels


def document(figures):
    """The JSON, with a line for each row of figures."""
    parts = []
    for name, value in figures.items():
        rows = ",\n  ".join(json.dumps(row) for row in value) if isinstance(value, list) else None
        parts.append(f" {json.dumps(name)}: " + (f"[\n  {rows}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def run(folder):
    """Runs all experiments: prints tables, writes bench-srd.json and bench-srd.svg to FOLDER; returns the figures."""
    figures = measure()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench-srd.json").write_text(document(figures))
    (folder / "bench-srd.svg").write_text(plot.draw(picture(figures)))
    print("\n".join(tables(figures)), flush=True)
    return figures


def line(figures):
    """Returns the last line of the output."""
    return f"{FLOWS}-flow incast max FCT / ideal: {worst(figures):.3f}"
