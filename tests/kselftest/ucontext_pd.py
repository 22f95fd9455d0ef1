#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Contexts, protection domains, and queries of an open device, checked byte by byte."""

import contextlib
import mmap
import os
import signal
import struct

import selftest
from selftest import STATUSES, Failed, Skipped, Suite, equal, function_with, result_of
from uverbs import MIN_SQ_WR, TX_BATCH, Buffer, Context, opened

PROCESSES = 8
ROUNDS = 100

suite = Suite()
main = selftest.any_function()
if not main.is_bound:
    main.rebind()


def before():
    if emulated:
        main.clear()


def after():
    if emulated:
        main.clear()
        held = {name: count for name, count in main.state()["resources"].items() if count and name != "eq"}
        equal(held, {}, "objects left in the device")


emulated = selftest.emulator is not None


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


@suite.case("contexts are opened and closed repeatedly", needs_emulator=False)
def many_contexts():
    for _ in range(ROUNDS):
        opened(main).close()


@suite.case("a process can have many contexts", needs_emulator=False)
def contexts_at_once():
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            stack.enter_context(opened(main))
        resources(uar=32)


# The handshake.


def add_handshakes():
    for settings, needed in (
        ({"max_tx_batch": 64, "min_sq_depth": 0}, TX_BATCH),
        ({"max_tx_batch": 0, "min_sq_depth": 8}, MIN_SQ_WR),
        ({"max_tx_batch": 64, "min_sq_depth": 8}, TX_BATCH | MIN_SQ_WR),
        ({"max_tx_batch": 0, "min_sq_depth": 0}, 0),
    ):
        text = " and ".join(f"{name} {value}" for name, value in settings.items())

        def run(settings=settings):
            main.set(**settings)
            main.rebind()
            results = []
            for caps in range(4):
                with Context(main.uverbs()) as context:
                    results.append(result_of(context.get_context, caps))
            return " ".join(results)

        wanted = ["ok" if needed & ~caps == 0 else "EOPNOTSUPP" for caps in range(4)]
        suite.add(f"libraries with {text}", run, " ".join(wanted))


add_handshakes()


@suite.case("a library's unknown abilities are ignored", needs_emulator=False)
def unknown_caps():
    opened(main, supported_caps=0xFFFFFFFF).close()


@suite.case("an empty request of a library announces no abilities", "EOPNOTSUPP")
def no_request():
    main.rebind()
    with Context(main.uverbs()) as context:
        return result_of(context.get_context, 0, b"")


@suite.case("a library may send a longer request", needs_emulator=False)
def long_request():
    opened(main, request=struct.pack("<I4x", TX_BATCH | MIN_SQ_WR) + bytes(32)).close()


# The response to the library.


def context_response(function):
    with Context(function.uverbs()) as context:
        response = context.get_context()
        return *struct.unpack("<IIHHIHHHH", response), context.num_comp_vectors


CPUS = len(os.sched_getaffinity(0))


def add_responses():
    for spec, inline, vectors in (
        ("profile=efa0", 32, 1),
        ("profile=efa1", 32, CPUS),
        ("profile=efa2", 32, CPUS),
        ("profile=efa3", 80, CPUS),
        ("profile=efa4", 80, CPUS),
        ("profile=efa2,msix=1", 32, 1),
    ):

        def run(spec=spec, inline=inline, vectors=vectors):
            function = function_with(spec)
            if not function:
                raise Skipped("there is no such device")
            if not function.is_bound or function is main:
                function.rebind()
            # comp_mask, cmds_supp_udata_mask, sub_cqs_per_cq, inline_buf_size, max_llq_size, max_tx_batch, min_sq_wr,
            # inline_buf_size_ex, reserved; number of completion vectors
            equal(context_response(function), (0, 3, 1, 32, 4096 * 64, 64, 32, inline, 0, vectors), "response")

        suite.add(f"{spec.removeprefix('profile=')}: limits of the library", run)


add_responses()


@suite.case("limits are the device's")
def changed_limits():
    main.set(sub_cqs_per_cq=4, inline_buf_size=48, max_llq_size=8192, max_tx_batch=9, min_sq_depth=7)
    main.rebind()
    response = context_response(main)
    equal(response[:9], (0, 3, 4, 48, 8192, 9, 7, 48, 0), "response")


@suite.case("a short response is cut off", needs_emulator=False)
def short_response():
    if emulated:
        main.rebind()
    buffer = Buffer(8 + 24)
    with Context(main.uverbs()) as context:
        context.get_context(out_size=8, buffer=buffer)
    equal(struct.unpack("<II", buffer.bytes()[8:16]), (0, 3), "the part that fits")
    equal(buffer.bytes()[16:], b"\xff" * 16, "bytes after it")


@suite.case("a long response is filled with zeros", needs_emulator=False)
def long_response():
    with Context(main.uverbs()) as context:
        response = context.get_context(out_size=24 + 16)
    equal(response[24:], bytes(16), "bytes after it")


@suite.case("a library may request no response", needs_emulator=False)
def no_response():
    with Context(main.uverbs()) as context:
        context.get_context(out_size=0)


@suite.case("a response to nowhere fails and leaves no context", "EFAULT", needs_emulator=False)
def response_to_nowhere():
    with Context(main.uverbs()) as context:
        result = result_of(lambda: context.get_context(out_size=24, buffer=Buffer(32, accessible=8)))
        resources(uar=0)
        return result


# Protection domains.


@suite.case("protection domains have numbers of their own", needs_emulator=False)
def pd_numbers():
    with opened(main) as context:
        pds = [context.alloc_pd() for _ in range(10)]
        resources(pd=10, uar=1)
        numbers = set()
        for _, response in pds:
            comp_mask, pdn, reserved = struct.unpack("<IHH", response)
            equal((comp_mask, reserved), (0, 0), "comp_mask and reserved")
            numbers.add(pdn)
        equal(len(numbers), 10, "different numbers")
        for handle, _ in pds:
            context.dealloc_pd(handle)
        resources(pd=0, uar=1)


@suite.case("protection domains are allocated and freed repeatedly", needs_emulator=False)
def many_pds():
    with opened(main) as context:
        for _ in range(ROUNDS):
            context.dealloc_pd(context.alloc_pd()[0])


@suite.case("a closed context has no protection domains", needs_emulator=False)
def freed_pds():
    with opened(main) as context:
        for _ in range(5):
            context.alloc_pd()
    resources(pd=0, uar=0)


@suite.case("a protection domain can be freed only once", "ENOENT", needs_emulator=False)
def pd_twice():
    with opened(main) as context:
        handle, _ = context.alloc_pd()
        context.dealloc_pd(handle)
        return result_of(context.dealloc_pd, handle)


def with_context(function):
    """Returns the result of a function that gets a context."""
    with opened(main) as context:
        return result_of(function, context)


suite.add("alloc_pd: input of zeros", lambda: with_context(lambda context: context.alloc_pd(request=bytes(8))), "ok", False)
suite.add("alloc_pd: input", lambda: with_context(lambda context: context.alloc_pd(request=b"\1" + bytes(7))), "EOPNOTSUPP", False)
suite.add("alloc_pd: no output", lambda: with_context(lambda context: context.alloc_pd(out_size=0)), "ok", False)
suite.add(
    "alloc_pd: output to nowhere",
    lambda: with_context(lambda context: context.alloc_pd(buffer=Buffer(12, accessible=4), out_size=8)),
    "EFAULT",
    False,
)


@suite.case("alloc_pd: an output buffer larger than the response", needs_emulator=False)
def pd_long_response():
    with opened(main) as context:
        _, response = context.alloc_pd(out_size=16)
    equal(response[8:], bytes(8), "bytes after it")


@suite.case("the device has no protection domain left", "ENOMEM")
def pd_limit():
    main.set(max_pd=4)
    errors = main.counter("alloc_pd_err")
    with opened(main) as context:
        handles = [context.alloc_pd()[0] for _ in range(4)]
        result = result_of(context.alloc_pd)
        equal(main.counter("alloc_pd_err"), errors + 1, "alloc_pd_err")
        context.dealloc_pd(handles[0])
        context.alloc_pd()
    return result


@suite.case("the device has no user access region left", "ENOMEM")
def uar_limit():
    main.set(max_uar=2)
    errors = main.counter("alloc_ucontext_err")
    with opened(main), opened(main):
        result = result_of(opened, main)
        equal(main.counter("alloc_ucontext_err"), errors + 1, "alloc_ucontext_err")
    return result


def add_statuses():
    def refused(opcode, action):
        results = []
        for status in STATUSES:
            main.inject({"opcode": opcode}, {"status": status}, times=1)
            results.append(result_of(action))
        return " ".join(results)

    def pds():
        with opened(main) as context:
            return refused("ALLOC_PD", context.alloc_pd)

    wanted = " ".join(STATUSES.values())
    suite.add("ALLOC_PD fails with each status", pds, wanted)
    suite.add("ALLOC_UAR fails with each status", lambda: refused("ALLOC_UAR", lambda: opened(main)), wanted)


add_statuses()


@suite.case("a device that does not free objects blocks no program")
def failing_dealloc():
    main.inject({"opcode": "DEALLOC_PD"}, {"status": "RESOURCE_BUSY"})
    main.inject({"opcode": "DEALLOC_UAR"}, {"status": "UNKNOWN_ERROR"})
    with opened(main) as context:
        handle, _ = context.alloc_pd()
        equal(result_of(context.dealloc_pd, handle), "ok", "dealloc_pd")
    main.clear()
    # A reset frees them.
    main.rebind()


# Queries.


def add_queries():
    for spec, caps, rdma_size, rdma_sges in (
        ("profile=efa0", 0b10001010, 0, 0),
        ("profile=efa1", 0b10001111, 1 << 30, 1),
        ("profile=efa2", 0b11101111, 1 << 30, 1),
        ("profile=efa3", 0b11101111, 1 << 30, 1),
        ("profile=efa4", 0b1111101111, 1 << 30, 1),
        # Without event queues there are no completion notifications.
        ("profile=efa2,msix=1", 0b11101011, 1 << 30, 1),
    ):

        def run(spec=spec, caps=caps, rdma_size=rdma_size, rdma_sges=rdma_sges):
            function = function_with(spec)
            if not function:
                raise Skipped("there is no such device")
            with opened(function) as context:
                limits, response = context.query_device()
            # comp_mask, max_sq_wr, max_rq_wr, max_sq_sge, max_rq_sge, max_rdma_size, device_caps
            equal(struct.unpack("<IIIHHII", response), (0, 4096, 32768, 2, 3, rdma_size, caps), "response")
            (max_mr_size, page_size_cap), (vendor, part, hardware) = limits[3:5], limits[5:8]
            equal((max_mr_size, page_size_cap), (mmap.PAGESIZE << 20, (1 << 31) - (1 << 12)), "max_mr_size, page_size_cap")
            part_wanted = 0xEFA0 + int(spec[11])
            equal((vendor, part, hardware), (0x1D0F, part_wanted, part_wanted), "vendor_id, vendor_part_id, hw_ver")
            # max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd
            equal(limits[8:17], (256, 4096, 0, 2, rdma_sges, 512, 32768, 65534, 256), "limits")
            equal(limits[31], 4096, "max_ah")
            equal((limits[37], limits[39]), (1, 1), "max_pkeys, ports")

        suite.add(f"{spec.removeprefix('profile=')}: query_device", run)


add_queries()
suite.add("query_device: input", lambda: with_context(lambda context: context.query_device(request=b"\1" + bytes(7))), "EOPNOTSUPP", False)
suite.add("query_device: input of zeros", lambda: with_context(lambda context: context.query_device(request=bytes(8))), "ok", False)
suite.add("query_device: no output", lambda: with_context(lambda context: context.query_device(out_size=0)), "ok", False)


@suite.case("query_device: an output buffer larger than the response", needs_emulator=False)
def query_long_response():
    with opened(main) as context:
        _, response = context.query_device(out_size=40)
    equal(response[24:], bytes(16), "bytes after it")


@suite.case("query_port")
def query_port():
    with opened(main) as context:
        response = struct.unpack("<5I3H14B", context.query_port(1))
    # port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, gid_tbl_len, pkey_tbl_len, lid, sm_lid, state, max_mtu,
    # active_mtu, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state,
    # link_layer, flags, reserved
    wanted = (0, 8928, 0, 0, 1, 1, 0, 0, 4, 5, 5, 1, 1, 0, 0, 0, 2, 64, 5, 0, 0, 0)
    equal(response, wanted, "response")


for port in (0, 2):
    suite.add(f"query_port of port {port}", lambda port=port: with_context(lambda context: context.query_port(port)), "EINVAL", False)


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


suite.add(
    "only the EFA driver answers its requests",
    lambda: with_context(lambda context: context.query_port_speed(1, driver=1)),
    "EINVAL",
    False,
)


# Processes.


def fork(function):
    """Runs a function in a new process and returns the process."""
    process = os.fork()
    if process == 0:
        try:
            function()
        except BaseException as error:
            print(f"# {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    return process


def join(processes):
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    equal(statuses, [0] * len(processes), "exit statuses")


@suite.case("processes allocate at the same time", needs_emulator=False)
def parallel():
    path = main.uverbs()

    def work():
        for _ in range(3):
            with Context(path) as context:
                context.get_context()
                handles = [context.alloc_pd()[0] for _ in range(8)]
                for handle in handles[::2]:
                    context.dealloc_pd(handle)

    if emulated:
        main.rebind()
        path = main.uverbs()
    join([fork(work) for _ in range(PROCESSES)])
    resources(pd=0, uar=0)


@suite.case("a process shares its context with its child", needs_emulator=False)
def inherited():
    with opened(main) as context:
        handle, _ = context.alloc_pd()
        # The child's exit must not destroy the parent's objects.
        join([fork(lambda: None)])
        resources(pd=1, uar=1)
        context.dealloc_pd(handle)


@suite.case("a process is killed", needs_emulator=False)
def killed():
    path = main.uverbs()
    reader, writer = os.pipe()

    def work():
        context = Context(path)
        context.get_context()
        while True:
            context.alloc_pd()
            os.write(writer, b".")
            context.dealloc_pd(context.alloc_pd()[0])

    processes = [fork(work) for _ in range(4)]
    # By then all processes are busy with their protection domains.
    for _ in range(40):
        os.read(reader, 1)
    for process in processes:
        os.kill(process, signal.SIGKILL)
    for process in processes:
        status = os.waitpid(process, 0)[1]
        if not os.WIFSIGNALED(status):
            raise Failed(f"a process ended by itself with status {status:#x}")
    os.close(reader)
    os.close(writer)
    resources(pd=0, uar=0)


@suite.case("the driver has not violated the device's protocol")
def protocol_errors():
    equal(main.protocol_errors(), 0, "protocol errors")


suite.run(before, after)
