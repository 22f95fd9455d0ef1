# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Bandwidth and latency of the emulated devices, compared with rdma_rxe in the same guests and with a plain memcpy."""

import json
from typing import Any

from . import bench, build, guest, plot, srd_bench, steps, toolroot
from .failure import Failure

# The only flavour that has rdma_rxe.
FLAVOUR = "amd64"
DEVICE = "profile=efa3"
TIMEOUT = 1800
KIB, MIB = 1 << 10, 1 << 20
MESSAGE, PAGE, LARGE = 64, 4 * KIB, MIB
BANDWIDTHS, LATENCIES = ("write", "read", "send"), ("send latency", "write latency", "read latency")


def measure(transport, driver):
    """Runs tests/bench/data.py in two guests; returns its results, with sizes as numbers."""
    file = "/run/efa-rs/out/results.json"
    command = f"python3 /efa-rs/tests/bench/data.py {transport} {file}"
    driver, devices = (driver, [DEVICE]) if transport == "efa" else ("none", [])
    together: dict[str, Any] = {"guests": 2, "leader": True, "timeout": TIMEOUT, "quiet": True, "fabric": "ideal", "threads": True}
    emulator = build.emulator(release=True)
    run = guest.prepare(guest.Options(command, driver, FLAVOUR, devices, emulator=emulator, **together))
    with steps.step(f"data bench {transport}"):
        if guest.execute(run):
            log = run.folder / "guest0.output.log"
            raise Failure(f"{steps.tail(log)}\nThe bench failed over {transport}. The end of its log is above, the rest is in {log}.")
    results = json.loads((run.shared / "out" / "results.json").read_text())
    return {name: {int(size): value for size, value in values.items()} for name, values in results.items()}


def memcpy(sizes):
    """MiB/s of a copy between two shared mappings, by size."""
    program = build.memcpy()
    with steps.step("data bench memcpy"):
        output = build.run_in_toolroot(program, *map(str, sizes))
    return {int(size): float(rate) for size, rate in (line.split() for line in output.splitlines())}


def endpoints():
    """Measures bytes per second of 1 and 4 pairs of endpoints, and message latency alone and beside an attacker; no guests."""
    folder, program = build.endpoints()
    with steps.step("data bench endpoints"):
        return json.loads(build.run_of_folder(folder, program))


def size_name(size):
    """A number of bytes in the largest unit that fits."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def tables(figures):
    """The lines that a run prints."""
    for names, unit in ((BANDWIDTHS, "MiB/s"), (LATENCIES, "us, typical")):
        columns = [("memcpy", figures["memcpy"])] if names is BANDWIDTHS else []
        columns += [(f"{transport} {name}", figures[transport][name]) for transport in ("efa", "rxe") for name in names]
        sizes = sorted({size for _, values in columns for size in values if any(size in other for _, other in columns[1:])})
        rows = [(unit, *(name for name, _ in columns))]
        for size in sizes:
            rows.append((size_name(size), *(f"{values[size]:,.2f}" if size in values else "" for _, values in columns)))
        yield from bench.columns(rows)
        yield ""


def least(one, other):
    """The least ratio of two kinds of bandwidth for large messages."""
    return min(one[size] / other[size] for size in one if size >= LARGE)


def summary(figures):
    """The last lines."""
    efa, rxe, endpoints = figures["efa"], figures["rxe"], figures["endpoints"]
    return [
        f"rdma write / memcpy: {least(efa['write'], figures['memcpy']):.2f}",
        f"rdma write / rxe: {least(efa['write'], rxe['write']):.1f}",
        f"send rate / write rate: {efa['send'][PAGE] / efa['write'][PAGE]:.2f}",
        f"4 pairs / 1 pair: {endpoints['four_pairs'] / endpoints['one_pair']:.2f}",
        f"bystander latency under attack / alone: {endpoints['attacked_us'] / endpoints['alone_us']:.2f}",
        f"send latency / rxe: {efa['send latency'][MESSAGE] / rxe['send latency'][MESSAGE]:.2f}",
    ]


def picture(figures):
    """Returns the panels of the SVG."""
    bandwidths = {("memcpy", False): figures["memcpy"]}
    latencies = {}
    for transport in ("efa", "rxe"):
        bandwidths |= {(name, transport == "rxe"): figures[transport][name] for name in BANDWIDTHS}
        latencies |= {(name, transport == "rxe"): figures[transport][name] for name in LATENCIES}
    return [
        plot.curves("MiB/s by message size; dashed: rdma_rxe", bandwidths, size_name),
        plot.curves("Typical latency in microseconds; dashed: rdma_rxe", latencies, size_name),
    ]


def run(driver, folder):
    """Runs the whole bench, and that of SRD: prints tables and summary, writes bench-data.json and bench-data.svg to FOLDER."""
    figures = {"kernel": toolroot.kernel(FLAVOUR), "efa": measure("efa", driver)}
    # memcpy is measured right after the EFAs, for the comparison: a host's memory bandwidth varies with the load of its neighbours.
    figures |= {"memcpy": memcpy(figures["efa"]["write"]), "rxe": measure("rxe", driver), "endpoints": endpoints()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench-data.json").write_text(json.dumps(figures, indent=1) + "\n")
    (folder / "bench-data.svg").write_text(plot.draw(picture(figures)))
    print("On an ideal network: nothing is lost, late or limited.\n")
    print("\n".join(tables(figures)), flush=True)
    incast = srd_bench.run(folder)
    print("\n".join([*summary(figures), srd_bench.line(incast)]), flush=True)
    return 0
