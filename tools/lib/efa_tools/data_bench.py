# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""How fast the emulated devices move data, compared with rdma_rxe in the same guests and with a plain memcpy; and how fairly."""

import json
import subprocess

from . import bench, build, guest, plot, steps, toolroot
from .failure import Failure

# The one flavour that has rdma_rxe.
FLAVOUR = "amd64"
DEVICE = "profile=efa3"
TIMEOUT = 1800
KIB, MIB = 1 << 10, 1 << 20
MESSAGE, LARGE = 64, MIB
# The most flows into one receiver.
FLOWS = 48
BANDWIDTHS, LATENCIES = ("write", "read", "send"), ("send latency", "write latency", "read latency")


def measure(transport, driver):
    """Runs tests/bench/data.py in two guests; returns its results, with sizes as numbers."""
    file = "/run/efa-rs/out/results.json"
    command = f"python3 /efa-rs/tests/bench/data.py {transport} {file}"
    driver, devices = (driver, [DEVICE]) if transport == "efa" else ("none", [])
    together = {"guests": 2, "leader": True, "timeout": TIMEOUT, "quiet": True}
    run = guest.prepare(guest.Options(command, driver, FLAVOUR, devices, **together))
    with steps.step(f"data bench {transport}"):
        if guest.execute(run):
            log = run.folder / "guest0.output.log"
            raise Failure(f"{steps.tail(log)}\nThe bench failed over {transport}: see above, all of it is in {log}.")
    results = json.loads((run.shared / "out" / "results.json").read_text())
    return {name: {int(size): value for size, value in values.items()} for name, values in results.items()}


def memcpy(sizes):
    """MiB/s of a copy between two shared mappings, by size."""
    program = build.memcpy()
    with steps.step("data bench memcpy"):
        output = run_in_toolroot(program, *map(str, sizes))
    return {int(size): float(rate) for size, rate in (line.split() for line in output.splitlines())}


def run_in_toolroot(program, *arguments):
    """Runs a program that was built in the toolroot; returns what it prints."""
    command = build.in_toolroot([f"{build.BUILD}/{program.name}", *arguments], [(program.parent, build.BUILD, "ro")])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def incast():
    """How long flows take that all go to one receiver, compared with the ideal: median and maximum, with and without multipath."""
    program = build.incast()
    with steps.step("data bench incast"):
        return json.loads(run_in_toolroot(program))


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
    times = completion_times(figures["incast"])
    rows = [("flows: time / ideal", *(f"{name}, {'one path' if single else 'multipath'}" for name, single in times))]
    for flows in sorted({flows for values in times.values() for flows in values}):
        rows.append((str(flows), *(f"{values[flows]:.3f}" for values in times.values())))
    yield from bench.columns(rows)
    yield ""


def completion_times(incast):
    """Completion times of flows divided by the ideal, by number of flows of each (name, whether each flow has just one path)."""
    return {
        (name, single): {row["flows"]: row[name] for row in incast if row["multipath"] != single}
        for single in (False, True)
        for name in ("median", "max")
    }


def least(one, other):
    """The least ratio of two kinds of bandwidth for large messages."""
    return min(one[size] / other[size] for size in one if size >= LARGE)


def summary(figures):
    """The last lines."""
    efa, rxe = figures["efa"], figures["rxe"]
    return [
        f"rdma write / memcpy: {least(efa['write'], figures['memcpy']):.2f}",
        f"rdma write / rxe: {least(efa['write'], rxe['write']):.1f}",
        f"send latency / rxe: {efa['send latency'][MESSAGE] / rxe['send latency'][MESSAGE]:.2f}",
        f"{FLOWS}-flow incast max FCT / ideal: {completion_times(figures['incast'])['max', False][FLOWS]:.3f}",
    ]


def picture(figures):
    """The SVG."""
    bandwidths = {("memcpy", False): figures["memcpy"]}
    latencies = {}
    for transport in ("efa", "rxe"):
        bandwidths |= {(name, transport == "rxe"): figures[transport][name] for name in BANDWIDTHS}
        latencies |= {(name, transport == "rxe"): figures[transport][name] for name in LATENCIES}
    elements, bottom = plot.curves("MiB/s by message size; dashed: rdma_rxe", bandwidths, 24, size_name)
    more, bottom = plot.curves("Typical latency in microseconds; dashed: rdma_rxe", latencies, bottom + 10, size_name)
    title, times = "Completion time / ideal of flows into one receiver; dashed: one path each", completion_times(figures["incast"])
    last, bottom = plot.curves(title, times, bottom + 10, str)
    return plot.document([*elements, *more, *last], bottom)


def run(driver, folder):
    """The whole bench: prints tables and summary, writes bench-data.json and bench-data.svg to FOLDER."""
    figures = {"kernel": toolroot.kernel(FLAVOUR), "efa": measure("efa", driver)}
    # At once after what it is compared with: how fast a host's memory is changes with what its neighbours do.
    figures |= {"memcpy": memcpy(figures["efa"]["write"]), "rxe": measure("rxe", driver), "incast": incast()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench-data.json").write_text(json.dumps(figures, indent=1) + "\n")
    (folder / "bench-data.svg").write_text(picture(figures))
    print("\n".join([*tables(figures), *summary(figures)]), flush=True)
    return 0
