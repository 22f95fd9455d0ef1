# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Programs that run on several guests: guest 0 is the leader, and starts programs on the others by their agents.

All guests run the same program. On the others it only prepares the guest, which stays until guest 0 ends: see the option --leader of
tools/vm.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import patience
from selftest import Failed, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "lib"))

from efa_tools import remote

GUEST = int(os.environ.get("EFA_GUEST", "0"))
GUESTS = int(os.environ.get("EFA_GUESTS", "1"))
# Settings that a started program inherits: all but the guest's number, and the emulator's control port, which can be open only
# once.
SETTINGS = {name: value for name, value in os.environ.items() if name.startswith("EFA_") and name != "EFA_GUEST"} | {"EFA_CONTROL_PORT": ""}
# Exists once a guest has finished its preparations.
PREPARED = Path("/run/prepared")


class ProgramFailed(Failed):
    """Failure of a program. Its text describes all participating programs; `output` is the whole output of the first one."""

    def __init__(self, text, output):
        super().__init__(text)
        self.output = output


def name(guest):
    """Returns the host name of a guest, which all guests can resolve."""
    return f"guest{guest}"


def lead(main, *arguments):
    """Calls main(*arguments) in guest 0, once the others have called this function, too."""
    if GUEST:
        PREPARED.touch()
    else:
        meet()
        main(*arguments)


def meet():
    """Waits until the agents of all guests answer, and until the others' programs have finished their preparations."""
    for guest in range(1, GUESTS):
        wait_until(lambda guest=guest: answers(guest), f"{name(guest)} answers")
        wait_until(lambda guest=guest: tried("test", "-e", PREPARED, guest=guest) == 0, f"{name(guest)} is prepared")


def answers(guest):
    """Whether a guest's agent runs programs, which it does once the guest has booted far enough."""
    try:
        return tried("true", guest=guest) == 0
    except OSError:
        return False


def tried(*command, guest):
    """Runs a program on a guest; returns its exit status."""
    with Process(guest, command) as process:
        wait_until(process.ended.is_set, f"the end of {command[0]} on {name(guest)}")
        return process.status


class Process:
    """A program on a guest."""

    def __init__(self, guest, command, listens_at=None, environment=None):
        self.guest, self.command = guest, [str(word) for word in command]
        self.output, self.status = "", None
        self.ready, self.ended = threading.Event(), threading.Event()
        environment = {**SETTINGS, **(environment or {})}
        request = remote.Request(self.command, environment, "/tmp", listens_at=listens_at, token=remote.TOKEN.read_text())
        self.connection = remote.start((name(guest), remote.PORT), request, patience.PATIENCE)
        remote.send(self.connection, stdin=None)
        threading.Thread(target=self.follow, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def follow(self):
        """Reads the agent's messages about the process."""
        with contextlib.suppress(OSError, ValueError), self.connection.makefile("rb") as messages:
            for line in messages:
                message = json.loads(line)
                # perftest prints zero bytes.
                for stream in ("stdout", "stderr"):
                    self.output += remote.decoded(message.get(stream, "")).decode(errors="replace").replace("\0", "")
                self.status = message.get("status", self.status)
                if "ready" in message:
                    self.ready.set()
        self.ended.set()
        self.ready.set()

    def await_ready(self):
        """Waits until the program listens; fails if it ends before."""
        wait_until(self.ready.is_set, f"a server listens: {' '.join(self.command)}")
        if self.ended.is_set():
            raise Failed(f"the server did not start\n{self.account()}")

    def account(self):
        """Returns the command, its status and the end of its output, for the text of a failure."""
        end = "still runs" if not self.ended.is_set() else "was lost" if self.status is None else f"exit status {self.status}"
        lines = self.output.splitlines()[-40:]
        return "\n".join([f"{name(self.guest)}: {' '.join(self.command)}: {end}", *(f"  | {line}" for line in lines)])


def check(*processes):
    """Waits for processes; fails with the output of all of them unless all succeed. They hang if none prints anything or ends."""

    def ended():
        return all(process.ended.is_set() for process in processes)

    def failed():
        return any(process.ended.is_set() and process.status != 0 for process in processes)

    def seen():
        return [(len(process.output), process.ended.is_set()) for process in processes]

    hung = None
    try:
        while not ended() and not failed():
            before = seen()
            wait_until(lambda before=before: seen() != before, "output or an end of the programs")
    except Failed as failure:
        hung = str(failure)
    if failed() and not ended():
        # The others may print the reason in this time. Nothing depends on that.
        time.sleep(1)
    if hung or failed():
        text = "\n".join([hung or "a program failed", *(process.account() for process in processes)])
        raise ProgramFailed(text, processes[0].output)


def run(command, guest=0, environment=None):
    """Runs a program on one guest; returns its output, and raises ProgramFailed if it fails."""
    with Process(guest, command, environment=environment) as process:
        check(process)
        return process.output


def pair(server, client, port, environment=None):
    """Runs a server on guest 1 and then its client on guest 0; returns the client's output, and fails if either fails."""
    with Process(1, server, port, environment) as serving:
        serving.await_ready()
        with Process(0, client, environment=environment) as running:
            check(running, serving)
            return running.output
