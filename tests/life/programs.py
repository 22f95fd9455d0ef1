# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Programs that use a device while it fails or is removed: each class is one process of the tests, see workers.py."""

import mmap
import os
import select
import struct
import threading
import time
from typing import Any

import uverbs
from crowd import Crowd
from messages import Endpoint, send
from modules import load_module, remove_module
from namespaces import tried
from objects import CompletionQueue, Mapping, MemoryRegion
from selftest import Failed, errno_name, result_of, wait_until

# element, event_type
ASYNC_EVENT = struct.Struct("<QI4x")

# Number of processes with objects, maximum number of objects of each at a time, and size of its largest memory region.
MEMBERS, MEMBER_AT_ONCE, MEMBER_REGION = 64, 6, 64 << 10
# Maximum seconds that each of them sleeps between two calls.
LONGEST_NAP = 2.0

# Expected results of a program after its device has failed or was removed.
AFTERMATH = {
    "asynchronous events": "DEVICE_FATAL",
    "completion channel": "EIO",
    "calls": "EIO",
    "destroy calls": "ok",
    "mappings of BARs": "can be read and written",
    "memory of queues": "as it was",
}


class Wait(threading.Thread):
    """Waits for one event of a file descriptor, or for the end of events. Some threads wait in a read, others poll first."""

    def __init__(self, fd, size, polls=False):
        super().__init__(daemon=True)
        self.fd, self.size, self.polls = fd, size, polls
        self.found = None
        self.ended = threading.Event()
        self.start()

    def run(self):
        try:
            if self.polls:
                poll = select.poll()
                poll.register(self.fd, select.POLLIN)
                poll.poll()
            self.found = os.read(self.fd, self.size)
        except OSError as error:
            self.found = errno_name(error.errno)
        self.ended.set()


class Attached:
    """A program that has a device open, with one of each object, everything mapped, and threads that wait for events."""

    def __init__(self, function, gid):
        self.function, self.gid = function, gid
        self.endpoint: Any = None

    def attach(self, seed, listens=True):
        """Opens the device. Every other time, its threads poll for events, and otherwise wait in a read. Without LISTENS, it has none."""
        context = uverbs.opened(self.function)
        self.endpoint = Endpoint(context, events=True)
        # Fills some entries of the rings.
        send(self.endpoint, self.endpoint, self.gid, seed)
        self.rings = [self.endpoint.cq_ring.memory, self.endpoint.rq_ring.memory]
        self.before = [bytes(ring) for ring in self.rings]
        if listens:
            self.events = Wait(context.async_fd, ASYNC_EVENT.size, polls=bool(seed & 1))
            self.completions = Wait(self.endpoint.channel.fd, 8, polls=bool(seed & 1))

    def await_event(self):
        """Waits for the event of the device's failure."""
        wait_until(self.events.ended.is_set, "programs get their event")

    def was_notified(self):
        """Whether an event is pending, for a program that does not listen."""
        return bool(select.select([self.endpoint.context.async_fd], [], [], 0)[0])

    def command(self):
        """Sends a command; returns its result."""
        return result_of(self.endpoint.context.alloc_pd)

    def aftermath(self):
        """Returns the program's current results, by the keys of AFTERMATH."""
        # Unlike an event, the end of events may be reported a little later.
        wait_until(self.completions.ended.is_set, "the end of the wait for completions")
        return {
            "asynchronous events": self.outcome(self.events),
            "completion channel": self.outcome(self.completions),
            "calls": self.results_of(self.calls()),
            "destroy calls": self.results_of(self.destroy_calls()),
            "mappings of BARs": self.use_mappings(),
            "memory of queues": self.look_at_rings(),
        }

    @staticmethod
    def outcome(wait):
        """Returns the result of a read, as text."""
        if not wait.ended.is_set():
            return "still waits"
        if not isinstance(wait.found, bytes):
            return wait.found
        if len(wait.found) != ASYNC_EVENT.size:
            return "a completion"
        _, number = ASYNC_EVENT.unpack(wait.found)
        return "DEVICE_FATAL" if number == uverbs.EVENT_DEVICE_FATAL else f"event {number}"

    def results_of(self, calls):
        """Returns the result of all calls if they have the same one, otherwise each result with the names of its calls."""
        results = {}
        for name, call in calls:
            results.setdefault(result_of(call), []).append(name)
        if len(results) == 1:
            return next(iter(results))
        return "; ".join(f"{result}: {', '.join(names)}" for result, names in sorted(results.items()))

    def calls(self):
        """Yields calls by each interface of the kernel, and for each kind of object."""
        end = self.endpoint
        context = end.context
        yield "query_device", context.query_device
        yield "query_port", lambda: context.query_port(1)
        yield "alloc_pd", context.alloc_pd
        yield "create_cq", lambda: CompletionQueue(context)
        yield "reg_mr", lambda: MemoryRegion(context, end.pd, end.memory.address, mmap.PAGESIZE)
        yield "modify_qp", lambda: end.qp.modify(1, 6)
        yield "query_qp", lambda: end.qp.query(1)
        yield "query_mr", end.region.query
        yield "mmap", lambda: Mapping(context, end.cq.response.q_mmap_key, end.cq.response.q_mmap_size)

    def destroy_calls(self):
        end = self.endpoint
        yield "destroy_qp", end.qp.destroy
        yield "destroy_cq", end.cq.destroy_by_write
        yield "dereg_mr", end.region.dereg

    def use_mappings(self):
        """Writes to all mappings of BARs, and reads doorbells. On SIGBUS, this process dies, which fails the test."""
        for doorbell in self.endpoint.doorbells:
            doorbell.ring(1)
            doorbell.read()
        memory = self.endpoint.send_queue.memory
        memory[:] = bytes(len(memory))
        return AFTERMATH["mappings of BARs"]

    def look_at_rings(self):
        """Checks that the rings are unchanged, and can be written."""
        changed = []
        for name, ring, before in zip(("completion queue", "receive queue"), self.rings, self.before, strict=True):
            if bytes(ring) != before:
                changed.append(f"{name} has changed")
            ring[:] = before[::-1]
            if bytes(ring) != before[::-1]:
                changed.append(f"{name} does not keep what is written")
        return ", ".join(changed) or AFTERMATH["memory of queues"]

    def works(self, seed):
        """Sends a message to itself, which shows that the device works and has the objects. Fails if there was an event."""
        send(self.endpoint, self.endpoint, self.gid, seed)
        if self.events.ended.is_set():
            raise Failed(f"it got {self.outcome(self.events)}")
        self.before = [bytes(ring) for ring in self.rings]

    def detach(self):
        """Closes the device."""
        if self.endpoint:
            self.endpoint.close()
        self.endpoint = None


class Member:
    """One of many processes that create and destroy objects continuously."""

    def __init__(self, function, seed, begun):
        """BEGUN is an eventfd that counts the processes that have begun."""
        self.function, self.seed, self.begun = function, seed, begun

    def open(self):
        self.crowd = Crowd(self.function, self.seed, MEMBER_AT_ONCE, MEMBER_REGION)

    def run(self):
        """Makes calls until one fails; returns its error, and the result of the next one."""
        has_begun = False
        while True:
            try:
                self.crowd.step()
            except OSError as error:
                return errno_name(error.errno), result_of(self.crowd.context.alloc_pd)
            if not has_begun:
                os.eventfd_write(self.begun, 1)
                has_begun = True
            time.sleep(self.crowd.random.uniform(0, LONGEST_NAP))

    def close(self):
        self.crowd.close()


class Hands:
    """Makes calls that may take long, or for ever, in the kernel, and returns their results."""

    def write(self, path, text):
        """Writes to a file of sysfs."""
        fd = os.open(path, os.O_WRONLY)
        try:
            return result_of(os.write, fd, text.encode())
        finally:
            os.close(fd)

    def remove_module(self):
        return result_of(remove_module)

    def load_module(self):
        return result_of(load_module)

    def run(self, command):
        return tried(*command) or "ok"

    def open(self, function):
        """Opens a device, for `command`."""
        self.context = uverbs.opened(function)

    def command(self):
        """Sends a command."""
        return result_of(self.context.alloc_pd)

    def close(self):
        self.context.close()
