#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Contexts and protection domains: what neither tests/abi compares with the C driver nor a test on the host checks."""

import os
import struct

import selftest
from selftest import Suite, equal, result_of
from uverbs import MIN_SQ_WR, Context, opened

suite = Suite()
main = selftest.any_function()
if not main.is_bound:
    main.rebind()
CPUS = len(os.sched_getaffinity(0))


def before():
    if selftest.emulator:
        main.clear()


def after():
    if selftest.emulator:
        main.clear()
        equal(main.held(), {}, "objects left in the device")
        equal(main.protocol_errors(), 0, "protocol errors")


def resources(**wanted):
    """Fails unless the device has these numbers of objects. Without the emulator, does nothing."""
    if selftest.emulator:
        state = main.state()["resources"]
        equal({name: state[name] for name in wanted}, wanted, "objects of the device")


@suite.case("contexts and protection domains have objects of their own", needs_emulator=False)
def open_and_close():
    with opened(main) as context:
        resources(uar=1)
        with opened(main):
            resources(uar=2)
        pds = [context.alloc_pd() for _ in range(10)]
        resources(uar=1, pd=10)
        equal(len({struct.unpack("<IHH", response)[1] for _, response in pds}), 10, "different numbers")
        for handle, _ in pds:
            context.dealloc_pd(handle)
        resources(uar=1, pd=0)
    resources(uar=0)


# The devices of tests/abi need either both abilities of a library or TX_BATCH alone.
for settings, needed in (({"max_tx_batch": 0, "min_sq_depth": 8}, MIN_SQ_WR), ({"max_tx_batch": 0, "min_sq_depth": 0}, 0)):

    def handshake(settings=settings):
        main.set(**settings)
        main.rebind()
        results = []
        for caps in range(4):
            with Context(main.uverbs()) as context:
                results.append(result_of(context.get_context, caps))
        return " ".join(results)

    wanted = ["ok" if needed & ~caps == 0 else "EOPNOTSUPP" for caps in range(4)]
    text = " and ".join(f"{name} {value}" for name, value in settings.items())
    suite.add(f"libraries with {text}", handshake, " ".join(wanted))

# The number depends on the guest.
for spec, vectors in (("profile=efa0", 1), ("profile=efa1", CPUS), ("profile=efa4", CPUS), ("profile=efa2,msix=1", 1)):

    def completion_vectors(function, vectors=vectors):
        if not function.is_bound:
            function.rebind()
        with opened(function) as context:
            equal(context.num_comp_vectors, vectors, "completion vectors")

    suite.add_for(spec, "completion vectors", completion_vectors)


@suite.case("query_port_speed")
def port_speed():
    speeds = []
    for gbps in (0, 100, 1600, 65535):
        main.set(link_gbps=gbps)
        main.rebind()
        with opened(main) as context:
            speeds.append(context.query_port_speed(1))
    # In units of 100 Mbit/s. A device that reports no speed has 100 Gbit/s.
    equal(speeds, [1000, 1000, 16000, 655350], "speeds")


suite.run(before, after)
