#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A program that sends to itself over a device with data-path faults, which rules of the emulator inject."""

import contextlib

from messages import RECEIVED, SENT, Endpoint, send
from selftest import Suite, any_function, equal, wait_until
from uverbs import opened

# Statuses of completions, from rdma-core's efa_io_defs.h.
OK, FLUSHED, ABORT = 0, 1, 8
# States of a queue pair.
RTS, ERROR = 3, 6

main = any_function()
suite = Suite()


def own_gid():
    (name,) = (entry.name for entry in (main.sysfs / "infiniband").iterdir())
    text = (main.sysfs / "infiniband" / name / "ports/1/gids/0").read_text()
    return bytes.fromhex(text.strip().replace(":", ""))


class Program:
    """An endpoint that sends to itself, and its completions."""

    def __init__(self, endpoint):
        self.endpoint, self.gid = endpoint, own_gid()

    def inject(self, work, then, **how_often):
        """Adds a fault rule to the device for this program's queue pair."""
        main.inject({"work": work, "qp": self.endpoint.qp.qpn}, then, **how_often)

    def post(self):
        self.endpoint.post_recv(RECEIVED)
        self.endpoint.post_send(self.gid, self.endpoint.qp.qpn, SENT)

    def completions(self, count):
        """Waits for completions; returns whether each is of a send, and its status."""
        found = []
        while len(found) < count:
            is_send, _, status, _ = wait_until(self.endpoint.poll, f"{count} completions after {found}")
            found.append((is_send, status))
        return found

    def works(self):
        """Fails unless a message arrives, without other completions."""
        send(self.endpoint, self.endpoint, self.gid, 0xEFA)
        equal(self.endpoint.poll(), None, "further completions")


@contextlib.contextmanager
def program():
    with Endpoint(opened(main)) as endpoint:
        try:
            yield Program(endpoint)
        finally:
            main.clear()


@suite.case("the third send completes with another status")
def status():
    with program() as one:
        one.inject("SEND", {"status": "REMOTE_ERROR_ABORT"}, skip=2, times=1)
        for _ in range(2):
            one.post()
            equal(sorted(one.completions(2)), [(False, OK), (True, OK)], "completions of a successful send")
        one.post()
        equal(one.completions(1), [(True, ABORT)], "completions of the third send")
        equal(one.endpoint.qp.query(1)["qp_state"], RTS, "state of the queue pair")
        # The receive work request of the aborted send is still posted.
        one.endpoint.post_send(one.gid, one.endpoint.qp.qpn, SENT)
        equal(sorted(one.completions(2)), [(False, OK), (True, OK)], "completions of the fourth send")
        one.works()


@suite.case("a completion is late, and the next one is not")
def late():
    with program() as one:
        one.inject("SEND", {"hold": "late"}, times=1)
        for _ in range(2):
            one.post()
        equal(sorted(one.completions(3)), [(False, OK), (False, OK), (True, OK)], "completions before the release")
        equal(main.withheld(), {"late": 1}, "withheld completions")
        equal(one.endpoint.poll(), None, "further completions before the release")
        main.release("late")
        equal(one.completions(1), [(True, OK)], "completions after the release")
        one.works()


@suite.case("a queue pair enters error, and its work requests are flushed")
def error():
    with program() as one:
        one.inject("SEND", {"qp_error": True}, times=1)
        one.endpoint.post_recv(RECEIVED)
        one.post()
        equal(sorted(one.completions(3)), [(False, FLUSHED), (False, FLUSHED), (True, FLUSHED)], "completions of flushed work requests")
        equal(one.endpoint.qp.query(1)["qp_state"], ERROR, "state of the queue pair")


suite.run()
