# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Queue pairs: states and attributes."""

import functools
import itertools
import struct

from harness import INPUTS, Cases, attempt
from objects import QPT_DRIVER, QPT_UD, QUERY_QP
from uverbs import Buffer

cases = Cases("modify")
STATES = "RESET INIT RTR RTS SQD SQE ERR".split()
NAMES = (
    "STATE CUR_STATE EN_SQD_ASYNC_NOTIFY ACCESS_FLAGS PKEY_INDEX PORT QKEY AV PATH_MTU TIMEOUT RETRY_CNT RNR_RETRY RQ_PSN MAX_QP_RD_ATOMIC"
    " ALT_PATH MIN_RNR_TIMER SQ_PSN MAX_DEST_RD_ATOMIC PATH_MIG_STATE CAP DEST_QPN BIT21 BIT22 BIT23 BIT24 RATE_LIMIT"
).split()
BITS = {name: 1 << bit for bit, name in enumerate(NAMES)}
KINDS = {"UD": QPT_UD, "SRD": QPT_DRIVER}
VALUES = {"qkey": 0x1234, "sq_psn": 0x77, "rnr_retry": 3, "en_sqd_async_notify": 1}


def mask(names):
    return sum(BITS[name] for name in names.split())


# The transitions to each state that software can request. SQE is absent, as only the device enters it.
STEPS = {
    "RESET": (),
    "INIT": ("INIT",),
    "RTR": ("INIT", "RTR"),
    "RTS": ("INIT", "RTR", "RTS"),
    "SQD": ("INIT", "RTR", "RTS", "SQD"),
    "ERR": ("INIT", "ERR"),
}
NEEDED = {"INIT": "PKEY_INDEX PORT QKEY", "RTS": "SQ_PSN"}


def step(qp, state, names="", **values):
    qp.modify(mask(f"STATE {names}"), STATES.index(state), **{**VALUES, **values})


def in_state(s, state, kind):
    """Creates a queue pair in a state, without showing the commands for that."""
    options = {"pd": s.pd, "send_cq": s.a_cq.handle, "qp_type": KINDS[kind]}

    def make():
        qp = s.qp(**options)
        for one in STEPS[state]:
            step(qp, one, NEEDED.get(one, ""))
        return qp

    return s.prepared("DESTROY_QP", make)


def outcome(qp, action):
    """Returns the result of an action, and the queue pair's state according to a query."""
    result = attempt(action)
    return result, STATES[qp.query()["qp_state"]]


# Transitions between all states: with the required attributes, with none, with one other attribute alone, and with all.

EXTRA = (
    ("needed", None),
    ("nothing", ""),
    *((name, name) for name in ("QKEY", "SQ_PSN", "RNR_RETRY", "EN_SQD_ASYNC_NOTIFY", "PKEY_INDEX", "PORT")),
    ("everything", "PKEY_INDEX PORT QKEY SQ_PSN RNR_RETRY EN_SQD_ASYNC_NOTIFY"),
)


def transitions(s, kind, start, target):
    """Changes to a state with each set of attributes, each time with a new queue pair."""
    s.shows_commands = False
    results = []
    for name, extra in EXTRA:
        qp = in_state(s, start, kind)
        names = NEEDED.get(target, "") if extra is None else extra
        results.append(f"{name}: {' '.join(outcome(qp, lambda qp=qp, names=names: step(qp, target, names)))}")
        qp.destroy()
    return ", ".join(results)


def claimed(s, kind, start, claim):
    """Claims a current state, whichever state the queue pair is in."""
    results = []
    for target in ("INIT", "RTS", "SQD", "ERR"):
        qp = in_state(s, start, kind)
        names = f"CUR_STATE {NEEDED.get(target, '')}"
        action = functools.partial(step, qp, target, names, cur_qp_state=STATES.index(claim))
        results.append(f"to {target}: {' '.join(outcome(qp, action))}")
        qp.destroy()
    s.shows_commands = False
    return ", ".join(results)


def with_one_more(s, kind, start, target, name):
    """Changes to a state with an attribute in addition to the required ones."""
    qp = in_state(s, start, kind)
    return outcome(qp, lambda: step(qp, target, " ".join({*NEEDED.get(target, "").split(), name})))


def stays(s, kind, start, names):
    """Modifies attributes without a new state."""
    qp = in_state(s, start, kind)
    bits = mask("" if names == "nothing" else names)
    return outcome(qp, lambda: qp.modify(bits, cur_qp_state=STATES.index(start), **VALUES))


ALONE = ("nothing", *(name for name, _ in EXTRA[2:-1]), "CUR_STATE", "PKEY_INDEX PORT QKEY")
FORWARD = (("RESET", "INIT"), ("INIT", "RTR"), ("RTR", "RTS"), ("RTS", "SQD"))
cases.each("{} {} to {}", itertools.product(KINDS, STEPS, STATES), transitions)
cases.each("{} {} claims {}", itertools.product(KINDS, STEPS, STATES), claimed)
cases.each("{} {} to {} with {}", [(kind, *both, name) for kind in KINDS for both in FORWARD for name in NAMES[1:]], with_one_more)
cases.each("{} stays {} with {}", itertools.product(KINDS, STEPS, ALONE), stays)

# Values.

TO_INIT, TO_RTS, WITH_RETRY = ("RESET", "INIT", NEEDED["INIT"]), ("RTR", "RTS", "SQ_PSN"), ("RTR", "RTS", "SQ_PSN RNR_RETRY")
TO_SQD = "RTS", "SQD", "EN_SQD_ASYNC_NOTIFY"
CHOSEN = (
    *((f"port {port}", TO_INIT, {"port_num": port}) for port in (0, 2, 255)),
    *((f"partition {index}", TO_INIT, {"pkey_index": index}) for index in (1, 65535)),
    ("key 0", TO_INIT, {"qkey": 0}),
    *((f"key {key:#x}", TO_INIT, {"qkey": key}) for key in (0x8000_0000, 0xFFFF_FFFF)),
    ("number 0", TO_RTS, {"sq_psn": 0}),
    *((f"number {number:#x}", TO_RTS, {"sq_psn": number}) for number in (0xFF_FFFF, 0x100_0000, 0xFFFF_FFFF)),
    ("no retry", WITH_RETRY, {"rnr_retry": 0}),
    *((f"{count} retries", WITH_RETRY, {"rnr_retry": count}) for count in (7, 8, 255)),
    ("no notification", TO_SQD, {"en_sqd_async_notify": 0}),
    ("a notification by 255", TO_SQD, {"en_sqd_async_notify": 255}),
    ("values that the mask does not name", TO_INIT, {"sq_psn": 0xFFFF_FFFF, "rnr_retry": 255}),
)


def chosen(s, kind, way, values):
    state, target, bits = way
    qp = in_state(s, state, kind)
    result = outcome(qp, lambda: step(qp, target, bits, **values))
    asked = qp.query()
    return result, f"qkey={asked['qkey']:#x}", f"sq_psn={asked['sq_psn']:#x}", f"rnr_retry={asked['rnr_retry']}"


for kind in KINDS:
    cases.each(kind + ": {}", CHOSEN, lambda s, _, way, values, kind=kind: chosen(s, kind, way, values))
cases.each("state {}", (7, 8, 255), lambda s, value: s.a_qp.modify(mask("STATE"), value))
cases.each("claimed state {}", (7, 8, 255), lambda s, value: s.a_qp.modify(mask("STATE CUR_STATE"), 6, cur_qp_state=value))
for device in ("efa0", "efa2", "efa4"):
    cases.add(f"{device}: retries", lambda s: outcome(qp := in_state(s, "RTR", "SRD"), lambda: step(qp, "RTS", "SQ_PSN RNR_RETRY")), device)
cases.each("mask {:#x}", (1 << 26, 1 << 31, 0xFFFF_FFFF, 0x1F_FFFF), lambda s, bits: s.a_qp.modify(bits, 1, qkey=5))
cases.each("input for the driver: {}", INPUTS[:3], lambda s, _, data: step(s.a_qp, "INIT", NEEDED["INIT"], driver_data=data))
cases.each(
    "EX_MODIFY_QP, input for the driver: {}",
    INPUTS[:3],
    lambda s, _, data: s.a_qp.modify(mask("STATE PKEY_INDEX PORT QKEY"), 1, driver_data=data, rate_limit=0),
)
HANDLES = (0, 77, 0xFFFF_FFFF)
cases.each(
    "handle {:#x}", HANDLES, lambda s, handle: s.context and s.a_qp.modify(1, 1, handle=handle + 1 if handle == s.a_qp.handle else handle)
)


@cases.case("destroyed")
def destroyed(s):
    s.a_qp.destroy()
    return attempt(step, s.a_qp, "INIT", NEEDED["INIT"]), attempt(s.a_qp.query)


@cases.case("of another context")
def other(s):
    s.a_qp.context = s.open()
    return attempt(step, s.a_qp, "INIT", NEEDED["INIT"]), attempt(s.a_qp.query)


cases.add("EX_MODIFY_QP", lambda s: s.a_qp.modify(mask("STATE PKEY_INDEX PORT QKEY"), 1, rate_limit=0))
cases.add("EX_MODIFY_QP with a rate limit", lambda s: s.a_qp.modify(mask("STATE PKEY_INDEX PORT QKEY RATE_LIMIT"), 1, rate_limit=5))
cases.add("EX_MODIFY_QP with an unused rate limit", lambda s: s.a_qp.modify(mask("STATE PKEY_INDEX PORT QKEY"), 1, rate_limit=5))


@cases.case("the whole way round")
def around(s):
    qp = s.a_qp
    return [
        " ".join(outcome(qp, lambda state=state: step(qp, state, NEEDED.get(state, ""))))
        for state in ("INIT", "RTR", "RTS", "SQD", "RTS", "ERR", "RESET", "INIT", "ERR", "INIT", "RESET")
    ]


# Queries.

cases = Cases("query_qp")


def text_of(values):
    return ", ".join(f"{name}={value}" for name, value in values.items() if value)


cases.each("{} {}", itertools.product(KINDS, STEPS), lambda s, kind, state: text_of(in_state(s, state, kind).query(0x1F_FFFF & 0x90871)))
cases.each("mask {}", NAMES, lambda s, name: text_of(s.a_qp.query(BITS[name])))
cases.add("mask 0xffffffff", lambda s: text_of(s.a_qp.query(0xFFFF_FFFF)))
cases.add("mask 0x1fffff", lambda s: text_of(s.a_qp.query(0x1F_FFFF)))
cases.add(
    "capacity",
    lambda s: text_of(s.qp(max_send_wr=8, sq_ring_size=512, max_recv_wr=4, max_recv_sge=2, max_inline_data=9, sq_sig_all=1).query()),
)
cases.each("input for the driver: {}", INPUTS[:2], lambda s, _, data: text_of(s.a_qp.query(driver_data=data)))
cases.each("response of {} bytes", (128, 132, 160), lambda s, size: text_of(s.a_qp.query(out_size=size)))
cases.each("response of {} bytes", (64, 124), lambda s, size: s.context.command(QUERY_QP, struct.pack("<II", s.a_qp.handle, 0), size))
cases.each("response to nowhere after {} bytes", (0, 8, 127), lambda s, accessible: s.a_qp.query(buffer=Buffer(128, accessible=accessible)))
cases.each("handle {:#x}", HANDLES, lambda s, handle: s.context.command(QUERY_QP, struct.pack("<II", handle, 0), 128) and None)
