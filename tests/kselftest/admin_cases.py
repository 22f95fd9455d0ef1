# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Common code of admin_queue.py and effects.py: a device that is rebound for each test case, and many processes that use it."""

import os

from selftest import Skipped, any_function, equal, function_with
from uverbs import opened

ANY = {"opcode": "ANY"}


class Bench:
    """The device of a test case, bound with `attributes`."""

    def __init__(self, **attributes):
        self.attributes = {"keep_alive_ms": 0, **attributes}
        self.device = any_function()
        # A device with the newer format of commands, which has checksums.
        self.newest = function_with("profile=efa4")

    def before(self):
        """Each test case starts with a new queue."""
        self.device.clear()
        self.device.set(**self.attributes)
        self.device.rebind()
        self.start = self.device.state()["admin"]

    def after(self):
        self.device.clear()

    def run(self, suite):
        """Runs the test cases, and restores the devices."""
        try:
            suite.run(self.before, self.after)
        finally:
            for device in filter(None, (self.device, self.newest)):
                device.clear()
                device.rebind()

    def on_newest(self, run):
        """Returns a test case that runs `run` on the device of the newest generation."""

        def case():
            if not self.newest:
                raise Skipped("there is no such device")
            first, self.device = self.device, self.newest
            try:
                self.before()
                return run()
            finally:
                self.device.clear()
                self.device = first

        return case

    def new(self, kind):
        """Returns the number of commands `submitted` or `completed` since the test case began."""
        return self.device.state()["admin"][kind] - self.start[kind]

    def nothing_lost(self):
        """Fails if a command is still in flight or was not completed, or if the driver violated the protocol."""
        equal(self.device.state()["admin"]["in_flight"], 0, "commands in flight")
        equal(self.new("completed"), self.new("submitted"), "completed commands")
        equal(self.device.protocol_errors(), 0, "protocol errors")
        equal(self.device.counter("no_completion_cmds"), 0, "no_completion_cmds")
        equal(self.device.held(), {}, "objects left in the device")

    def run_at_once(self, work, count, disturb=None, meanwhile=None):
        """Runs processes that open the device and then use it, all at the same time; fails if a process fails.

        `disturb` is called after all have opened it, and `meanwhile` while they use it.
        """
        ready, prepared = os.pipe()
        gate, opener = os.pipe()
        processes = [self.start_process(work, prepared, gate, opener) for _ in range(count)]
        os.close(gate)
        os.close(prepared)
        try:
            try:
                # A process that fails closes its end of the pipe.
                while count and os.read(ready, 1):
                    count -= 1
                if disturb:
                    disturb()
            finally:
                os.close(opener)
                os.close(ready)
            if meanwhile:
                meanwhile()
        except BaseException:
            # No task must wait for a withheld completion.
            self.device.clear()
            raise
        finally:
            failed = sum(os.waitpid(process, 0)[1] != 0 for process in processes)
        equal(failed, 0, "processes that failed")

    def start_process(self, work, prepared, gate, opener):
        process = os.fork()
        if process:
            return process
        os.close(opener)
        try:
            context = opened(self.device)
            os.write(prepared, b".")
            os.close(prepared)
            os.read(gate, 1)
            work(context)
        except BaseException as error:
            print(f"# {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)


def use(context):
    """Work of a process: queries and allocations."""
    context.query_device()
    for _ in range(4):
        handle, _ = context.alloc_pd()
        context.dealloc_pd(handle)
    context.close()
