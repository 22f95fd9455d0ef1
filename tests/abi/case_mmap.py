# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Mappings of rings, doorbells and LLQs into a process."""

import ctypes
import mmap
import os
import resource
import signal

from harness import ONCE, Cases, attempt
from memory import EXEC, PAGE, READ, WRITE, Area, Mapped, libc, map_memory
from objects import CQ_WITH_COMPLETION_CHANNEL
from processes import ends, fork
from selftest import errno_name

cases = Cases("mmap")
SHARED, PRIVATE, SHARED_VALIDATE, POPULATE, LOCKED = 1, 2, 3, 0x8000, 0x2000
LLQ = 2 * PAGE
RX_RING = 2 * PAGE


KINDS = ("cq ring", "cq doorbell", "sq doorbell", "llq", "rq doorbell", "rq ring")


def made(s, kind):
    """Creates a completion queue and a queue pair; also returns the key and length of a mapping of one of them."""
    s.shows_commands = False
    cq = s.cq(cqe=2 * PAGE // 32, flags=CQ_WITH_COMPLETION_CHANNEL)
    qp = s.qp(send_cq=s.a_cq.handle, max_send_wr=LLQ // 64, sq_ring_size=LLQ, rq_ring_size=RX_RING)
    places = (
        (cq.response.q_mmap_key, cq.response.q_mmap_size),
        (cq.response.db_mmap_key, PAGE),
        (qp.response.sq_db_mmap_key, PAGE),
        (qp.response.llq_desc_mmap_key, LLQ),
        (qp.response.rq_db_mmap_key, PAGE),
        (qp.response.rq_mmap_key, qp.response.rq_mmap_size),
    )
    return cq, qp, *places[KINDS.index(kind)]


def place(s, kind):
    return made(s, kind)[2:]


def mapped(s, key, length, prot=READ | WRITE, flags=SHARED, context=None):
    return s.area(Area, length, prot=prot, flags=flags, fd=(context or s.context).fd, offset=key)


def each(name, rows, function):
    """Adds a case of each row for each kind of mapping: its result is whether `function` succeeds for the key and length."""
    for kind in KINDS:
        cases.each(f"{kind}: {name}", rows, lambda s, *values, kind=kind: attempt(lambda: function(s, *place(s, kind), *values) and None))


PROTECTIONS = (
    ("nothing", 0),
    ("reading", READ),
    ("writing", WRITE),
    ("both", READ | WRITE),
    ("executing", EXEC),
    ("reading and executing", READ | EXEC),
    ("all", READ | WRITE | EXEC),
)
FLAGS = (
    ("private", PRIVATE),
    ("validated", SHARED_VALIDATE),
    ("populated", SHARED | POPULATE),
    ("locked", SHARED | LOCKED),
    ("anonymous", SHARED | mmap.MAP_ANONYMOUS),
    ("neither shared nor private", 0),
    ("with huge pages", SHARED | 0x40000),
    ("no reserve", SHARED | 0x4000),
)
CHANGES = (
    ("a page less", lambda key, length: (key, length - PAGE)),
    ("a page more", lambda key, length: (key, length + PAGE)),
    ("a byte less", lambda key, length: (key, length - 1)),
    ("a byte more", lambda key, length: (key, length + 1)),
    ("half", lambda key, length: (key, length // 2)),
    ("a byte", lambda key, length: (key, 1)),
    ("nothing at all", lambda key, length: (key, 0)),
    ("from its second page on", lambda key, length: (key + PAGE, length - PAGE)),
    ("1 GiB", lambda key, length: (key, 1 << 30)),
    ("at an offset in a page", lambda key, length: (key + 8, length)),
)
each("for {}", PROTECTIONS, lambda s, key, length, _, prot: mapped(s, key, length, prot))
each("{}", FLAGS, lambda s, key, length, _, flags: mapped(s, key, length, flags=flags))
each("{}", CHANGES, lambda s, key, length, _, change: mapped(s, *change(key, length)))
each("twice", ONCE, lambda s, key, length: mapped(s, key, length) and mapped(s, key, length))
each("of another context", ONCE, lambda s, key, length: mapped(s, key, length, context=s.open()))
each("without a context", ONCE, lambda s, key, length: mapped(s, key, length, context=s.raw()))


def protect(s, kind):
    key, length = place(s, kind)
    results = []
    for before in (READ, WRITE, READ | WRITE):
        area = mapped(s, key, length, before)
        for after in (0, READ, WRITE, READ | WRITE, READ | EXEC):
            failed = libc.mprotect(ctypes.c_void_p(area.address), ctypes.c_size_t(length), after)
            results.append(errno_name(ctypes.get_errno()) if failed else "ok")
    return results


def moved(s, kind):
    key, length = place(s, kind)
    results = []
    for old, new in ((length, length + PAGE), (length, length), (length, max(length - PAGE, PAGE)), (0, length)):
        area = mapped(s, key, length)
        libc.mremap.restype = ctypes.c_void_p
        got = libc.mremap(ctypes.c_void_p(area.address), ctypes.c_size_t(old), ctypes.c_size_t(new), 1)
        results.append(errno_name(ctypes.get_errno()) if got == ctypes.c_void_p(-1).value else "ok")
        if results[-1] == "ok" and old == 0:
            # With an old size of 0, mremap() has created a second mapping.
            s.area(Mapped, got, new)
        elif results[-1] == "ok":
            area.address, area.length = got, new
    return results


def outlives(s, kind):
    cq, qp, key, length = made(s, kind)
    area = mapped(s, key, length)
    cq.destroy()
    qp.destroy()
    # Existing mappings stay writable until they are unmapped.
    return attempt(lambda: mapped(s, key, length) and None), touched(area)


def outlives_context(s, kind):
    area = mapped(s, *place(s, kind))
    before = touched(area)
    s.context.close()
    return before, touched(area)


def inherited(s, kind):
    key, length = place(s, kind)
    return touched(mapped(s, key, length)), touched(mapped(s, key, length, WRITE))


cases.each("{}: changed afterwards", KINDS, protect)
cases.each("{}: a part unmapped, moved, extended", KINDS, moved)
cases.each("{}: kept over the destruction of its object", KINDS, outlives)
cases.each("{}: kept over the end of its context", KINDS, outlives_context)
cases.each("{}: inherited by a child", KINDS, inherited)


def touched(area):
    """Writes to the memory in a child process; returns how the child ended."""

    def touch():
        for number in (signal.SIGSEGV, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # An offset without a doorbell.
        ctypes.memset(area.address + PAGE - 8, 0, 1)

    return ends([fork(touch)]).removeprefix("1 ")


KEYS = (0, 1, 2, 77, 0xFFFF_FFFF, 0x1_0000_0000, (1 << 63) // PAGE - 1)
cases.each("unused key {:#x}", KEYS, lambda s, page: mapped(s, page * PAGE, PAGE) and None)
cases.each("without a context, key {:#x}", KEYS, lambda s, page: mapped(s, page * PAGE, PAGE, context=s.raw()) and None)


def is_zero(s, key, size):
    return size, ctypes.string_at(mapped(s, key, size, READ).address, size) == bytes(size)


cases.add("a completion queue's ring is zero", lambda s: is_zero(s, *s.cq(cqe=2 * PAGE // 32).response[1:3]))
cases.add("a receive queue's ring is zero", lambda s: is_zero(s, *s.qp(rq_ring_size=RX_RING).response[4:6]))


@cases.case("two mappings show the same")
def same(s):
    ring = s.qp(rq_ring_size=RX_RING).response
    first, second = (mapped(s, ring.rq_mmap_key, ring.rq_mmap_size) for _ in range(2))
    ctypes.memset(first.address + PAGE - 1, 7, 2)
    return ctypes.string_at(second.address + PAGE - 2, 4)


@cases.case("keys of objects that are created and destroyed")
def keys(s):
    s.shows_commands = False
    found = []
    for _ in range(3):
        cqs = [s.cq().response.q_mmap_key // PAGE for _ in range(2)]
        qp = s.qp()
        found += [*cqs, *(key // PAGE for key in (qp.response.sq_db_mmap_key, qp.response.rq_mmap_key))]
        qp.destroy()
    return found


@cases.case("at an address in use")
def fixed(s):
    ring = s.cq().response
    area = s.area(Area, PAGE)
    return map_memory(PAGE, READ, SHARED, s.context.fd, ring.q_mmap_key, area.address) == area.address


@cases.case("unmapped in a fork's child")
def unmapped_in_child(s):
    ring = s.cq().response
    area = mapped(s, ring.q_mmap_key, PAGE)
    ended = ends([fork(lambda: libc.munmap(area.address, PAGE) and os._exit(1))])
    return int(ended != "1 exit-0"), ctypes.string_at(area.address, 4)


cases.add("by read", lambda s: os.read(s.context.fd, 1))
cases.add("by pread", lambda s: os.pread(s.context.fd, 1, 0))
