#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Output of `rdma resource show` for each object: the core's part, and the driver's part with ids and sizes of the device."""

import contextlib
import json
import mmap
import os
import shutil

from objects import (
    CQ_WITH_COMPLETION_CHANNEL,
    QPT_UD,
    CompletionChannel,
    CompletionCounter,
    CompletionQueue,
    Memory,
    MemoryRegion,
    QueuePair,
)
from selftest import Failed, Suite, any_function, equal, output_of, skip_all
from uverbs import opened

if not shutil.which("rdma"):
    skip_all("needs the rdma tool of iproute2")
main = any_function()
if not main.is_bound:
    skip_all("the device is not bound to the driver")
suite = Suite()
PAGE = mmap.PAGESIZE


def shown(kind):
    """Returns the tool's output with details for this process's objects of a kind, in order."""
    (name,) = main.names("infiniband")
    entries = json.loads(output_of("rdma", "-jdd", "resource", "show", kind) or "[]")
    return [entry for entry in entries if (entry["ifname"], entry.get("pid")) == (name, os.getpid())]


def summary(function=main, kinds=("pd", "cq", "qp", "mr", "ctx")):
    """Returns the number of objects of a device by kind."""
    (name,) = function.names("infiniband")
    (entry,) = json.loads(output_of("rdma", "-j", "resource", "show", name))
    return {kind: entry[kind] for kind in kinds}


def details(entries, *wanted):
    """Returns `shown` if the driver's part of each entry is as wanted, and an empty text if there is none; fails otherwise."""
    got = [{key.removeprefix("drv_"): value for key, value in entry.items() if key.startswith("drv_")} for entry in entries]
    if len(got) == len(wanted) and not any(got):
        return ""
    equal(len(got), len(wanted), "the number of objects")
    for number, (entry, values) in enumerate(zip(got, wanted, strict=True)):
        equal(entry, values, f"the driver's part of object {number}")
    return "shown"


@contextlib.contextmanager
def objects():
    """Yields a context of the device, a PD and a CQ."""
    with opened(main) as context:
        yield context, context.alloc_pd()[0], CompletionQueue(context)


def cq_details(cq, entry_size=32):
    (entries,) = memoryview(cq.cqe.bytes()).cast("I")
    return {"cq_idx": cq.response.cq_idx, "entry_size": entry_size, "ring_size": -(-entries * entry_size // PAGE) * PAGE}


def without_offset(entries, name, wanted):
    """Removes an offset from entries, and checks its lower bits: userspace knows only the offset within the page."""
    for entry, low in zip(entries, wanted, strict=True):
        if f"drv_{name}" in entry:
            equal(entry.pop(f"drv_{name}") % PAGE, low, name)
    return entries


@suite.case("a completion queue", "shown", needs_emulator=False)
def completion_queues():
    with opened(main) as context:
        cqs = [CompletionQueue(context), CompletionQueue(context, cqe=1024, cq_entry_size=16)]
        entries = without_offset(shown("cq"), "db_offset", [0, 0])
        equal([entry["cqe"] for entry in entries], [16, 1024], "the core's numbers of entries")
        return details(entries, cq_details(cqs[0]), cq_details(cqs[1], 16))


@suite.case("a completion queue with a doorbell", "shown")
def doorbell():
    with opened(main) as context, contextlib.closing(CompletionChannel(context)) as channel:
        cq = CompletionQueue(context, flags=CQ_WITH_COMPLETION_CHANNEL, channel=channel.fd)
        return details(without_offset(shown("cq"), "db_offset", [cq.response.db_off]), cq_details(cq))


@suite.case("queue pairs", "shown", needs_emulator=False)
def queue_pairs():
    with objects() as (context, pd, cq):
        qps = [
            QueuePair(context, pd, cq.handle, cq.handle, max_send_wr=64, sq_ring_size=64 * 64),
            QueuePair(context, pd, cq.handle, cq.handle, qp_type=QPT_UD),
        ]
        entries = without_offset(shown("qp"), "llq_offset", [qp.response.llq_desc_offset for qp in qps])
        equal([entry["type"] for entry in entries], ["DRIVER", "UD"], "types")
        equal([entry["lqpn"] for entry in entries], [qp.qpn for qp in qps], "numbers")
        # Userspace has no other source for the device's handles. They must only differ.
        handles = [entry.pop("drv_qp_handle") for entry in entries if "drv_qp_handle" in entry]
        equal(len(set(handles)), len(handles), "distinct handles")
        return details(entries, {"sq_ring_size": 4096, "rq_ring_size": 256}, {"sq_ring_size": 2048, "rq_ring_size": 256})


@suite.case("memory regions", "shown", needs_emulator=False)
def memory_regions():
    with objects() as (context, pd, _):
        memories = [Memory(5 * PAGE), Memory(4 << 20, huge=True)]
        regions = [MemoryRegion(context, pd, memory.address, memory.length) for memory in memories]
        entries = shown("mr")
        equal([entry["mrlen"] for entry in entries], [memory.length for memory in memories], "lengths")
        equal([int(entry["lkey"], 16) for entry in entries], [region.lkey for region in regions], "local keys")
        wanted = []
        for entry, memory in zip(entries, memories, strict=True):
            # Depends on the memory's physical layout.
            size = entry.get("drv_page_size", PAGE)
            if size not in [PAGE << shift for shift in range(20)]:
                raise Failed(f"a page size of {size}")
            pages = (memory.address + memory.length - 1) // size - memory.address // size + 1
            wanted.append({"page_size": size, "pages": pages})
        return details(entries, *wanted)


@suite.case("protection domains and contexts have no details", needs_emulator=False)
def no_details():
    with objects():
        (domain,), (shown_context,) = shown("pd"), shown("ctx")
        equal(domain["ctxn"], shown_context["ctxn"], "the context of the domain")
        return details([domain, shown_context], {}, {})


@suite.case("more objects than one message holds", "shown", needs_emulator=False)
def many():
    with opened(main) as context:
        cqs = [CompletionQueue(context) for _ in range(200)]
        entries = without_offset(shown("cq"), "db_offset", [0] * len(cqs))
        return details(entries, *map(cq_details, cqs))


@suite.case("destroyed objects are not shown", needs_emulator=False)
def destroyed():
    before = summary()
    with objects() as (context, pd, cq):
        # Queue pairs of the driver's own type appear only if all details are requested.
        qp = QueuePair(context, pd, cq.handle, cq.handle, qp_type=QPT_UD)
        memory = Memory(PAGE)
        region = MemoryRegion(context, pd, memory.address, PAGE)
        during = summary()
        equal({kind: during[kind] - before[kind] for kind in before}, {"pd": 1, "cq": 1, "qp": 1, "mr": 1, "ctx": 1}, "new objects")
        qp.destroy()
        region.dereg()
        equal((shown("qp"), shown("mr")), ([], []), "objects")
    equal(summary(), before, "the numbers of objects")


def counters(function):
    def count():
        return summary(function, ["comp_cntr"])["comp_cntr"]

    before = count()
    with opened(function) as context:
        memory = Memory(PAGE)
        made = [CompletionCounter(context, memory.address, memory.address + 8) for _ in range(2)]
        during = count()
        made.pop().destroy()
        after = count()
    return f"{before} {during} {after} {count()}"


suite.add_for("profile=efa4", "completion counters are counted", counters, "0 2 1 0")
suite.run()
