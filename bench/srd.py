#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Compares the emulator's SRD with the figures of the paper on SRD: emulator/fabric/examples/simulation. Fails where it differs."""

import json
import statistics
import subprocess
import sys
from typing import Any

import report
from guests import result

NAMES = {"srd": "SRD", "tcp": "TCP with ECMP"}
# TCP on the same network, simulated once. No run writes this file.
TCP = report.CLONE / "bench/tcp.json"
# The size of messages whose distribution the paper shows.
SIZE = 2 * report.MIB
FLOWS = 48
NODES = (64, 128, 256, 512, 1024)
COSTS = {"seconds of a processor": "cpu_seconds", "MiB": "peak_mib"}
SEEDS = range(1, 6)
SERVERS = 8
LINK_GBPS = 100
# Two racks. README.md has the origin of these values.
NETWORK = {"rack": SERVERS, "paths": 64, "link_gbps": LINK_GBPS, "path_gbps": 25, "packet_ns": 100}
NETWORK |= {"buffer_kib": 3008, "delay_us": 5, "jitter_us": 1}
# What the network would be without each assumption.
ASSUMPTIONS: dict[str, dict[str, Any]] = {
    "a card takes 100 ns for each packet": {"packet_ns": 0},
    "a switch delays packets by up to 1 µs at random": {"jitter_us": 0},
    "a packet takes 5 µs on an idle network": {"delay_us": 0},
    "an uplink is slower than a server's link": {"path_gbps": 0},
    "a queue has 3,008 KiB": {"buffer_kib": 1 << 20},
    "a connection sprays over all uplinks": {"multipath": False},
}


def simulation(seed, devices, flows, changes, **others):
    """Returns the results of flows on the network with some changes."""
    experiment = {"network": NETWORK | changes, "seed": seed, "devices": devices, "flows": flows, **others}
    command = [result("bench-emulator") / "examples/simulation", "flows", json.dumps(experiment)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def flow(from_, to, length, messages=1):
    return {"from": from_, "to": to, "length": length, "messages": messages}


def incast(length, messages=1):
    """Returns flows from programs of 4 servers to one server of the other rack."""
    return [flow((number % 4, number // 4), (SERVERS, number), length, messages) for number in range(FLOWS)]


def racks():
    """Returns 16 flows from each server of a rack: 2 to each server of the other."""
    numbers = [(server, program) for program in range(2 * SERVERS) for server in range(SERVERS)]
    return [flow((one, program), (SERVERS + program % SERVERS, one + program // SERVERS * SERVERS), SIZE) for one, program in numbers]


def ideal_us(messages, length):
    """Returns the time of the payload on a server's link."""
    return messages * length * 8e-3 / LINK_GBPS


def times(flows, together, **changes):
    """Starts flows at the same time; returns the distribution of their times, relative to the ideal one of `together` flows."""
    length = flows[0]["length"]
    ideal = ideal_us(together, length)
    results = [simulation(seed, 2 * SERVERS, flows, changes) for seed in SEEDS]
    values = sorted(at / ideal for one in results for at, _ in one["arrivals"])
    cdf = [round(values[(len(values) - 1) * percent // 100], 3) for percent in range(101)]
    mean = round(statistics.mean(values), 3)
    row = {"transport": "srd", "bytes": length, "ideal_us": round(ideal, 3)}
    return row | {"median": cdf[50], "mean": mean, "max": cdf[100], "cdf": cdf}


def persistent(ms=500, step=10, length=64 * report.KIB):
    """Returns the rates of the flows of an incast that does not end."""
    gbps = [[0.0] * (ms // step) for _ in range(FLOWS)]
    for at, number in simulation(1, 2 * SERVERS, incast(length, 1 << 30), {}, ms=ms)["arrivals"]:
        if at < ms * 1e3:
            gbps[number][int(at / 1e3 / step)] += length * 8e-6 / step
    return {"transport": "srd", "step_ms": step, "gbps": [[round(rate, 3) for rate in rates] for rates in gbps]}


def all_to_all(nodes, length=8 * report.KIB):
    """Lets each of `nodes` devices send a message to each other one; returns the cost of that simulation."""
    report.note(f"all-to-all, {nodes} nodes")
    results = simulation(1, nodes, [], {"rack": 32, "path_gbps": LINK_GBPS})
    arrivals = results.pop("arrivals")
    row = {"nodes": nodes, "messages": len(arrivals), "us": arrivals[-1][0], "ideal_us": ideal_us(nodes - 1, length)}
    return {name: round(value, 3) for name, value in (row | results).items()}


def measured():
    """Runs all experiments; returns their figures."""
    rows = []
    for length in (64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20):
        report.note(f"incast, {FLOWS} x {report.size_name(length)}")
        rows.append(times(incast(length), FLOWS))
    figures = {"network": NETWORK, "incast": rows, "persistent": [persistent()], "racks": [times(racks(), 2 * SERVERS)]}
    rows = []
    for assumption, changes in ASSUMPTIONS.items():
        row = times(racks(), 2 * SERVERS, **changes)
        rows.append({"assumption": assumption} | {name: row[name] for name in ("median", "mean", "max")})
    return figures | {"assumptions": rows, "nodes": [all_to_all(nodes) for nodes in NODES]}


def both(figures, experiment):
    """Returns the rows of SRD and TCP of an experiment, by size."""
    tcp = json.loads(TCP.read_text())
    assert {name: tcp["network"][name] for name in NETWORK} == NETWORK, f"{TCP.name} is of another network"
    return sorted(figures[experiment] + tcp[experiment], key=lambda row: row.get("bytes", 0))


def shares(row):
    """Returns the mean rate of each flow of an endless incast in Gbit/s, without the first fifth of the time."""
    return [statistics.mean(flow[len(flow) // 5 :]) for flow in row["gbps"]]


def comparison(figures):
    """Yields what the paper has measured or says, and for each: the values here, and the least and most that agree with it."""
    incast = {(row["transport"], row["bytes"]): row for row in both(figures, "incast")}
    racks = {row["transport"]: row for row in both(figures, "racks")}
    sizes = [size for transport, size in incast if transport == "srd"]
    tcp = incast["tcp", SIZE]
    flows = shares(figures["persistent"][0])
    fair = statistics.mean(flows)
    yield "incast, max: SRD is near the ideal", [incast["srd", size]["max"] for size in sizes], 1, 1.25
    yield "incast from 1 to 4 MiB, max: TCP takes 3 to 20 times", [incast["tcp", size << 20]["max"] for size in (1, 2, 4)], 3, 20
    yield "incast of 2 MiB, 99 %: TCP waits for its timeout of 50 ms", [tcp["cdf"][99] * tcp["ideal_us"] / 1e3], 50, 100
    yield "endless incast: SRD's flows are near their fair share", [min(flows) / fair, max(flows) / fair], 0.85, 1.15
    yield "racks, median: SRD takes 15 % longer than the ideal", [racks["srd"]["median"]], 0.9 * 1.15, 1.1 * 1.15
    yield "racks, max: SRD is below TCP's mean", [racks["srd"]["max"]], 1, racks["tcp"]["mean"]
    yield "racks, mean: TCP takes 50 % longer than the ideal", [racks["tcp"]["mean"]], 0.9 * 1.5, 1.1 * 1.5
    yield "racks, max: TCP takes 10 to 100 times", [racks["tcp"]["max"]], 10, 100


def differences(figures):
    """Returns what differs from the paper."""
    return [name for name, values, least, most in comparison(figures) if not least <= min(values) <= max(values) <= most]


def tables(figures):
    """The lines that a run prints."""
    rows: list[tuple[str, ...]] = [("flow completion time / ideal", "transport", "median", "mean", "99 %", "max")]
    named = [(f"incast, {FLOWS} x {report.size_name(row['bytes'])}", row) for row in both(figures, "incast")]
    named += [("8 + 8 servers, 16 flows each", row) for row in both(figures, "racks")]
    for name, row in named:
        values = (row["median"], row["mean"], row["cdf"][99], row["max"])
        rows.append((name, row["transport"], *(f"{value:,.3f}" for value in values)))
    yield from report.columns(rows)
    yield ""
    rows = [("endless incast, Gbit/s of a flow", "transport", "least", "mean", "most")]
    for row in both(figures, "persistent"):
        flows = shares(row)
        each = (min(flows), statistics.mean(flows), max(flows))
        rows.append((f"{len(flows)} flows", row["transport"], *(f"{value:.2f}" for value in each)))
    yield from report.columns(rows)
    yield ""
    rows = [("8 + 8 servers, SRD's time / ideal, without the assumption that", "median", "mean", "max")]
    for row in ({"assumption": "(with all)"} | figures["racks"][0], *figures["assumptions"]):
        rows.append((row["assumption"], *(f"{row[name]:.3f}" for name in ("median", "mean", "max"))))
    yield from report.columns(rows)
    yield ""
    rows = [("nodes, each sends 8 KiB to each other", "messages", "CPU s", "s", "MiB", "time / ideal")]
    for row in figures["nodes"]:
        figure = (f"{row['messages']:,}", f"{row['cpu_seconds']:.1f}", f"{row['seconds']:.1f}", f"{row['peak_mib']:,}")
        rows.append((f"{row['nodes']:,}", *figure, f"{row['us'] / row['ideal_us']:.2f}"))
    yield from report.columns(rows)
    yield ""
    rows = [("figure of the paper", "here", "agrees", "")]
    for name, values, least, most in comparison(figures):
        here = " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values))))
        rows.append((name, here, f"{least:.2f} to {most:.2f}", "no" if name in differences(figures) else "yes"))
    yield from report.columns(rows)
    yield ""


def cdf(row):
    """Returns points of the distribution: (time / ideal time, percent of flows that take no longer)."""
    return [(max(value, 0.1), percent) for percent, value in enumerate(row["cdf"])]


def picture(figures):
    """Returns the panels of the SVG."""
    longest = {}
    for row in both(figures, "incast"):
        longest.setdefault((NAMES[row["transport"]], False), {})[row["bytes"]] = row["max"]
    title = f"Incast of {FLOWS} flows: longest completion time / ideal, by size"
    panels = [report.curves(title, longest, report.size_name)]
    distribution = {NAMES[row["transport"]]: [cdf(row)] for row in both(figures, "incast") if row["bytes"] == SIZE}
    title = f"Incast of {FLOWS} flows of {report.size_name(SIZE)}: percent that take no longer than time / ideal"
    panels.append(report.lines(title, distribution, logarithmic=True))
    for row in both(figures, "persistent"):
        flows = [[(step * row["step_ms"], gbps) for step, gbps in enumerate(flow)] for flow in row["gbps"]]
        title = f"Endless incast of {len(flows)} flows: Gbit/s of each flow, by ms"
        panels.append(report.lines(title, {NAMES[row["transport"]]: flows}))
    distribution = {NAMES[row["transport"]]: [cdf(row)] for row in both(figures, "racks")}
    title = "8 + 8 servers of two racks, 16 flows each: percent that take no longer than time / ideal"
    panels.append(report.lines(title, distribution, logarithmic=True))
    cost = {(what, False): {row["nodes"]: row[name] for row in figures["nodes"]} for what, name in COSTS.items()}
    panels.append(report.curves("All-to-all: cost of the simulation, by nodes", cost, "{:,}".format))
    return panels


def document(figures):
    """The JSON, with a line for each row of figures."""
    parts = []
    for name, value in figures.items():
        rows = ",\n  ".join(json.dumps(row) for row in value) if isinstance(value, list) else None
        parts.append(f" {json.dumps(name)}: " + (f"[\n  {rows}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def run():
    """Runs all experiments: prints tables; returns the last line. Ends the program if a figure differs from the paper's."""
    figures = measured()
    report.write("srd", document(figures), picture(figures))
    print("\n".join(tables(figures)), flush=True)
    if wrong := differences(figures):
        sys.exit("differs from the paper: " + "; ".join(wrong))
    (row,) = figures["racks"]
    return f"SRD between racks, median FCT / ideal: {row['median']:.3f} (paper: 1.15)"


if __name__ == "__main__":
    print(run())
