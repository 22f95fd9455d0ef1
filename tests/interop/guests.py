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

from selftest import Failed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "lib"))

from efa_tools import remote  # noqa: E402

GUEST = int(os.environ.get("EFA_GUEST", "0"))
GUESTS = int(os.environ.get("EFA_GUESTS", "1"))
# What a program finds of the settings of who starts it: all but which guest that is, and the emulator's control port, which can be
# opened once.
SETTINGS = {name: value for name, value in os.environ.items() if name.startswith("EFA_") and name != "EFA_GUEST"} | {"EFA_CONTROL_PORT": ""}
# Is there once a guest has prepared what it has to.
PREPARED = Path("/run/prepared")
# Seconds until all agents answer, of which one may have to wait for its guest's devices longer than another.
MEET_LIMIT = 120
# Seconds until a server listens, which is a process's start and the setup of its queues on a busy host.
START_LIMIT = 60
# Seconds that a server may take to end after its client.
END_LIMIT = 30

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
    deadline = time.monotonic() + MEET_LIMIT
    for guest in range(1, GUESTS):
        while True:
            try:
                run(["sh", "-c", f"until [ -e {PREPARED} ]; do sleep 0.1; done"], MEET_LIMIT, guest)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Failed(f"{name(guest)} does not answer: {error}")
                time.sleep(0.1)


class Process:
    """A program on a guest."""

    def __init__(self, guest, command, listens_at=None, environment=None):
        self.guest, self.command = guest, [str(word) for word in command]
        self.output, self.status = "", None
        self.ready, self.ended = threading.Event(), threading.Event()
        environment = {**SETTINGS, **(environment or {})}
        request = remote.Request(self.command, environment, "/tmp", listens_at=listens_at, token=remote.TOKEN.read_text())
        self.connection = remote.start((name(guest), remote.PORT), request, START_LIMIT)
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
        if not self.ready.wait(START_LIMIT) or self.ended.is_set():
            raise Failed(f"the server did not start\n{self.account()}")

    def account(self):
        """What there is to know of it if something fails."""
        end = "still runs" if not self.ended.is_set() else "was lost" if self.status is None else f"exit status {self.status}"
        lines = self.output.splitlines()[-40:]
        return "\n".join([f"{name(self.guest)}: {' '.join(self.command)}: {end}", *(f"  | {line}" for line in lines)])


def check(*processes, limit):
    """Waits for processes and fails, with what all of them printed, unless all end well: the first within LIMIT seconds."""
    deadline, client_ended, wrong = time.monotonic() + limit, False, None
    while not wrong and not all(process.ended.is_set() for process in processes):
        if any(process.ended.is_set() and process.status for process in processes):
            # The others may know why.
            time.sleep(1)
            break
        if processes[0].ended.is_set() and not client_ended:
            deadline, client_ended = time.monotonic() + END_LIMIT, True
        if time.monotonic() > deadline:
            wrong = "the server did not end after its client" if client_ended else f"no end within {limit} s"
        time.sleep(0.02)
    if wrong or any(process.status != 0 for process in processes):
        text = "\n".join([wrong or "a program failed", *(process.account() for process in processes)])
        raise ProgramFailed(text, processes[0].output)


def run(command, limit, guest=0, environment=None):
    """Runs a program on one guest; returns what it prints, and fails if it fails."""
    with Process(guest, command, environment=environment) as process:
        check(process, limit=limit)
        return process.output


def pair(server, client, port, limit, environment=None):
    """Runs a server on guest 1 and then its client on guest 0; returns what the client prints, and fails if either fails."""
    with Process(1, server, port, environment) as serving:
        serving.await_ready()
        with Process(0, client, environment=environment) as running:
            check(running, serving, limit=limit)
            return running.output
