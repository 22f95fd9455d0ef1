# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Input and output for the driver of each verb, in each length."""

import struct

import objects
import uverbs
from harness import Cases, attempt
from objects import IoctlMemoryRegion, IoctlQueuePair
from uverbs import UHW_IN, UHW_OUT, Attribute, Buffer, pointer_in, pointer_out

cases = Cases("udata", "efa4")
METHOD_INVOKE_WRITE, METHOD_GET_CONTEXT = 0, 3
# Bytes by which the longest inputs and outputs exceed the driver's own.
MORE = 16

CONTEXT = struct.pack("<II", 3, 0)
CQ = struct.pack("<IIHB5s", 0, 32, 1, 0, bytes(5))
QP = struct.pack("<4IHB5s", 0, 16 * 16, 32 * 64, 0, 0, 0, bytes(5))
INIT = objects.QP_STATE | objects.QP_PKEY_INDEX | objects.QP_PORT | objects.QP_QKEY


def created(create):
    """Returns a function that creates an object, destroys it, and returns the output of its creation."""

    def call(s, request, room):
        made = create(s, request=request, out_size=room)
        made.destroy()
        return made.raw

    return call


def get_context(s, request, room):
    with uverbs.Context(s.function.uverbs()) as context:
        return context.get_context(request=request, out_size=room)


def get_context_by_ioctl(s, request, room):
    output = Buffer(room)
    sent = [pointer_out(0, Buffer(4)), pointer_out(1, Buffer(8)), pointer_in(UHW_IN, request), pointer_out(UHW_OUT, output)]
    with uverbs.Context(s.function.uverbs()) as context:
        context.ioctl(uverbs.OBJECT_DEVICE, METHOD_GET_CONTEXT, *sent)
    return output.bytes()


def alloc_pd(s, request, room):
    handle, output = s.context.alloc_pd(request, room)
    s.context.dealloc_pd(handle)
    return output


def modify_qp(s, request, room):
    """Sends the extended command, as the other one has no data for the driver."""
    buffer = Buffer(8 + room)
    s.a_qp.modify(INIT, objects.QPS_INIT, rate_limit=0, driver_data=request, driver_out=room, buffer=buffer)
    return buffer.bytes()[8:]


def reg_mr(s, request, room):
    buffer = Buffer(12 + room)
    s.mr(driver_data=request, out_size=room, buffer=buffer).dereg()
    return buffer.bytes()[12:]


def reg_mr_by_ioctl(s, request, room):
    output = Buffer(room)
    s.mr(kind=IoctlMemoryRegion, attributes=(pointer_in(UHW_IN, request), pointer_out(UHW_OUT, output))).dereg()
    return output.bytes()


# For each verb: the unit of its lengths in bytes, an input with which it succeeds, and the length of its output in bytes.
VERBS = {
    "GET_CONTEXT": (get_context, 4, CONTEXT, 24),
    "GET_CONTEXT by ioctl": (get_context_by_ioctl, 1, CONTEXT, 24),
    "EX_QUERY_DEVICE": (lambda s, request, room: s.context.query_device(request, room)[1], 8, b"", 24),
    "ALLOC_PD": (alloc_pd, 4, b"", 8),
    "CREATE_AH": (created(lambda s, **options: s.ah(**options)), 4, b"", 8),
    "CQ_CREATE": (created(lambda s, **options: s.cq(**options)), 1, CQ, 40),
    "CREATE_QP": (created(lambda s, **options: s.qp(**options)), 4, QP, 64),
    "QP_CREATE": (created(lambda s, **options: s.qp(IoctlQueuePair, **options)), 1, QP, 64),
    "EX_MODIFY_QP": (modify_qp, 8, b"", 0),
    "REG_MR": (reg_mr, 4, b"", 0),
    "REG_MR by ioctl": (reg_mr_by_ioctl, 1, b"", 0),
}


def spans(results):
    """Returns results by number as text, with equal consecutive ones merged into a range."""
    texts = []
    start = last = None
    for number, result in results:
        if last is None or result != last[1]:
            start = number
            texts.append("")
        texts[-1] = f"{start} {result}" if start == number else f"{start}-{number} {result}"
        last = number, result
    return ", ".join(texts)


def written(output, known):
    """Describes which bytes of an output are written. Bytes behind the driver's own have to be zero."""
    if output and not output.strip(b"\xff"):
        return "untouched"
    rest = output[known:]
    if rest and not rest.strip(b"\xff"):
        return "untouched behind it"
    return "other bytes behind it" if any(rest) else "written"


def inputs(s, ending, call, step, request, room):
    """Returns the result of each length of the input. If it is longer than the driver's, its last byte is `ending`."""
    s.shows_commands = False
    found = []
    for length in range(0, len(request) + MORE + 1, step):
        data = request[:length].ljust(length, b"\0")
        if length > len(request):
            data = data[:-1] + ending
        found.append((length, attempt(lambda data=data: call(s, data, room) and None)))
    return spans(found)


def outputs(s, call, step, request, known):
    s.shows_commands = False
    lengths = range(0, known + MORE + 1, step)
    return spans((length, attempt(lambda length=length: written(call(s, request, length), known))) for length in lengths)


BY_VERB = [(verb, *form) for verb, form in VERBS.items()]
cases.each("{}: input of each length, then zeros", BY_VERB, lambda s, _, *form: inputs(s, b"\0", *form))
cases.each("{}: input of each length, then a bit", BY_VERB, lambda s, _, *form: inputs(s, b"\x80", *form))
cases.each("{}: output of each length", BY_VERB, lambda s, _, *form: outputs(s, *form))


def reg_mr_to_nowhere(s, **options):
    s.shows_commands = False
    return s.mr(**options)


cases.add("REG_MR: output to nowhere", lambda s: reg_mr_to_nowhere(s, out_size=8, buffer=Buffer(12, accessible=12)))
cases.add(
    "REG_MR by ioctl: output to nowhere", lambda s: reg_mr_to_nowhere(s, kind=IoctlMemoryRegion, attributes=(Attribute(UHW_OUT, 8, 4096),))
)


def destroyed(s, command, handle, out_size, body):
    """Sends a destroying command within an ioctl, which permits input and output for the driver."""
    output, core = Buffer(8), Buffer(out_size)
    sent = [pointer_in(2, struct.pack("<I", command)), pointer_in(0, body(handle, core.address))]
    if out_size:
        sent.append(pointer_out(1, core))
    sent += [pointer_in(UHW_IN, b"\1" * 16), pointer_out(UHW_OUT, output)]
    s.context.ioctl(uverbs.OBJECT_DEVICE, METHOD_INVOKE_WRITE, *sent)
    return output.bytes()


def plain(handle, _):
    return struct.pack("<I", handle)


def answered(handle, response):
    return struct.pack("<QII", response, handle, 0)


# To undo a creation, the core calls the driver with that creation's input and output. A driver that destroys must thus ignore both.
DESTROYS = (
    ("DEALLOC_PD", uverbs.DEALLOC_PD, lambda s: s.pd, 0, plain),
    ("DESTROY_AH", objects.DESTROY_AH, lambda s: s.ah().handle, 0, plain),
    ("DESTROY_CQ", objects.DESTROY_CQ, lambda s: s.a_cq.handle, 8, answered),
    ("DESTROY_QP", objects.DESTROY_QP, lambda s: s.a_qp.handle, 4, answered),
    ("DEREG_MR", objects.DEREG_MR, lambda s: s.mr().handle, 0, plain),
)
cases.each("{}: with input and output", DESTROYS, lambda s, _, command, make, *more: destroyed(s, command, make(s), *more))
