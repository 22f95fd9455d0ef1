# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Processes of the tests. Each executes requests one after the other, so that rounds need not start processes."""

import collections
import contextlib
import ctypes
import os
import pickle
import re
import select
import signal
import socket
import threading
from pathlib import Path
from typing import Any

from selftest import Failed, emulator, result_of, wait_until

PR_SET_PDEATHSIG = 1
# Maximum size of a request or an answer in bytes.
ANSWER = 1 << 16


# Matches the kernel stack of a removal that waits until programs close the device.
WAITS_FOR_PROGRAMS = re.compile(r"\A(\[<0>\] \w*wait_for_\w+\+.*\n)*\[<0>\] ib_uverbs_remove_one\+")


def waits_for_programs():
    """Whether a task, possibly of the kernel, waits for programs to close a device."""
    for stack in Path("/proc").glob("[0-9]*/stack"):
        with contextlib.suppress(OSError):
            if WAITS_FOR_PROGRAMS.search(stack.read_text()):
                return True
    return False


@contextlib.contextmanager
def repeated(action, threads=1):
    """Repeats an action in threads until the end of the block; yields how often it had each result."""
    stop, results = threading.Event(), collections.Counter()

    def run():
        while not stop.is_set():
            results[result_of(action)] += 1

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield results
    finally:
        stop.set()
        for thread in running:
            thread.join()
        print(f"# {dict(results)}", flush=True)


class Worker:
    """A process with an object whose methods can be called from here.

    MAKE creates the object in the new process, which ends with this process or by `end`.
    """

    def __init__(self, name, make, *arguments):
        self.name, self.make, self.arguments = name, make, arguments
        self.socket: Any = None
        self.start()

    def start(self):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid: Any = os.fork()
        if self.pid == 0:
            self.socket.close()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                self.serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self.busy = 0

    def serve(self, connection):
        """Runs in the new process: creates the object and calls the requested methods."""
        emulator.close()
        thing = self.make(*self.arguments)
        while request := connection.recv(ANSWER):
            method, arguments = pickle.loads(request)
            try:
                answer = True, getattr(thing, method)(*arguments)
            except Failed as failure:
                answer = False, str(failure)
            except Exception as error:
                answer = False, f"{type(error).__name__}: {error}"
            connection.send(pickle.dumps(answer))

    def begin(self, method, *arguments):
        """Starts a call of a method, and does not wait."""
        self.busy += 1
        try:
            self.socket.send(pickle.dumps((method, arguments)))
        except BrokenPipeError:
            self.fail_as_dead()

    def answers(self):
        """Whether the oldest call has ended."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def result(self, what="a call"):
        """Waits for the oldest call that was started, and returns its result; fails if the call fails."""
        wait_until(self.answers, f"{self.name}: the end of {what}")
        answer = self.socket.recv(ANSWER)
        if not answer:
            self.fail_as_dead()
        self.busy -= 1
        good, result = pickle.loads(answer)
        if not good:
            raise Failed(f"{self.name}: {result}")
        return result

    def call(self, method, *arguments):
        """Calls a method and returns its result."""
        self.begin(method, *arguments)
        return self.result(method)

    def fail_as_dead(self):
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = None
        raise Failed(f"{self.name}: ended by {signal.Signals(-status).name}" if status < 0 else f"{self.name}: ended with {status}")

    def end(self):
        """Kills the process. It may end later, while a removal in the kernel waits for programs."""
        self.socket.close()
        if self.pid is None:
            return
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: self.has_ended() or waits_for_programs(), f"{self.name}: the end of its process")
        self.pid = None

    def has_ended(self):
        return os.waitpid(self.pid, os.WNOHANG)[0] != 0

    def restart(self):
        """Replaces the process by a new one, whatever the old one is doing."""
        self.end()
        self.start()
