# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The tables of the benches: which samples count, to what the bytes of a module belong, and the committed results."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
from conftest import CLONE

sys.path.insert(0, str(CLONE / "bench"))

import counts
import data
import driver
import report
import size
import srd

MINUTES = 1
TIER = "check"
SYMBOLS = "ffffffff81000000 T first\nffffffff81000010 t second\nffffffff81000018 d some_data\nffffffffc0000000 t verb\t[efa]\n"
# Two labels. The first one has samples that did not sleep, and samples that slept once.
COUNTS = """\
0 0 7 8 9
ffffffff81000000 7

0 1 30 20 25
ffffffff81000000 5
ffffffff81000012 5
ffffffffc0000004 10

1 0 100
ffffffff81000019 100

"""
SECTIONS = """\
  [ 3] __jump_table      PROGBITS        0000000000000000 0000a0 0004a0 00  WA  0   0  8
  [ 7] .text             PROGBITS        0000000000000000 000808 000004 00  AX  0   0 16
  [ 8] .rela.text        RELA            0000000000000000 041e68 01a340 18   I 54   7  8
  [13] .bss              NOBITS          0000000000000000 009218 000120 00  WA  0   0  1
"""
LINES = "/tmp/rust/com/reset.rs:1\n/tmp/rust/driver.rs:7 (discriminator 2)\n/usr/lib/library/core/src/fmt/mod.rs:5\n??:0\n"


def test_sample_with_the_expected_sleeps_counts(tmp_path):
    seen = {"labels": ["alloc", "query"], "commands": {"alloc": {"round_trips": 1}}}
    for name, text in (("counts", COUNTS), ("kallsyms", SYMBOLS), ("results.json", json.dumps(seen))):
        (tmp_path / name).write_text(text)
    results = counts.Results(tmp_path / "counts", tmp_path)
    assert results.instructions == {"alloc": 20, "query": 100}
    assert results.profiles["alloc"] == {"first": 5, "second": 5, "verb [efa]": 10}
    assert [results.module_instructions("alloc", without) for without in (None, "verb")] == [10, 0]


@pytest.mark.parametrize("lines", [LINES, LINES[:30]])
def test_code_counts_where_it_was_written(monkeypatch, lines):
    outputs = {"readelf": SECTIONS, "addr2line": lines}
    monkeypatch.setattr(size.subprocess, "run", lambda command, **_: SimpleNamespace(stdout=outputs[command[0]]))
    if lines != LINES:
        with pytest.raises(ValueError, match="addr2line knows 2 of the 4 bytes"):
            size.parts("efa.ko")
        return
    code = ("code: com (C: efa_com*.c)", "code: driver (C: efa_main.c)", "code: core: formatting", "code: other")
    expected = dict.fromkeys(code, 1) | {"calls and jumps that the kernel patches": 0x4A0, "text and data": 0x4A4}
    assert {name: count for name, count in size.parts("efa.ko").items() if count} == expected


def row(what, rust=None, c=None, ratio=None):
    return (
        f"| {what} | {'' if rust is None else f'{rust:,}'} | {'' if c is None else f'{c:,}'} | {'' if ratio is None else f'{ratio:.3f}'} |"
    )


def costs(figures, amazon):
    """Yields the rows of README's table of costs."""
    sizes, features = figures["text_and_data"], figures["features"]
    for kind, of, reference in (("verb", figures["verbs"], "c"), ("kernel verb", driver.kverbs_compared(figures, amazon), "amazon")):
        ratios = {name: driver.ratio(of[name], reference) for name in of}
        worst = max(ratios, key=ratios.__getitem__)
        yield row(f"instructions per {kind}, geometric mean of {len(of)}", ratio=driver.geomean(ratios.values()))
        rust, c = (of[worst][name]["instructions"] for name in ("rust", reference))
        yield row(f"the worst {kind}, `{worst}`", rust, c, rust / c)
        if ratios.pop(driver.COUNTER_READ, None):
            yield row(f"the same without `{driver.COUNTER_READ}`", ratio=driver.geomean(ratios.values()))
    yield row("bytes of text and data of `efa.ko`", sizes["rust"], sizes["c"], sizes["rust"] / sizes["c"])
    yield f"| of these for {', '.join(features)} | {', '.join(f'{count:,}' for count in features.values())} |  |  |"
    kind, of = max(figures["bytes_per_object"].items(), key=lambda item: item[1]["rust"] / item[1]["c"])
    yield row(f"bytes of kernel memory of the worst object, {kind}", round(of["rust"]), round(of["c"]), of["rust"] / of["c"])


def test_readme_has_the_committed_figures():
    readme = (CLONE / "README.md").read_text()
    figures, amazon = (json.loads((CLONE / f"bench/{name}.json").read_text()) for name in ("driver", "amazon"))
    assert [line for line in costs(figures, amazon) if line not in readme.splitlines()] == []
    assert f"on Linux `{figures['kernel']}`" in readme and f"Amazon's driver {amazon['driver']}" in readme


def numbered(values):
    """Gives JSON's objects whose names are numbers these numbers."""
    return {int(name) if name.isdigit() else name: value for name, value in values.items()}


@pytest.mark.parametrize("bench", [driver, data, srd], ids=lambda bench: bench.__name__)
def test_committed_results_make_the_committed_picture(bench):
    path = CLONE / f"bench/{bench.__name__}.json"
    figures = json.loads(path.read_text(), object_hook=numbered)
    assert report.draw(bench.picture(figures)) == path.with_suffix(".svg").read_text()
    if bench == driver:
        amazon = json.loads(driver.AMAZON.read_text())
        lines = "\n".join([*driver.tables(figures, amazon), *driver.summary(figures, {**amazon, "kernel": "another"})])
        assert re.search(r"^create CQ +[\d,]+ +[\d,]+ +[\d.]+ ", lines, re.MULTILINE) and "are of another kernel: another" in lines
    elif bench == srd:
        assert srd.document(figures) == path.read_text()
        rows = srd.both(figures, "incast") + srd.both(figures, "racks")
        shown = [line.split()[-4:] for line in srd.tables(figures)][1 : 1 + len(rows)]
        assert shown == [[f"{value:,.3f}" for value in (row["median"], row["mean"], row["cdf"][99], row["max"])] for row in rows]
        assert srd.differences(figures) == []
        figures["racks"][0]["median"] *= 1.2
        assert len(srd.differences(figures)) == 1
    else:
        assert re.search(r"^8 MiB( +[\d.,]+){7}$|^8 MiB( +[\d.,]+){5} *$", "\n".join(data.tables(figures)), re.MULTILINE)
