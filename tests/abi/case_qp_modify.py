# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Queue pairs: states and attributes."""

import functools
import struct

from harness import Cases, attempt, show
from objects import QPT_DRIVER, QPT_UD, QUERY_QP
from uverbs import Buffer

cases = Cases("modify")
STATES = "RESET INIT RTR RTS SQD SQE ERR".split()
BITS = dict(
    zip(
        "STATE CUR_STATE EN_SQD_ASYNC_NOTIFY ACCESS_FLAGS PKEY_INDEX PORT QKEY AV PATH_MTU TIMEOUT RETRY_CNT RNR_RETRY RQ_PSN"
        " MAX_QP_RD_ATOMIC ALT_PATH MIN_RNR_TIMER SQ_PSN MAX_DEST_RD_ATOMIC PATH_MIG_STATE CAP DEST_QPN BIT21 BIT22 BIT23 BIT24"
        " RATE_LIMIT".split(),
        (1 << bit for bit in range(26)),
        strict=True,
    )
)
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


def matrix(kind, start):
    """Adds a case for each target of transitions from one state. Each transition has a new queue pair in that state."""
    for target in STATES:

        def run(s, target=target):
            s.shows_commands = False
            results = []
            for name, extra in EXTRA:
                qp = in_state(s, start, kind)
                names = NEEDED.get(target, "") if extra is None else extra
                results.append(f"{name}: {' '.join(outcome(qp, lambda qp=qp, names=names: step(qp, target, names)))}")
                qp.destroy()
            return ", ".join(results)

        cases.add(f"{kind} {start} to {target}", run)


def claimed(kind, claim):
    """Adds transitions that claim a current state, whichever state the queue pair is in."""
    for start in STEPS:

        def run(s, start=start):
            results = []
            for target in ("INIT", "RTS", "SQD", "ERR"):
                qp = in_state(s, start, kind)
                names = f"CUR_STATE {NEEDED.get(target, '')}"
                action = functools.partial(step, qp, target, names, cur_qp_state=STATES.index(claim))
                results.append(f"to {target}: {' '.join(outcome(qp, action))}")
                qp.destroy()
            s.shows_commands = False
            return ", ".join(results)

        cases.add(f"{kind} {start} claims {claim}", run)


def masks(kind, start, target):
    """Adds a transition with each attribute in addition to the required ones."""
    for name in BITS:
        if name == "STATE":
            continue

        def run(s, name=name):
            qp = in_state(s, start, kind)
            return outcome(qp, lambda: step(qp, target, " ".join({*NEEDED.get(target, "").split(), name})))

        cases.add(f"{kind} {start} to {target} with {name}", run)


def stays(kind, start):
    """Adds modifications without a new state."""
    for names in ("", *(name for name, _ in EXTRA[2:-1]), "CUR_STATE", "PKEY_INDEX PORT QKEY"):

        def run(s, names=names):
            qp = in_state(s, start, kind)
            return outcome(qp, lambda: qp.modify(mask(names), cur_qp_state=STATES.index(start), **VALUES))

        cases.add(f"{kind} stays {start} with {names or 'nothing'}", run)


for kind in KINDS:
    for state in STEPS:
        matrix(kind, state)
    for claim in STATES:
        claimed(kind, claim)
    for start, target in (("RESET", "INIT"), ("INIT", "RTR"), ("RTR", "RTS"), ("RTS", "SQD")):
        masks(kind, start, target)
    for state in STEPS:
        stays(kind, state)

# Values.

for name, state, target, bits, values in (
    ("port 0", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"port_num": 0}),
    ("port 2", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"port_num": 2}),
    ("port 255", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"port_num": 255}),
    ("partition 1", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"pkey_index": 1}),
    ("partition 65535", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"pkey_index": 65535}),
    ("key 0", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"qkey": 0}),
    ("key 0x80000000", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"qkey": 0x8000_0000}),
    ("key 0xffffffff", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"qkey": 0xFFFF_FFFF}),
    ("number 0", "RTR", "RTS", "SQ_PSN", {"sq_psn": 0}),
    ("number 0xffffff", "RTR", "RTS", "SQ_PSN", {"sq_psn": 0xFF_FFFF}),
    ("number 0x1000000", "RTR", "RTS", "SQ_PSN", {"sq_psn": 0x100_0000}),
    ("number 0xffffffff", "RTR", "RTS", "SQ_PSN", {"sq_psn": 0xFFFF_FFFF}),
    ("no retry", "RTR", "RTS", "SQ_PSN RNR_RETRY", {"rnr_retry": 0}),
    ("7 retries", "RTR", "RTS", "SQ_PSN RNR_RETRY", {"rnr_retry": 7}),
    ("8 retries", "RTR", "RTS", "SQ_PSN RNR_RETRY", {"rnr_retry": 8}),
    ("255 retries", "RTR", "RTS", "SQ_PSN RNR_RETRY", {"rnr_retry": 255}),
    ("no notification", "RTS", "SQD", "EN_SQD_ASYNC_NOTIFY", {"en_sqd_async_notify": 0}),
    ("a notification by 255", "RTS", "SQD", "EN_SQD_ASYNC_NOTIFY", {"en_sqd_async_notify": 255}),
    ("values that the mask does not name", "RESET", "INIT", "PKEY_INDEX PORT QKEY", {"sq_psn": 0xFFFF_FFFF, "rnr_retry": 255}),
):
    for kind in KINDS:

        def run(s, kind=kind, state=state, target=target, bits=bits, values=values):
            qp = in_state(s, state, kind)
            result = outcome(qp, lambda: step(qp, target, bits, **values))
            asked = qp.query()
            return result, f"qkey={asked['qkey']:#x}", f"sq_psn={asked['sq_psn']:#x}", f"rnr_retry={asked['rnr_retry']}"

        cases.add(f"{kind}: {name}", run)
for value in (7, 8, 255):
    cases.add(f"state {value}", lambda s, value=value: s.a_qp.modify(mask("STATE"), value))
    cases.add(f"claimed state {value}", lambda s, value=value: s.a_qp.modify(mask("STATE CUR_STATE"), 6, cur_qp_state=value))
for device in ("efa0", "efa2", "efa4"):
    cases.add(
        f"{device}: retries",
        lambda s: outcome(qp := in_state(s, "RTR", "SRD"), lambda: step(qp, "RTS", "SQ_PSN RNR_RETRY")),
        device,
    )
for attributes in (1 << 26, 1 << 31, 0xFFFF_FFFF, 0x1F_FFFF):
    cases.add(f"mask {attributes:#x}", lambda s, attributes=attributes: s.a_qp.modify(attributes, 1, qkey=5))
for name, data in (("zeros", bytes(8)), ("a bit", b"\1" + bytes(7)), ("a late bit", bytes(63) + b"\x80")):
    cases.add(f"input for the driver: {name}", lambda s, data=data: step(s.a_qp, "INIT", NEEDED["INIT"], driver_data=data))
    cases.add(
        f"EX_MODIFY_QP, input for the driver: {name}",
        lambda s, data=data: s.a_qp.modify(mask("STATE PKEY_INDEX PORT QKEY"), 1, driver_data=data, rate_limit=0),
    )
for handle in (0, 77, 0xFFFF_FFFF):
    cases.add(
        f"handle {handle:#x}",
        lambda s, handle=handle: s.context and s.a_qp.modify(1, 1, handle=handle + 1 if handle == s.a_qp.handle else handle),
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


for kind in KINDS:
    for state in STEPS:
        cases.add(f"{kind} {state}", lambda s, kind=kind, state=state: text_of(in_state(s, state, kind).query(0x1F_FFFF & 0x90871)))
for name, bit in BITS.items():
    cases.add(f"mask {name}", lambda s, bit=bit: text_of(s.a_qp.query(bit)))
cases.add("mask 0xffffffff", lambda s: text_of(s.a_qp.query(0xFFFF_FFFF)))
cases.add("mask 0x1fffff", lambda s: text_of(s.a_qp.query(0x1F_FFFF)))
cases.add(
    "capacity",
    lambda s: text_of(s.qp(max_send_wr=8, sq_ring_size=512, max_recv_wr=4, max_recv_sge=2, max_inline_data=9, sq_sig_all=1).query()),
)
for name, data in (("zeros", bytes(8)), ("a bit", b"\1" + bytes(7))):
    cases.add(f"input for the driver: {name}", lambda s, data=data: text_of(s.a_qp.query(driver_data=data)))
for size in (64, 124, 128, 132, 160):
    cases.add(
        f"response of {size} bytes",
        lambda s, size=size: show(text_of(s.a_qp.query(out_size=max(size, 127))) if size > 127 else query_short(s, size)),
    )


def query_short(s, size):
    return s.context.command(QUERY_QP, struct.pack("<II", s.a_qp.handle, 0), size)


for accessible in (0, 8, 127):
    cases.add(
        f"response to nowhere after {accessible} bytes",
        lambda s, accessible=accessible: s.a_qp.query(buffer=Buffer(128, accessible=accessible)),
    )
for handle in (0, 77, 0xFFFF_FFFF):
    cases.add(f"handle {handle:#x}", lambda s, handle=handle: s.context.command(QUERY_QP, struct.pack("<II", handle, 0), 128) and None)
