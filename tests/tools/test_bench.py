# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import json
import types
import unittest
from unittest import mock

import support
from efa_tools import bench, counts, size
from efa_tools.failure import Failure

KALLSYMS = """\
ffffffff81000000 T first
ffffffff81000010 t second
ffffffff81000018 d some_data
ffffffffc0000000 t verb\t[efa]
"""
# Two labels. The first one has samples that slept once, and samples that did not sleep.
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


def figures(**ratios):
    """Returns figures like those of collect(), for verbs with these ratios."""

    def cost(instructions):
        return {"instructions": instructions, "in_module": 0, "commands": 1, "round_trips": 1}

    verbs = {name: {"rust": cost(ratio * 1000), "c": cost(1000)} for name, ratio in ratios.items()}
    verbs[bench.COUNTER_READ] = {"rust": {**cost(1000), "round_trips": 1}, "c": {**cost(1000), "round_trips": 5}}
    sizes = {"rust": 1500, "c": 1000}
    found = {"verbs": verbs, "growth": {}, "bytes_per_object": {}, "text_and_data": sizes, "kernel_verbs": {}}
    return {**found, "kernel": "7.3", "command_without_checksum": 400}


def calls(instructions):
    return {name: {"instructions": count, "in_module": count - 10} for name, count in instructions.items()}


def kverbs_figures(**instructions):
    """Returns the figures of a benchmark with these numbers of instructions per call of kernel verbs."""
    return {**figures(dear=2), "kernel_verbs": {name: {"rust": cost} for name, cost in calls(instructions).items()}}


def amazon_figures(kernel="7.3", **instructions):
    """Returns figures like those of bench.amazon_figures(), for calls with these numbers of instructions."""
    return {"driver": "3.1.0", "kernel": kernel, "kernel_verbs": calls(instructions)}


class Counts(support.TemporaryCache):
    def test_samples_without_a_label_do_not_count(self):
        results = self.results(["alloc"])
        self.assertEqual(results.instructions, {"alloc": 20})

    def test_a_program_need_not_see_commands(self):
        (self.folder / "counts").write_text(COUNTS)
        (self.folder / "kallsyms").write_text(KALLSYMS)
        (self.folder / "results.json").write_text('{"labels": ["post_send"]}')
        results = counts.Results(self.folder / "counts", self.folder)
        self.assertEqual(results.instructions, {"post_send": 7})

    def results(self, labels):
        (self.folder / "counts").write_text(COUNTS)
        (self.folder / "kallsyms").write_text(KALLSYMS)
        commands = {name: {"round_trips": 1 if name == "alloc" else 0} for name in labels}
        (self.folder / "results.json").write_text(json.dumps({"labels": labels, "commands": commands, "memory": {}}))
        return counts.Results(self.folder / "counts", self.folder)

    def test_the_cheapest_sample_that_slept_as_often_as_it_had_to_counts(self):
        results = self.results(["alloc", "query"])
        self.assertEqual(results.instructions, {"alloc": 20, "query": 100})

    def test_else_the_usual_ones_count_and_of_these_the_cheaper(self):
        groups = [counts.Group(3, [10], {}), counts.Group(2, [50, 60], {}), counts.Group(1, [40, 70], {})]
        self.assertEqual(counts.representative(groups, 0).switches, 1)

    def test_instructions_belong_to_functions(self):
        results = self.results(["alloc", "query"])
        self.assertEqual(results.profiles["alloc"], {"first": 5, "second": 5, "verb [efa]": 10})
        self.assertEqual(results.profiles["query"], {"second": 100})

    def test_the_module_has_its_share(self):
        results = self.results(["alloc", "query"])
        self.assertEqual(results.module_instructions("alloc"), 10)
        self.assertEqual(results.module_instructions("query"), 0)
        self.assertEqual(results.module_instructions("alloc", without="verb"), 0)


class Summary(unittest.TestCase):
    def test_last_lines(self):
        self.assertEqual(
            bench.summary(figures(cheap=0.5, dear=4), amazon_figures("7.2")),
            [
                "geomean instructions rust/c: 1.260",
                "geomean without the counter read: 1.414",
                "an admin command in efa.ko, without its checksum: 400 instructions (dealloc PD)",
                "worst verb rust/c: 4.000 dear",
                "size rust/c: 1.500 (1,500 and 1,000 bytes of text and data)",
                "counter read round trips: rust 1, c 5",
                "kernel verbs: no ratios, as the figures of Amazon's driver are of another kernel: 7.2",
            ],
        )

    def test_last_lines_with_amazons_driver(self):
        found = kverbs_figures(post_send=200, poll_cq=50)
        self.assertEqual(
            bench.summary(found, amazon_figures(post_send=100, poll_cq=100))[-2:],
            [
                "geomean instructions of kernel verbs rust/amazon: 1.000",
                "worst call of kernel verbs rust/amazon: 2.000 post_send",
            ],
        )

    def test_table_with_amazons_driver(self):
        found = bench.kverbs_table(kverbs_figures(post_send=200), amazon_figures(post_send=100))
        self.assertEqual([row.split() for row in found][1:], [["post_send", "100", "200", "2.000", "90", "190"]])

    def test_a_call_that_amazons_driver_was_not_measured_with_has_no_ratio(self):
        found = bench.kverbs_table(kverbs_figures(post_send=200, post_new=300), amazon_figures(post_send=100))
        self.assertEqual([row.split() for row in found][2:], [["post_new", "-", "300", "-", "-", "290"]])

    def test_table_on_another_kernel(self):
        found = bench.kverbs_table(kverbs_figures(post_send=200), amazon_figures("7.2", post_send=100))
        self.assertEqual([row.split() for row in found][1:], [["post_send", "200", "190"]])

    def test_columns_are_aligned(self):
        self.assertEqual(bench.columns([("a", "1"), ("long", "100")]), ["a       1", "long  100"])


LISTING = """\
  [Nr] Name              Type            Address          Off    Size   ES Flg Lk Inf Al
  [ 0]                   NULL            0000000000000000 000000 000000 00      0   0  0
  [ 3] __jump_table      PROGBITS        0000000000000000 0000a0 0004a0 00  WA  0   0  8
  [ 5] __patchable_function_entries PROGBITS        0000000000000000 000540 0002c8 00 WAL  7   0  8
  [ 7] .text             PROGBITS        0000000000000000 000808 000010 00  AX  0   0 16
  [ 8] .rela.text        RELA            0000000000000000 041e68 01a340 18   I 54   7  8
  [13] .bss              NOBITS          0000000000000000 009218 000120 00  WA  0   0  1
  [26] .rodata           PROGBITS        0000000000000000 00b960 000020 00   A  0   0 32
  [27] .comment          PROGBITS        0000000000000000 00b960 000020 00  MS  0   0  1
"""
LINES = """\
/run/efa-rs/build/module/com/reset.rs:1
/run/efa-rs/build/module/com.rs:1
/run/efa-rs/build/module/driver.rs:7 (discriminator 2)
/usr/lib/rustlib/src/rust/library/core/src/fmt/mod.rs:5
/kit/source/rust/kernel/alloc/kvec.rs:5
/usr/src/linux-headers-common/include/linux/slab.h:5
/run/efa-rs/build/efa/efa_verbs.c:3
efa_com_cmd.c:?
"""


SYMBOLS = """\
0000000000000000 0000000000000010 t <efa_main::com::recovery::Recovery<efa_main::verbs::Verbs>>::attend
0000000000000010 0000000000000020 t core::ptr::drop_in_place::<efa_main::rdma::home::Home>
0000000000000030 0000000000000008 d __tracepoint_efa_state
0000000000000038 0000000000000040 t efa_main::hw::checksum::of_entry
0000000000000078 t without_size
"""


class Size(support.TemporaryCache):
    def outputs(self, **outputs):
        self.patch(mock.patch("efa_tools.build.in_toolroot", lambda command, binds: command))
        self.patch(mock.patch("subprocess.run", lambda command, **_: types.SimpleNamespace(stdout=outputs[command[0]])))

    def parts(self, lines):
        self.outputs(readelf=LISTING, addr2line=lines)
        return size.parts(self.folder / "efa.ko")

    def test_features_are_functions_and_data_by_their_names(self):
        self.outputs(readelf=LISTING, nm=SYMBOLS)
        module = self.folder / "efa.ko"
        self.assertEqual(size.features(module, module), {"kernel verbs": 0, "recovery": 0x30, "tracing": 8})

    def test_each_byte_of_code_counts_where_it_was_written_and_the_rest_by_section(self):
        parts = self.parts(LINES + "??:0\n" * 8)
        self.assertEqual(
            {name: count for name, count in parts.items() if count},
            {
                "code: com (C: efa_com*.c)": 3,
                "code: driver (C: efa_main.c)": 1,
                "code: core: formatting": 1,
                "code: kernel crate: memory, Arc": 1,
                "code: the kernel's headers": 1,
                "code: verbs (C: efa_verbs.c)": 1,
                "code: other": 8,
                "constants and texts": 0x20,
                "calls and jumps that the kernel patches": 0x4A0 + 0x2C8,
                "text and data": 0x10 + 0x20 + 0x4A0 + 0x2C8,
            },
        )

    def test_an_address_without_an_answer_is_noticed(self):
        with self.assertRaisesRegex(Failure, "addr2line knows 8 of the 16 bytes of .text"):
            self.parts(LINES)


class Picture(unittest.TestCase):
    def test_each_verb_has_a_bar_and_each_kind_a_line_for_each_driver(self):
        points = {level: dict.fromkeys(bench.DRIVERS, 100) for level in (1, 100, 10000)}
        verb = {"rust": {"instructions": 120}, "c": {"instructions": 100}}
        bars, lines = bench.picture({"verbs": {"create CQ": verb}, "growth": {"create CQ": points, "destroy CQ": points}})
        self.assertEqual(bars["values"], {"create CQ": 1.2})
        self.assertEqual([(line["name"], line["dashed"]) for line in lines["series"]], [("CQ", False), ("CQ", True)])
