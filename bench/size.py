# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Divides a module's bytes of text and data into parts: code by source file, the rest by purpose."""

import re
import subprocess
from collections import Counter

# Parts, in the order in which they are shown. Code counts by the source line that the debug information has for each byte, so
# inlined code counts where it was written. The first expression that matches the file's path decides.
SOURCES = {
    "code: com (C: efa_com*.c)": r"^/tmp/[^/]+/com[/.]|\befa_com\w*\.c$",
    "code: hw": r"^/tmp/[^/]+/hw/",
    "code: verbs (C: efa_verbs.c)": r"^/tmp/[^/]+/verbs[/.]|\befa_verbs\.c$",
    "code: rdma": r"^/tmp/[^/]+/rdma[/.]",
    "code: sys": r"^/tmp/[^/]+/sys[/.]",
    "code: ffi": r"^/tmp/[^/]+/ffi[/.]",
    "code: driver (C: efa_main.c)": r"^/tmp/[^/]+/\w+\.rs$|\befa_main\.c$",
    "code: core: results and options": r"/library/core/src/(result|option|ops/try_trait)\.rs$",
    "code: core: pointers, moves, drops": r"/library/core/src/(ptr|mem|slice|intrinsics)/",
    "code: core: formatting": r"/library/core/src/fmt/",
    "code: core: the rest": r"/library/core/",
    "code: kernel crate: memory, Arc": r"/rust/kernel/(alloc/|alloc\.rs|sync/(arc|aref|refcount)\.rs)",
    "code: kernel crate: the rest": r"/rust/(kernel|pin-init|macros)/",
    "code: the kernel's headers": r"/include/",
}
OTHER_CODE = "code: other"

SECTIONS = {
    "constants and texts": r"\.rodata",
    "data": r"\.data|\.(init|exit)\.data|\.bss",
    "debug messages that can be turned on": r"__dyndbg",
    "unwind tables": r"\.orc_",
    "calls and jumps that the kernel patches": (
        r"__jump_table|__patchable_function_entries|__mcount_loc|\.(static_call_sites|retpoline_sites|return_sites|call_sites)"
        r"|\.ibt_endbr_seal|\.smp_locks|\.altinstr|\.parainstructions"
    ),
}
OTHER_SECTIONS = "module header, notes and the like"
TOTAL = "text and data"

# Functions and data of features that the C driver lacks, by their demangled names.
FEATURES = {
    "recovery": r"\bcom::(backoff|health|life|quarantine|reclaim|recovery|report)::|\brdma::(home|order)::",
    "tracing": r"trace|bpf",
}
SYMBOL = re.compile(r"^[0-9a-f]+ ([0-9a-f]+) \w (.+)$", re.MULTILINE)

SECTION = re.compile(r"^ *\[ *\d+\] (\S+) +(\S+) +[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+) [0-9a-f]+ +([A-Za-z]*)", re.MULTILINE)


def first_match(patterns, text, otherwise):
    """Returns the name of the first expression that matches a part of a text."""
    return next((name for name, pattern in patterns.items() if re.search(pattern, text)), otherwise)


def sections(listing):
    """Yields name, bytes and flags of the sections that `size` counts as text or data, from readelf's output."""
    for name, kind, size, flags in SECTION.findall(listing):
        if "A" in flags and kind != "NOBITS":
            yield name, int(size, 16), flags


def output(path, *command, text=None):
    """Returns what a program of binutils prints about a module."""
    return subprocess.run([*command, path], input=text, capture_output=True, text=True, check=True).stdout


def total(path):
    """Returns the bytes of a module's text and data."""
    return sum(size for _, size, _ in sections(output(path, "readelf", "--sections", "--wide")))


def features(path, without_kverbs):
    """Returns the bytes of each feature that the C driver lacks. Those of kernel verbs are what a module without them has less."""
    found = {"kernel verbs": total(path) - total(without_kverbs)}
    symbols = SYMBOL.findall(output(path, "nm", "--print-size", "--demangle"))
    for feature, pattern in FEATURES.items():
        found[feature] = sum(int(size, 16) for size, name in symbols if re.search(pattern, name))
    return found


def parts(path):
    """Returns the bytes of a module's text and data by part, with their total at the end."""
    counts = Counter()
    for name, size, flags in sections(output(path, "readelf", "--sections", "--wide")):
        if "X" in flags:
            addresses = "\n".join(map(hex, range(size)))
            lines = output(path, "addr2line", f"--section={name}", "-e", text=addresses).splitlines()
            if len(lines) != size:
                raise ValueError(
                    f"addr2line knows {len(lines)} of the {size} bytes of {name} in {path}: is it another release of binutils?"
                )
            counts.update(first_match(SOURCES, line.rpartition(":")[0], OTHER_CODE) for line in lines)
        else:
            counts[first_match(SECTIONS, name, OTHER_SECTIONS)] += size
    order = [*SOURCES, OTHER_CODE, *SECTIONS, OTHER_SECTIONS]
    return {part: counts[part] for part in order} | {TOTAL: counts.total()}
