# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Contexts and protection domains."""

import os
import struct

from harness import INPUTS, Cases, attempt, until_refused
from objects import METHOD_PD_DESTROY, OBJECT_PD, object_handle
from uverbs import DEALLOC_PD, MIN_SQ_WR, TX_BATCH, Buffer, Context

cases = Cases("context")


def got(s, *arguments, **options):
    """Returns GET_CONTEXT's response as bytes, and whether there is a context."""
    context = s.raw()
    return context.get_context(*arguments, **options), context.num_comp_vectors is not None


for device in ("efa3", "efa4", "efa0", "efa2", "no-eq", "small"):
    cases.add(f"{device}: response", got, device)
    cases.each(device + ": the library knows {:#x}", range(4), lambda s, caps: got(s, caps), device)
cases.add("unknown abilities", lambda s: got(s, 0xFFFFFFFF))
KNOWN = struct.pack("<I", TX_BATCH | MIN_SQ_WR)
cases.each("request of {} bytes", (0, 4, 8, 12, 64), lambda s, size: got(s, request=KNOWN.ljust(size, b"\0")[:size]))
cases.add("dirty request", lambda s: got(s, request=KNOWN + b"\xff" * 4))
cases.each("response of {} bytes", (0, 4, 8, 12, 20, 24, 28, 64), lambda s, size: got(s, out_size=size))
cases.each("response to nowhere after {} bytes", (0, 4, 8, 12, 28), lambda s, n: got(s, out_size=24, buffer=Buffer(32, accessible=n)))
cases.add("twice", lambda s: s.context.get_context())


@cases.case("no verb works before it")
def before(s):
    context = s.raw()
    return attempt(context.alloc_pd), attempt(context.query_device), attempt(context.query_port, 1), attempt(context.dealloc_pd, 0)


@cases.case("many")
def many(s):
    s.shows_commands = False
    contexts = [s.open() for _ in range(64)]
    return len(contexts)


cases.add("more than the device has", lambda s: until_refused(s.open, 5), "small")


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


cases.add("response", lambda s: s.context.alloc_pd()[1][:4] + s.context.alloc_pd()[1][6:])
cases.add("alloc", lambda s: f"pd={struct.unpack_from('<IH', s.context.alloc_pd()[1].ljust(8, bytes(1)))[1]}")
cases.each(
    "input: {}",
    [(name.replace("a late bit", "the last bit"), data) for name, data in INPUTS],
    lambda s, _, data: s.context.alloc_pd(request=data)[1][:4],
)
cases.each("output of {} bytes", (0, 4, 8, 12, 32), lambda s, size: s.context.alloc_pd(out_size=size)[1][6:])
cases.each("output to nowhere after {} bytes", (0, 4, 8), lambda s, n: s.context.alloc_pd(out_size=8, buffer=Buffer(12, accessible=n))[1])


cases.add("dealloc twice", lambda s: s.context.dealloc_pd(s.gone_pd()))
HANDLES = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
cases.each("dealloc of handle {:#x}", HANDLES, lambda s, handle: s.context.dealloc_pd(handle))
cases.add("dealloc of another context's", lambda s: s.open().dealloc_pd(s.pd))
cases.add("dealloc of another kind of object", lambda s: s.context.dealloc_pd(s.a_cq.handle))


@cases.case("dealloc with input for the driver")
def pd_dealloc_input(s):
    return attempt(os.write, s.context.fd, struct.pack("<IHHIQ", DEALLOC_PD, 5, 0, s.pd, 1)), attempt(s.context.dealloc_pd, s.pd)


cases.add("dealloc by ioctl", lambda s: s.context.ioctl(OBJECT_PD, METHOD_PD_DESTROY, object_handle(0, s.pd)) and None)
cases.each("dealloc in use by {}", ("qp", "mr", "ah"), lambda s, user: getattr(s, user)() and s.context.dealloc_pd(s.pd))
cases.add("more than the device has", lambda s: until_refused(s.context.alloc_pd, 6), "small")


@cases.case("a refused one can be allocated later", "small")
def pd_later(s):
    handles = [s.context.alloc_pd()[0] for _ in range(4)]
    first = attempt(lambda: s.context.alloc_pd() and None)
    s.context.dealloc_pd(handles[2])
    return first, attempt(lambda: s.context.alloc_pd() and None)
