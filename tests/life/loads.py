# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Loads on a device while it fails or is removed. Each round starts and ends its load."""

import contextlib
import itertools
import os
import signal
import subprocess
from typing import Any, ClassVar

from programs import MEMBERS, Member
from selftest import Failed, emulator, output_of, wait_until
from workers import Worker

# Bytes on the network after which data is certainly moving.
MOVING = 1 << 16


class Load:
    """No load besides the tests' own programs."""

    name = "idle"

    def __init__(self, stage):
        self.stage = stage

    def start(self, number):
        """Is called before each round."""

    def finish(self):
        """Is called after programs got their event; fails if something was wrong."""

    def end(self):
        """Is called after the last round, also if that failed."""


class Pair(Load):
    """Two third-party programs that send data to each other, one on each device. They do not read asynchronous events. The test
    is that they neither die of a signal nor block anything."""

    ports = itertools.count(20000)
    environment: ClassVar = {}
    # The emulator's counter of bytes that such a program sends.
    counter: ClassVar[str | None] = None

    def __init__(self, stage):
        super().__init__(stage)
        self.processes = []

    def commands(self, port, devices):
        """Yields the server's and the client's command."""
        raise NotImplementedError

    def start(self, number):
        # The client, which sends more, uses the devices in turn.
        devices = [self.stage.victim, self.stage.peer]
        if number % 2 == 0:
            devices.reverse()
        port = next(self.ports)
        before = self.moved()
        for command in self.commands(port, devices):
            self.processes.append(self.run(command))
            if len(self.processes) == 1:
                self.wait(lambda: output_of("ss", "-Hltn", f"sport = :{port}"), "listens")
        self.wait(lambda: self.moved() > before + MOVING, "moves data")

    def run(self, command):
        output = open(f"/tmp/{self.name}.{len(self.processes)}", "w+")
        environment = {**os.environ, **self.environment}
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process: Any = subprocess.Popen(command, env=environment, cwd="/tmp", **streams)
        process.output = output
        return process

    def moved(self):
        """Returns the number of bytes that all devices have sent, by this kind of operation."""
        return sum(device[self.counter] for device in emulator.send({"command": "counters"})["devices"])

    def wait(self, condition, what):
        """Waits for a condition that the programs bring about; fails if one ends before."""

        def checked():
            if any(process.poll() is not None for process in self.processes):
                raise Failed(f"{self.name}: a program has ended before it {what}")
            return condition()

        try:
            wait_until(checked, f"{self.name} {what}")
        except Failed as failure:
            raise Failed(f"{failure}\n{self.account()}") from failure

    def finish(self):
        try:
            statuses = [process.poll() for process in self.processes]
            killed = [signal.Signals(-status).name for status in statuses if status is not None and status < 0]
            if killed:
                raise Failed(f"{self.name}: {' and '.join(killed)}\n{self.account()}")
            for process in self.processes:
                process.kill()
            for process in self.processes:
                wait_until(lambda process=process: process.poll() is not None, f"{self.name} ends when it is killed")
        finally:
            self.end()

    def end(self):
        for process in self.processes:
            process.kill()
            process.output.close()
            with contextlib.suppress(Failed):
                wait_until(lambda process=process: process.poll() is not None, f"{self.name} ends when it is killed")
        self.processes = []

    def account(self):
        """Returns the last lines that the programs have printed."""
        lines = []
        for process in self.processes:
            process.output.seek(0)
            last = process.output.read().splitlines()[-10:]
            lines += [f"{' '.join(map(str, process.args))}: status {process.poll()}", *(f"  | {line}" for line in last)]
        return "\n".join(lines)


class Perftest(Pair):
    """ib_write_bw, which runs until it is killed."""

    name = "ib_write_bw"
    counter = "write_bytes"

    def commands(self, port, devices):
        for device, more in zip(devices, ([], ["localhost"]), strict=True):
            yield [
                *("ib_write_bw", "-d", device.name, "-c", "SRD", "-x", "0", "-F", "-I", "0", "-s", "65536", "-p", str(port)),
                *("--run_infinitely", *more),
            ]


class Libfabric(Pair):
    """fi_pingpong over the efa provider, with more iterations than fit into a round."""

    name = "fi_pingpong"
    counter = "send_bytes"
    # All data must pass through the device.
    environment: ClassVar = {"FI_EFA_ENABLE_SHM_TRANSFER": "0"}

    def commands(self, port, devices):
        for device, more in zip(devices, (["-B", str(port)], ["-P", str(port), "localhost"]), strict=True):
            yield [
                *("fi_pingpong", "-p", "efa", "-e", "rdm", "-d", f"{device.name}-rdm", "-I", "100000000", "-S", "4096", *more),
            ]


class Objects(Load):
    """Many processes that create and destroy objects."""

    name = f"{MEMBERS} processes with objects"

    def __init__(self, stage):
        super().__init__(stage)
        self.begun = os.eventfd(0, os.EFD_NONBLOCK)
        self.members = [Worker(f"process {number}", Member, stage.victim, number, self.begun) for number in range(MEMBERS)]

    def start(self, number):
        for member in self.members:
            member.begin("open")
        for member in self.members:
            member.result("open")
        for member in self.members:
            member.begin("run")
        begun = 0

        def all_have_begun():
            nonlocal begun
            for member in self.members:
                if member.answers():
                    error, _ = member.result("a call that fails")
                    raise Failed(f"{member.name}: a call failed with {error}, and nothing was wrong yet")
            with contextlib.suppress(BlockingIOError):
                begun += os.eventfd_read(self.begun)
            return begun == MEMBERS

        wait_until(all_have_begun, "all processes have created an object")

    def finish(self):
        wrong = []
        for member in self.members:
            first, later = member.result("a call that fails")
            if first not in self.stage.trigger.first_errors or later != "EIO":
                wrong.append(f"{first} and then {later}")
        for member in self.members:
            member.begin("close")
        for member in self.members:
            member.result("close")
        if wrong:
            raise Failed(f"{len(wrong)} of {MEMBERS} processes: {', '.join(sorted(set(wrong)))}")

    def end(self):
        for member in self.members:
            member.end()
        os.close(self.begun)


class Everything(Load):
    """All loads at once."""

    name = "all at once"

    def __init__(self, stage):
        super().__init__(stage)
        self.parts = [Perftest(stage), Libfabric(stage), Objects(stage)]

    def start(self, number):
        for part in self.parts:
            part.start(number)

    def finish(self):
        for part in self.parts:
            part.finish()

    def end(self):
        for part in self.parts:
            part.end()
