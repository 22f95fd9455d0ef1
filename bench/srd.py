#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Simulates the emulator's SRD with many concurrent senders, and TCP on the same network: emulator/fabric/examples/simulation."""

import json
import statistics
import subprocess

import report
from guests import result

NAMES = {"srd": "SRD", "tcp": "TCP with ECMP"}
# The size of messages whose distribution the paper on SRD shows.
SIZE = 2 * report.MIB
FLOWS = 48


def simulation(*arguments):
    report.note(f"the simulation {' '.join(arguments)}")
    command = [result("bench-emulator") / "examples/simulation", *arguments]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def worst(figures):
    """The longest time of any flow of an incast over SRD, of any size."""
    return max(row["max"] for row in figures["incast"] if row["transport"] == "srd")


def shares(row):
    """Returns the mean rate of each flow of an endless incast in Gbit/s, without the first fifth of the time."""
    return [statistics.mean(flow[len(flow) // 5 :]) for flow in row["gbps"]]


def tables(figures):
    """The lines that a run prints."""
    rows: list[tuple[str, ...]] = [("flow completion time / ideal", "transport", "median", "mean", "99 %", "max")]
    named = [(f"incast, {FLOWS} x {report.size_name(row['bytes'])}", row) for row in figures["incast"]]
    named += [("8 + 8 servers, 16 flows each", row) for row in figures["racks"]]
    for name, row in named:
        values = (row["median"], row["mean"], row["cdf"][99], row["max"])
        rows.append((name, row["transport"], *(f"{value:,.3f}" for value in values)))
    yield from report.columns(rows)
    yield ""
    rows = [("endless incast, Gbit/s of a flow", "transport", "least", "mean", "most")]
    for row in figures["persistent"]:
        flows = shares(row)
        each = (min(flows), statistics.mean(flows), max(flows))
        rows.append((f"{len(flows)} flows", row["transport"], *(f"{value:.2f}" for value in each)))
    yield from report.columns(rows)
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
    panels = [report.curves(title, longest, report.size_name)]
    distribution = {NAMES[row["transport"]]: [cdf(row)] for row in figures["incast"] if row["bytes"] == SIZE}
    title = f"Incast of {FLOWS} flows of {report.size_name(SIZE)}: percent that take no longer than time / ideal"
    panels.append(report.lines(title, distribution, logarithmic=True))
    for row in figures["persistent"]:
        flows = [[(step * row["step_ms"], gbps) for step, gbps in enumerate(flow)] for flow in row["gbps"]]
        title = f"Endless incast of {len(flows)} flows: Gbit/s of each flow, by ms"
        panels.append(report.lines(title, {NAMES[row["transport"]]: flows}))
    distribution = {NAMES[row["transport"]]: [cdf(row)] for row in figures["racks"]}
    title = "8 + 8 servers of two racks, 16 flows each: percent that take no longer than time / ideal"
    panels.append(report.lines(title, distribution, logarithmic=True))
    return panels


def document(figures):
    """The JSON, with a line for each row of figures."""
    parts = []
    for name, value in figures.items():
        rows = ",\n  ".join(json.dumps(row) for row in value) if isinstance(value, list) else None
        parts.append(f" {json.dumps(name)}: " + (f"[\n  {rows}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def line(figures):
    """Returns the last line of the output."""
    return f"{FLOWS}-flow incast max FCT / ideal: {worst(figures):.3f}"


def run():
    """Runs all experiments: prints tables; returns the last line."""
    figures = {**simulation(), "all_to_all": simulation("all-to-all")}
    report.write("srd", document(figures), picture(figures))
    print("\n".join(tables(figures)), flush=True)
    return line(figures)


if __name__ == "__main__":
    print(run())
