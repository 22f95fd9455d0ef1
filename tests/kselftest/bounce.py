#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Streaming DMA with bounce buffers, as in confidential guests. Needs a guest booted with swiotlb=force."""

from pathlib import Path

from objects import Memory, MemoryRegion
from queue_cases import PAGE, add_cases
from selftest import Suite, any_function, result_of, skip_all
from uverbs import opened

if "swiotlb=force" not in Path("/proc/cmdline").read_text().split():
    skip_all("needs a kernel booted with swiotlb=force")
main = any_function()
suite = Suite()
# The core maps user memory for streaming DMA, and forbids bounce buffers for it.
add_cases(suite, main, memory="EIO")


@suite.case("a memory region", "EIO")
def region():
    memory = Memory(64 * PAGE)
    with opened(main) as context:
        return result_of(MemoryRegion, context, context.alloc_pd()[0], memory.address, memory.length)


suite.run()
