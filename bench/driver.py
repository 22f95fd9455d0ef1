#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Compares the cost of the Rust driver with that of the C driver, and of its kernel verbs with those of Amazon's: same kernel, same
devices, same program.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import Counter

import counts
import report
import size
from guests import SHARED, Guests, release, result

DRIVERS = ("rust", "c")
# One device for objects and one for contexts: a device with 10,000 of both has no room for doorbells. Keep-alive events
# would interrupt measurements.
DEVICES = (
    "profile=efa3,keep_alive_ms=0,max_pd=12000,max_cq=12000,max_qp=12000,max_ah=12000,max_uar=64,max_llq_size=8192"
    ",event_counters=true,max_event_counters=16,event_counter_events=1023,event_counter_max_val=4294967295",
    "profile=efa3,keep_alive_ms=0,max_pd=16,max_cq=16,max_qp=16,max_uar=12000",
)
# Prefixes of the names of kernel verbs.
KVERBS = ("post_", "poll_")
# Figures of Amazon's C driver, which has kernel verbs, unlike Linux's. No run writes them.
AMAZON = report.CLONE / "bench/amazon.json"
PROBE = "probe"
COUNTER_READ = "read port counters"
# A verb that consists mainly of one admin command, and a part of the names of the checksum's functions.
COMMAND = "dealloc PD"
CHECKSUM = "checksum"


def measure(driver, flavour, program, *arguments, devices=DEVICES, memory="3G"):
    """Runs a program of bench/guest in a guest; returns its results."""
    report.note(f"{program} with the driver {driver}")
    plugin = result("bench-plugin") / "count.so"
    with Guests(devices=list(devices), driver=driver, flavour=flavour, memory=memory, cpus=1, plugin=plugin) as guests:
        guests.run(f"python3 {report.CLONE}/bench/guest/{program}.py {SHARED}/out {' '.join(map(str, arguments))}")
    # The plugin writes its file when QEMU ends.
    return counts.Results(guests.folder / "counts", guests.folder / "shared/out")


def measure_kverbs(flavour):
    """Measures the kernel verbs of the Rust driver."""
    client = result(f"bench_client-{flavour}") / "bench_client.ko"
    return measure("rust", flavour, "kernel_verbs", client, devices=DEVICES[:1], memory="1G")


def collect_kverbs(result):
    """Returns the figures of kernel verbs, by call and then by driver. Only the Rust driver is measured."""
    return {
        name: {"rust": {"instructions": cost, "in_module": result.module_instructions(name)}} for name, cost in result.instructions.items()
    }


def is_growth(name):
    return "@" in name


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def collect(results, parts):
    """Returns all figures, by subject and then by driver. `parts` are the parts of the module by driver."""
    names = [name for name in results["c"].instructions if name in results["rust"].instructions]

    def cost(driver, name):
        result = results[driver]
        figures = {"instructions": result.instructions[name], "in_module": result.module_instructions(name)}
        return {**figures, **{key: result.commands[name][key] for key in ("commands", "round_trips")}}

    both = {name: {driver: cost(driver, name) for driver in DRIVERS} for name in names}
    growth = {}
    for name in filter(is_growth, names):
        verb, _, level = name.partition(" @")
        growth.setdefault(verb, {})[int(level)] = {driver: both[name][driver]["instructions"] for driver in DRIVERS}
    memory = {kind: {driver: results[driver].memory[kind] for driver in DRIVERS} for kind in results["c"].memory}
    return {
        "verbs": {name: figures for name, figures in both.items() if not is_growth(name)},
        "growth": growth,
        "bytes_per_object": memory,
        "command_without_checksum": results["rust"].module_instructions(COMMAND, CHECKSUM),
        "probe": {driver: results[driver].commands.get(PROBE) for driver in DRIVERS},
        "text_and_data": {driver: parts[driver][size.TOTAL] for driver in DRIVERS},
        "text_and_data_by_part": {part: {driver: parts[driver][part] for driver in DRIVERS} for part in parts["c"]},
    }


def ratio(figures, reference="c"):
    return figures["rust"]["instructions"] / figures[reference]["instructions"]


def kverbs_compared(figures, amazon):
    """Returns the figures of kernel verbs that both drivers have, with Amazon's; none if those are from another kernel."""
    if figures["kernel"] != amazon["kernel"]:
        return {}
    theirs = amazon["kernel_verbs"]
    return {name: {**of, "amazon": theirs[name]} for name, of in figures["kernel_verbs"].items() if name in theirs}


def tables(figures, amazon):
    """The lines that a run prints; `amazon` are the figures of Amazon's driver."""
    rows: list[tuple[str, ...]] = [
        ("per call", "C", "Rust", "rust/c", "in efa.ko: C", "Rust", "commands: C", "Rust", "round trips: C", "Rust")
    ]
    for name, of in figures["verbs"].items():
        pairs = [[f"{of[driver][key]:,}" for driver in ("c", "rust")] for key in of["c"]]
        instructions, *others = pairs
        rows.append((name, *instructions, f"{ratio(of):.3f}", *(cell for pair in others for cell in pair)))
    yield from report.columns(rows)
    levels = sorted(next(iter(figures["growth"].values())))
    yield ""
    heads = [f"{driver}, {level:,} exist" for driver in ("C", "Rust") for level in levels]
    rows = [("instructions", *heads)]
    for name, points in figures["growth"].items():
        rows.append((name, *(f"{points[level][driver]:,}" for driver in ("c", "rust") for level in levels)))
    yield from report.columns(rows)
    yield ""
    rows = [("bytes of kernel memory", "C", "Rust")]
    rows += [(kind, f"{of['c']:,.0f}", f"{of['rust']:,.0f}") for kind, of in figures["bytes_per_object"].items()]
    yield from report.columns(rows)
    yield ""
    yield from kverbs_table(figures, amazon)
    yield ""
    probe = figures["probe"]
    rows = [("probe", "C", "Rust")]
    shown = {"commands": "commands", "round_trips": "round trips of commands", "register_reads": "reads of registers"}
    rows += [(name, str(probe["c"][key]), str(probe["rust"][key])) for key, name in shown.items()]
    yield from report.columns(rows)
    yield ""
    rows = [("bytes of efa.ko", "C", "Rust", "Rust - C")]
    for part, of in figures["text_and_data_by_part"].items():
        rows.append((part, f"{of['c']:,}", f"{of['rust']:,}", f"{of['rust'] - of['c']:+,}"))
    rows += [(f"of these: {feature}", "-", f"{count:,}", "") for feature, count in figures["features"].items()]
    yield from report.columns(rows)
    yield ""


def kverbs_table(figures, amazon):
    compared = kverbs_compared(figures, amazon)
    drivers = ("amazon", "rust") if compared else ("rust",)
    names = {"amazon": f"Amazon's C, {amazon['driver']}", "rust": "Rust"}
    ratio_head = ["rust/amazon"] if compared else []
    heads = [names[driver] for driver in drivers]
    rows = [("kernel verbs, per call", *heads, *ratio_head, f"in efa.ko: {heads[0]}", *heads[1:])]
    for name, ours in figures["kernel_verbs"].items():
        # Calls without figures of Amazon's driver show only ours.
        of = compared.get(name, ours)
        instructions, in_module = (
            [f"{of[driver][key]:,}" if driver in of else "-" for driver in drivers] for key in ("instructions", "in_module")
        )
        ratio_cell = [f"{ratio(of, 'amazon'):.3f}" if "amazon" in of else "-"] if compared else []
        rows.append((name, *instructions, *ratio_cell, *in_module))
    return report.columns(rows)


def kverbs_summary(figures, amazon):
    ratios = {name: ratio(of, "amazon") for name, of in kverbs_compared(figures, amazon).items()}
    if not ratios:
        return [f"kernel verbs: no ratios, as the figures of Amazon's driver are of another kernel: {amazon['kernel']}"]
    worst = max(ratios, key=lambda name: ratios[name])
    return [
        f"geomean instructions of kernel verbs rust/amazon: {geomean(ratios.values()):.3f}",
        f"worst call of kernel verbs rust/amazon: {ratios[worst]:.3f} {worst}",
    ]


def summary(figures, amazon):
    """The last lines; `amazon` are the figures of Amazon's driver."""
    ratios = {name: ratio(of) for name, of in figures["verbs"].items()}
    worst = max(ratios, key=lambda name: ratios[name])
    sizes, counter = figures["text_and_data"], figures["verbs"][COUNTER_READ]
    return [
        f"geomean instructions rust/c: {geomean(ratios.values()):.3f}",
        f"geomean without the counter read: {geomean(value for name, value in ratios.items() if name != COUNTER_READ):.3f}",
        f"an admin command in efa.ko, without its checksum: {figures['command_without_checksum']} instructions ({COMMAND})",
        f"worst verb rust/c: {ratios[worst]:.3f} {worst}",
        f"size rust/c: {sizes['rust'] / sizes['c']:.3f} ({sizes['rust']:,} and {sizes['c']:,} bytes of text and data)",
        f"counter read round trips: rust {counter['rust']['round_trips']}, c {counter['c']['round_trips']}",
        *kverbs_summary(figures, amazon),
    ]


def picture(figures):
    """Returns the panels of the SVG."""
    makes = {
        (name.split(" ", 1)[1], driver == "c"): {level: of[driver] for level, of in points.items()}
        for name, points in figures["growth"].items()
        if name.split()[0] in ("alloc", "create", "register", "open")
        for driver in DRIVERS
    }
    ratios = {name: ratio(of) for name, of in figures["verbs"].items()}
    title = "Instructions to make one more, by number of objects; dashed: the C driver"
    return [
        report.bars("Instructions of the kernel per call, Rust driver / C driver", ratios),
        report.curves(title, dict(sorted(makes.items())), lambda level: f"{level:,}"),
    ]


def run(flavour):
    """The whole bench: prints tables and summary."""
    results = {driver: measure(driver, flavour, "verbs", "verbs", "growth") for driver in DRIVERS}
    kverbs = collect_kverbs(measure_kverbs(flavour))
    modules = {driver: result(f"{driver}-{flavour}") / "efa.ko" for driver in (*DRIVERS, "no_kverbs")}
    parts = {driver: size.parts(modules[driver]) for driver in DRIVERS}
    features = size.features(modules["rust"], modules["no_kverbs"])
    figures = {"kernel": release(flavour), "kernel_verbs": kverbs, **collect(results, parts), "features": features}
    report.write("driver", json.dumps(figures, indent=1) + "\n", picture(figures))
    amazon = json.loads(AMAZON.read_text())
    print("\n".join([*tables(figures, amazon), *summary(figures, amazon)]), flush=True)


def profile(flavour, verb, count):
    """Prints a verb's instructions by function and driver, largest differences first. For kernel verbs, only ours are shown."""
    if verb.startswith(KVERBS):
        results = {"rust": measure_kverbs(flavour)}
    else:
        results = {driver: measure(driver, flavour, "verbs", "verbs") for driver in DRIVERS}
    known = results["rust"].profiles
    if verb not in known:
        sys.exit(f"There is no verb {verb}: choose one of {', '.join(known)}.")
    rust = known[verb]
    c = results["c"].profiles[verb] if "c" in results else Counter()
    names = sorted({*rust, *c}, key=lambda name: -abs(rust[name] - c[name]))[:count]
    shown = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [("rust - c", "Rust", "C", "function")]
    rows += [(f"{rust[name] - c[name]:+,}", f"{rust[name]:,}", f"{c[name]:,}", text) for name, text in zip(names, shown, strict=True)]
    rows.append(("", f"{rust.total():,}", f"{c.total():,}", "in all"))
    for difference, in_rust, in_c, name in rows:
        print(f"{difference:>10}  {in_rust:>12}{in_c:>12}  {name}" if "c" in results else f"{in_rust:>12}  {name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    text = "only show the functions in which the drivers differ, or those of the Rust driver for a kernel verb"
    parser.add_argument("--profile", metavar="VERB", help=text)
    parser.add_argument("--lines", type=int, default=40, metavar="N", help="number of functions that --profile shows (default: 40)")
    arguments = parser.parse_args()
    if arguments.profile:
        profile(arguments.flavour, arguments.profile, arguments.lines)
    else:
        run(arguments.flavour)
