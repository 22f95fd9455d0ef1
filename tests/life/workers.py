# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Processes of the tests, each of which does one thing after the other as it is told, so that no round has to start any."""

import ctypes
import os
import pickle
import select
import signal
import socket
import time

from selftest import Failed, emulator

PR_SET_PDEATHSIG = 1
# More than any answer.
ANSWER = 1 << 16


class Worker:
    """A process with an object whose methods can be called from here.

    It is made by MAKE in the process itself, and goes with it: at the end of this process, or by `end`.
    """

    def __init__(self, name, make, *arguments):
        self.name, self.make, self.arguments = name, make, arguments
        self.socket = None
        self.start()

    def start(self):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
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
        """In the process: makes the object and calls what it is told to."""
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
        """Calls a method, and does not wait."""
        self.busy += 1
        try:
            self.socket.send(pickle.dumps((method, arguments)))
        except BrokenPipeError:
            self.fail_as_dead()

    def answers(self, seconds):
        """Waits until the oldest call has ended; whether it has, within so many seconds."""
        return bool(select.select([self.socket], [], [], max(seconds, 0))[0])

    def result(self, seconds, what=None):
        """What the oldest call that was begun returns; fails if that fails, or takes longer."""
        if not self.answers(seconds):
            raise Failed(f"{self.name}: {what or 'no answer'}: not within {seconds:.1f} s")
        answer = self.socket.recv(ANSWER)
        if not answer:
            self.fail_as_dead()
        self.busy -= 1
        good, result = pickle.loads(answer)
        if not good:
            raise Failed(f"{self.name}: {result}")
        return result

    def call(self, method, *arguments, seconds=30):
        """Calls a method and returns what it does."""
        self.begin(method, *arguments)
        return self.result(seconds, method)

    def fail_as_dead(self):
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = None
        raise Failed(f"{self.name}: ended by {signal.Signals(-status).name}" if status < 0 else f"{self.name}: ended with {status}")

    def end(self, seconds=10):
        """Kills it; whether it has gone. One that waits for the kernel without end stays."""
        self.socket.close()
        if self.pid is None:
            return True
        os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + seconds
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        self.pid = None
        return True

    def restart(self):
        """Has a new process, whatever the old one is doing; whether that has gone."""
        gone = self.end()
        self.start()
        return gone
