# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Contexts and protection domains."""

import os
import struct

from harness import Cases, attempt
from objects import METHOD_PD_DESTROY, OBJECT_PD, object_handle
from uverbs import DEALLOC_PD, MIN_SQ_WR, TX_BATCH, Buffer, Context

cases = Cases("context")
BOTH = TX_BATCH | MIN_SQ_WR


def got(function):
    """Returns a case with GET_CONTEXT's response, as bytes, as its result."""

    def run(session):
        context = session.raw()
        return function(context), context.num_comp_vectors is not None

    return run


for device in ("efa3", "efa4", "efa0", "efa2", "no-eq", "small"):
    cases.add(f"{device}: response", got(lambda context: context.get_context()), device)
    for caps in range(4):
        cases.add(f"{device}: the library knows {caps:#x}", got(lambda context, caps=caps: context.get_context(caps)), device)
cases.add("unknown abilities", got(lambda context: context.get_context(0xFFFFFFFF)))
for size in (0, 4, 8, 12, 64):
    request = struct.pack("<I", BOTH).ljust(size, b"\0")[:size]
    cases.add(f"request of {size} bytes", got(lambda context, request=request: context.get_context(request=request)))
cases.add("dirty request", got(lambda context: context.get_context(request=struct.pack("<II", BOTH, 0xFFFFFFFF))))
for size in (0, 4, 8, 12, 20, 24, 28, 64):
    cases.add(f"response of {size} bytes", got(lambda context, size=size: context.get_context(out_size=size)))
for accessible in (0, 4, 8, 12, 28):
    cases.add(
        f"response to nowhere after {accessible} bytes",
        got(lambda context, accessible=accessible: context.get_context(out_size=24, buffer=Buffer(32, accessible=accessible))),
    )


@cases.case("twice")
def twice(s):
    return attempt(s.context.get_context)


@cases.case("no verb works before it")
def before(s):
    context = s.raw()
    return attempt(context.alloc_pd), attempt(context.query_device), attempt(context.query_port, 1), attempt(context.dealloc_pd, 0)


@cases.case("many")
def many(s):
    s.shows_commands = False
    contexts = [s.open() for _ in range(64)]
    return len(contexts)


@cases.case("more than the device has", "small")
def too_many(s):
    return [attempt(lambda: s.open() and None) for _ in range(5)]


@cases.case("closed and opened again when all are taken", "small")
def again(s):
    contexts = [s.open() for _ in range(3)]
    contexts[0].close()
    return attempt(lambda: s.open() and None)


@cases.case("the file is closed while the asynchronous one is open")
def async_outlives(s):
    context = Context(s.function.uverbs())
    context.get_context()
    context.alloc_pd()
    os.close(context.fd)
    s.stack.callback(os.close, context.async_fd)


cases = Cases("pd")


def pd(**options):
    return lambda s: f"pd={struct.unpack_from('<IH', s.context.alloc_pd(**options)[1].ljust(8, bytes(1)))[1]}"


cases.add("response", lambda s: s.context.alloc_pd()[1][:4] + s.context.alloc_pd()[1][6:])
cases.add("alloc", pd())
INPUTS = {"zeros": bytes(8), "a bit": b"\1" + bytes(7), "the last bit": bytes(63) + b"\x80", "64 zeros": bytes(64)}
for name, request in INPUTS.items():
    cases.add(f"input: {name}", lambda s, request=request: s.context.alloc_pd(request=request)[1][:4])
for size in (0, 4, 8, 12, 32):
    cases.add(f"output of {size} bytes", lambda s, size=size: s.context.alloc_pd(out_size=size)[1][6:])
for accessible in (0, 4, 8):
    cases.add(
        f"output to nowhere after {accessible} bytes",
        lambda s, accessible=accessible: s.context.alloc_pd(out_size=8, buffer=Buffer(12, accessible=accessible))[1],
    )


@cases.case("dealloc twice")
def pd_twice(s):
    s.context.dealloc_pd(s.pd)
    return attempt(s.context.dealloc_pd, s.pd)


for handle in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
    cases.add(f"dealloc of handle {handle:#x}", lambda s, handle=handle: s.context.dealloc_pd(handle))


@cases.case("dealloc of another context's")
def pd_other(s):
    return attempt(s.open().dealloc_pd, s.pd)


@cases.case("dealloc of another kind of object")
def pd_kind(s):
    return attempt(s.context.dealloc_pd, s.a_cq.handle)


@cases.case("dealloc with input for the driver")
def pd_dealloc_input(s):
    return attempt(os.write, s.context.fd, struct.pack("<IHHIQ", DEALLOC_PD, 5, 0, s.pd, 1)), attempt(s.context.dealloc_pd, s.pd)


@cases.case("dealloc by ioctl")
def pd_ioctl(s):
    return attempt(lambda: s.context.ioctl(OBJECT_PD, METHOD_PD_DESTROY, object_handle(0, s.pd)) and None)


for user in ("qp", "mr", "ah"):

    def in_use(s, user=user):
        getattr(s, user)()
        return attempt(s.context.dealloc_pd, s.pd)

    cases.add(f"dealloc in use by {user}", in_use)


@cases.case("more than the device has", "small")
def pd_limit(s):
    return [attempt(lambda: s.context.alloc_pd() and None) for _ in range(6)]


@cases.case("a refused one can be allocated later", "small")
def pd_later(s):
    handles = [s.context.alloc_pd()[0] for _ in range(4)]
    first = attempt(lambda: s.context.alloc_pd() and None)
    s.context.dealloc_pd(handles[2])
    return first, attempt(lambda: s.context.alloc_pd() and None)
