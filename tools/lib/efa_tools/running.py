# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Sets of guests that run, and programs in them that are started from outside."""

import contextlib
import functools
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import build, cache, patience, qemu, remote, steps
from .failure import Failure

# Ports below are those of well-known services.
LOWEST_PORT = 10000


def make_token(shared):
    """Writes the configuration of a set's agents into the folder that its guests see."""
    token = shared / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(16))


def announce(folder, guests):
    """Records the number of agents in a set that is about to start. Each agent has a socket in the set's folder."""
    (folder / "agents").write_text(str(guests))


def agent_socket(guest):
    return f"agent{guest}"


# Counts the ports that this process has tried.
_counted = itertools.count()


def free_port(count=1):
    """The first of COUNT successive free TCP ports of this host, outside of its ephemeral range.

    An ephemeral port that is closed and then used by its number may belong to another process by then.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    places = (first_given - LOWEST_PORT) // count
    while True:
        port = LOWEST_PORT + (os.getpid() * 97 + next(_counted)) % places * count
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(port, port + count):
                stack.enter_context(socket.create_server(("127.0.0.1", number)))
            return port


class Running:
    """A set of guests that runs."""

    def __init__(self, folder):
        self.folder = Path(folder)
        try:
            self.guests = int((self.folder / "agents").read_text())
            self.token = (self.folder / "shared" / "token").read_text()
        except (OSError, ValueError):
            raise Failure(
                f"{self.folder} is not the folder of guests with an agent: start some by tools/vm lab, or tools/vm --agent."
            ) from None

    def start(self, guest, command, terminal=None, environment=None):
        """Starts a program; returns the connection and the request."""
        if guest >= self.guests:
            raise Failure(f"There is no guest {guest}: valid numbers are 0 to {self.guests - 1}.")
        request = remote.Request(command, environment or {}, terminal=terminal, token=self.token)
        try:
            return remote.start(self.folder / agent_socket(guest), request, patience.PATIENCE), request
        except OSError as error:
            raise Failure(f"Guest {guest} of {self.folder} cannot be reached ({error}): see its guest{guest}.console.log.") from error

    def run(self, guest, command, reads=True):
        """Runs a program as if it were one of this host; returns its exit status."""
        terminal = remote.terminal() if remote.wants_terminal(command) else None
        connection, request = self.start(guest, command, terminal)
        status = remote.Front(connection, request, reads).run()
        if status is not None:
            return status
        print(f"Guest {guest} has ended, or does not answer: see {self.folder}/guest{guest}.console.log.", file=sys.stderr)
        return remote.LOST

    def control(self, requests):
        """Sends requests to the emulator, and prints its replies; returns the exit status."""
        # This host may be too old for programs that are built in the toolroot.
        command = [f"{qemu.RUN}/efa-emu", "ctl", f"{qemu.RUN}/control", *requests]
        return subprocess.run(build.in_toolroot(command, [(self.folder, qemu.RUN, "rw")]), check=False).returncode

    def await_agents(self):
        """Waits until the agents of all guests answer."""
        for guest in range(self.guests):
            what = f"Guest {guest}, whose console is in {self.folder}/guest{guest}.console.log, did not answer"
            patience.wait_until(functools.partial(self.answers, guest), what, interval=0.5)

    def answers(self, guest):
        """Whether a guest's agent runs a program on request."""
        try:
            connection, _ = self.start(guest, ["true"])
            with connection, connection.makefile("rb") as messages:
                return any("status" in json.loads(line) for line in messages)
        except (OSError, Failure):
            return False


def find(folder=None):
    """Returns the set in FOLDER, or the most recently started set that runs."""
    if folder:
        found = Running(folder)
        if not cache.in_use(found.folder):
            raise Failure(f"The guests of {folder} have ended: start others by tools/vm lab, or tools/vm --agent.")
        return found
    for file in sorted(cache.folder("runs").glob("*/agents"), key=lambda file: file.stat().st_mtime, reverse=True):
        if cache.in_use(file.parent):
            return Running(file.parent)
    raise Failure("No guests with an agent run: start some by tools/vm lab, or tools/vm --agent.")


def announce_when_ready(run):
    """Prints how to reach the guests of a run that begins, as soon as they answer."""

    def tell():
        while not run.booted():
            time.sleep(0.5)
        try:
            Running(run.folder).await_agents()
        except Failure as failure:
            steps.note(failure)
            return
        guests = " or ".join(map(str, range(run.options.guests)))
        steps.note(f"The guests run. In another terminal: tools/vm exec --guest {guests} [COMMAND]; tools/vm ctl JSON. Ctrl-C ends them.")

    threading.Thread(target=tell, daemon=True).start()
