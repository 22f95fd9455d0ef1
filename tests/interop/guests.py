# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Programs that run on several guests: guest 0 leads and has the others start what it needs there, by their agents.

All guests run the same program, which in the others only prepares what they need: they stay until guest 0 ends, as tools/vm --leader
has it.
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
# What a program finds of the settings of who starts it: all but which guest that is, and the emulator's control port, which can be
# opened once.
SETTINGS = {name: value for name, value in os.environ.items() if name.startswith("EFA_") and name != "EFA_GUEST"} | {"EFA_CONTROL_PORT": ""}
# Is there once a guest has prepared what it has to.
PREPARED = Path("/run/prepared")


class ProgramFailed(Failed):
    """A program has failed; its text is about all that took part, `output` is all that the first one printed."""

    def __init__(self, text, output):
        super().__init__(text)
        self.output = output


def name(guest):
    """The host name of a guest, which all of them know."""
    return f"guest{guest}"


def lead(main, *arguments):
    """Does main(*arguments) in guest 0, once the others have come here, too."""
    if GUEST:
        PREPARED.touch()
    else:
        meet()
        main(*arguments)


def meet():
    """Waits for the agents of all guests to answer, and for the others' programs to have prepared what they have to."""
    for guest in range(1, GUESTS):
        wait_until(lambda guest=guest: answers(guest), f"{name(guest)} answers")
        wait_until(lambda guest=guest: tried("test", "-e", PREPARED, guest=guest) == 0, f"{name(guest)} has prepared what it has to")


def answers(guest):
    """Whether a guest's agent runs programs, which it does when the guest has come as far."""
    try:
        return tried("true", guest=guest) == 0
    except OSError:
        return False


def tried(*command, guest):
    """The exit status of a program of a guest."""
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
        """Takes in what the guest tells of the process."""
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
        """Waits until it listens; fails if it ends before."""
        wait_until(self.ready.is_set, f"a server listens: {' '.join(self.command)}")
        if self.ended.is_set():
            raise Failed(f"the server did not start\n{self.account()}")

    def account(self):
        """What there is to know of it if something fails."""
        end = "still runs" if not self.ended.is_set() else "was lost" if self.status is None else f"exit status {self.status}"
        lines = self.output.splitlines()[-40:]
        return "\n".join([f"{name(self.guest)}: {' '.join(self.command)}: {end}", *(f"  | {line}" for line in lines)])


def check(*processes):
    """Waits for processes and fails, with what all of them printed, unless all end well. Those hang that neither print anything nor end."""

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
        # The others may say why. Nothing depends on it that they do.
        time.sleep(1)
    if hung or failed():
        text = "\n".join([hung or "a program failed", *(process.account() for process in processes)])
        raise ProgramFailed(text, processes[0].output)


def run(command, guest=0, environment=None):
    """Runs a program on one guest; returns what it prints, and fails if it fails."""
    with Process(guest, command, environment=environment) as process:
        check(process)
        return process.output


def pair(server, client, port, environment=None):
    """Runs a server on guest 1 and then its client on guest 0; returns what the client prints, and fails if either fails."""
    with Process(1, server, port, environment) as serving:
        serving.await_ready()
        with Process(0, client, environment=environment) as running:
            check(running, serving)
            return running.output
