# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The cost of the Rust driver compared with that of the C driver, and of its kernel verbs with those of Amazon's: same kernel, same
devices, same program.
"""

import json
import math
import subprocess
from collections import Counter

from . import build, cache, counts, guest, plot, size, steps, toolroot
from .failure import Failure

DRIVERS = ("rust", "c")
# One device for objects and one for contexts: a device with 10,000 of both has no room for doorbells. Keep-alive events
# would interrupt measurements.
DEVICES = (
    "profile=efa3,keep_alive_ms=0,max_pd=12000,max_cq=12000,max_qp=12000,max_ah=12000,max_uar=64,max_llq_size=8192"
    ",event_counters=true,max_event_counters=16,event_counter_events=1023,event_counter_max_val=4294967295",
    "profile=efa3,keep_alive_ms=0,max_pd=16,max_cq=16,max_qp=16,max_uar=12000",
)
TIMEOUT = 1800
# Prefixes of the names of kernel verbs.
KVERBS = ("post_", "poll_")
# Figures of Amazon's C driver, which has kernel verbs, unlike Linux's. No run writes them.
AMAZON = cache.CLONE / "Documentation/bench-amazon.json"
PROBE = "probe"
COUNTER_READ = "read port counters"
# A verb that consists mainly of one admin command, and a part of the names of the checksum's functions.
COMMAND = "dealloc PD"
CHECKSUM = "checksum"


def prepare(driver, flavour, parts):
    """Prepares a guest with a driver to run tests/bench/verbs.py."""
    command = f"python3 /efa-rs/tests/bench/verbs.py /run/efa-rs/out {' '.join(parts)}"
    plugin = build.bench_plugin()
    options = guest.Options(command, driver, flavour, list(DEVICES), timeout=TIMEOUT, memory="3G", cpus=1, plugin=plugin)
    return guest.prepare(options)


def prepare_kverbs(flavour):
    """Prepares a guest with the Rust driver to run tests/bench/kernel_verbs.py."""
    client = build.bench_client(toolroot.kernel(flavour))
    return guest.prepare(
        guest.Options(
            f"python3 /efa-rs/tests/bench/kernel_verbs.py /share/{client.name} /run/efa-rs/out",
            *("rust", flavour, [DEVICES[0]]),
            share=client.parent,
            cpus=1,
            plugin=build.bench_plugin(),
        )
    )


def measure(driver, run):
    """Runs a guest; returns its results."""
    with steps.step(f"bench {driver} {run.options.flavour}"):
        if guest.execute(run):
            raise Failure(f"The bench failed with the driver {driver}: see above.")
    return counts.Results(run.folder / "counts", run.shared / "out")


def measure_kverbs(flavour):
    """Measures the kernel verbs of the Rust driver."""
    return measure("rust, kernel verbs", prepare_kverbs(flavour))


def collect_kverbs(result):
    """Returns the figures of kernel verbs, by call and then by driver. Only the Rust driver is measured."""
    return {
        name: {"rust": {"instructions": instructions, "in_module": result.module_instructions(name)}}
        for name, instructions in result.instructions.items()
    }


def amazon_figures():
    """Returns the recorded figures of Amazon's driver: its version, the kernel, and the figures by call."""
    return json.loads(AMAZON.read_text())


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


def columns(rows):
    """Formats a table whose first column is text and whose other columns are numbers."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def tables(figures, amazon):
    """The lines that a run prints; `amazon` are the figures of Amazon's driver."""
    rows: list[tuple[str, ...]] = [
        ("per call", "C", "Rust", "rust/c", "in efa.ko: C", "Rust", "commands: C", "Rust", "round trips: C", "Rust")
    ]
    for name, of in figures["verbs"].items():
        pairs = [[f"{of[driver][key]:,}" for driver in ("c", "rust")] for key in of["c"]]
        instructions, *others = pairs
        rows.append((name, *instructions, f"{ratio(of):.3f}", *(cell for pair in others for cell in pair)))
    yield from columns(rows)
    if figures["growth"]:
        levels = sorted(next(iter(figures["growth"].values())))
        yield ""
        heads = [f"{driver}, {level:,} exist" for driver in ("C", "Rust") for level in levels]
        rows = [("instructions", *heads)]
        for name, points in figures["growth"].items():
            rows.append((name, *(f"{points[level][driver]:,}" for driver in ("c", "rust") for level in levels)))
        yield from columns(rows)
        yield ""
        rows = [("bytes of kernel memory", "C", "Rust")]
        rows += [(kind, f"{of['c']:,.0f}", f"{of['rust']:,.0f}") for kind, of in figures["bytes_per_object"].items()]
        yield from columns(rows)
    yield ""
    yield from kverbs_table(figures, amazon)
    yield ""
    probe = figures["probe"]
    rows = [("probe", "C", "Rust")]
    shown = {"commands": "commands", "round_trips": "round trips of commands", "register_reads": "reads of registers"}
    rows += [(name, str(probe["c"][key]), str(probe["rust"][key])) for key, name in shown.items()]
    yield from columns(rows)
    yield ""
    rows = [("bytes of efa.ko", "C", "Rust", "Rust - C")]
    for part, of in figures["text_and_data_by_part"].items():
        rows.append((part, f"{of['c']:,}", f"{of['rust']:,}", f"{of['rust'] - of['c']:+,}"))
    rows += [(f"of these: {feature}", "-", f"{count:,}", "") for feature, count in figures["features"].items()]
    yield from columns(rows)
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
    return columns(rows)


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
    panels = [plot.bars("Instructions of the kernel per call, Rust driver / C driver", ratios)]
    if makes:
        title = "Instructions to make one more, by number of objects; dashed: the C driver"
        panels.append(plot.curves(title, dict(sorted(makes.items())), lambda level: f"{level:,}"))
    return panels


def run(flavour, folder):
    """The whole bench: prints tables and summary, writes bench.json and bench.svg to FOLDER."""
    runs = {driver: prepare(driver, flavour, ("verbs", "growth")) for driver in DRIVERS}
    results = {driver: measure(driver, run) for driver, run in runs.items()}
    kverbs = collect_kverbs(measure_kverbs(flavour))
    parts = {driver: size.parts(run.shared / "efa.ko") for driver, run in runs.items()}
    kernel = toolroot.kernel(flavour)
    features = size.features(runs["rust"].shared / "efa.ko", build.module_without_kverbs(kernel))
    figures = {"kernel": kernel, "kernel_verbs": kverbs, **collect(results, parts), "features": features}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(figures, indent=1) + "\n")
    (folder / "bench.svg").write_text(plot.draw(picture(figures)))
    amazon = amazon_figures()
    print("\n".join([*tables(figures, amazon), *summary(figures, amazon)]), flush=True)
    return 0


def demangled(names):
    """Demangles the names of functions."""
    command = build.in_toolroot(["c++filt"])
    output = subprocess.run(command, input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, output.splitlines(), strict=True))


def profile(flavour, verb, count):
    """Prints a verb's instructions by function and driver, largest differences first. For kernel verbs, only ours are shown."""
    if verb.startswith(KVERBS):
        results = {"rust": measure_kverbs(flavour)}
    else:
        runs = {driver: prepare(driver, flavour, ("verbs",)) for driver in DRIVERS}
        results = {driver: measure(driver, run) for driver, run in runs.items()}
    known = results["rust"].profiles
    if verb not in known:
        raise Failure(f"There is no verb {verb}: choose one of {', '.join(known)}.")
    rust = known[verb]
    c = results["c"].profiles[verb] if "c" in results else Counter()
    names = sorted({*rust, *c}, key=lambda name: -abs(rust[name] - c[name]))[:count]
    shown = demangled(names)
    rows = [("rust - c", "Rust", "C", "function")]
    rows += [(f"{rust[name] - c[name]:+,}", f"{rust[name]:,}", f"{c[name]:,}", shown[name]) for name in names]
    rows.append(("", f"{rust.total():,}", f"{c.total():,}", "in all"))
    for difference, in_rust, in_c, name in rows:
        print(f"{difference:>10}  {in_rust:>12}{in_c:>12}  {name}" if "c" in results else f"{in_rust:>12}  {name}")
    return 0
