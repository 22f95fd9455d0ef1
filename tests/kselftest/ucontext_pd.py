#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Contexts and protection domains: what neither tests/abi compares with the C driver nor a test on the host checks."""

import os
import struct

import selftest
from selftest import Skipped, Suite, equal, function_with, result_of
from uverbs import MIN_SQ_WR, TX_BATCH, Context, opened

suite = Suite()
main = selftest.any_function()
if not main.is_bound:
    main.rebind()
emulated = selftest.emulator is not None
CPUS = len(os.sched_getaffinity(0))


def before():
    if emulated:
        main.clear()


def after():
    if emulated:
        main.clear()
        held = {name: count for name, count in main.state()["resources"].items() if count and name != "eq"}
        equal(held, {}, "objects left in the device")


def resources(**wanted):
    """Fails unless the device has these numbers of objects. Without the emulator, does nothing."""
    if emulated:
        state = main.state()["resources"]
        equal({name: state[name] for name in wanted}, wanted, "objects of the device")


@suite.case("a context has a user access region of its own", needs_emulator=False)
def open_and_close():
    with opened(main):
        resources(uar=1)
        with opened(main):
            resources(uar=2)
        resources(uar=1)
    resources(uar=0)


# tests/abi has no device for the second and the fourth.
for settings, needed in (
    ({"max_tx_batch": 64, "min_sq_depth": 0}, TX_BATCH),
    ({"max_tx_batch": 0, "min_sq_depth": 8}, MIN_SQ_WR),
    ({"max_tx_batch": 64, "min_sq_depth": 8}, TX_BATCH | MIN_SQ_WR),
    ({"max_tx_batch": 0, "min_sq_depth": 0}, 0),
):

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

    def completion_vectors(spec=spec, vectors=vectors):
        function = function_with(spec)
        if not function:
            raise Skipped("there is no such device")
        if not function.is_bound or function is main:
            function.rebind()
        with Context(function.uverbs()) as context:
            context.get_context()
            equal(context.num_comp_vectors, vectors, "completion vectors")

    suite.add(f"{spec.removeprefix('profile=')}: completion vectors", completion_vectors)


@suite.case("limits are the device's")
def changed_limits():
    main.set(sub_cqs_per_cq=4, inline_buf_size=48, max_llq_size=8192, max_tx_batch=9, min_sq_depth=7)
    main.rebind()
    with Context(main.uverbs()) as context:
        response = struct.unpack("<IIHHIHHHH", context.get_context())
    equal(response, (0, 3, 4, 48, 8192, 9, 7, 48, 0), "response")


@suite.case("protection domains have numbers of their own", needs_emulator=False)
def pd_numbers():
    if emulated:
        main.rebind()
    with opened(main) as context:
        pds = [context.alloc_pd() for _ in range(10)]
        resources(pd=10, uar=1)
        equal(len({struct.unpack("<IHH", response)[1] for _, response in pds}), 10, "different numbers")
        for handle, _ in pds:
            context.dealloc_pd(handle)
        resources(pd=0, uar=1)


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


@suite.case("the driver has not violated the device's protocol")
def protocol_errors():
    equal(main.protocol_errors(), 0, "protocol errors")


suite.run(before, after)
