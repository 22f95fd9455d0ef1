# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Programs in guests that run, started from the host or from another guest: the protocol of tools/guest/agent.py, and its client.

A connection is one process. Lines of JSON are sent both ways. The client sends a Request, then the process's input and the sizes of its
terminal. The agent sends the output, with the name of its stream, and last the exit status. Bytes are in base64. The process ends when
the connection does.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import tty
from dataclasses import asdict, dataclass, field
from pathlib import Path

PORT = 7001
# File in a guest with the value that Request.token must have.
TOKEN = Path("/run/efa-rs/token")
CHUNK = 32 << 10
# Exit status for a failure of the connection in place of the program, as in ssh.
LOST = 255


@dataclass
class Request:
    """A request to run a program in a guest."""

    # The program and its arguments. None: a login shell.
    command: list[str] | None
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/root"
    # Rows, columns and type of a terminal. None: the program has pipes, and separate streams for output and errors.
    terminal: tuple[int, int, str] | None = None
    # The agent sends `ready` as soon as a program listens at this port.
    listens_at: int | None = None
    # The secret that permits to run programs: see running.make_token().
    token: str = ""


def encoded(data):
    return base64.b64encode(data).decode()


def decoded(text):
    return base64.b64decode(text)


def send(connection, **message):
    connection.sendall(json.dumps(message).encode() + b"\n")


def connect(address, limit):
    """Connects to a host and a port, or to a unix socket, whose path can have any length."""
    if not isinstance(address, Path):
        connection = socket.create_connection(address, limit)
        # Typed text and the answers to it are small.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(address.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        connection.settimeout(limit)
        connection.connect(f"/proc/self/fd/{folder}/{address.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def start(address, request, limit=None):
    """Connects to an agent and sends it a request; returns the connection."""
    connection = connect(address, limit)
    connection.settimeout(None)
    send(connection, **asdict(request))
    return connection


def size_of(descriptor):
    """Rows and columns of a terminal."""
    rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    return rows, columns


def set_size(descriptor, rows, columns):
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def wants_terminal(command):
    """Whether a command needs a terminal: a shell does, if our input and output are one."""
    return command is None and sys.stdin.isatty() and sys.stdout.isatty()


def terminal():
    """Returns size and type of our terminal, for a program in a guest."""
    return *size_of(sys.stdin.fileno()), os.environ.get("TERM", "dumb")


class Front:
    """Shows a process of a guest as if it were one of this host: standard streams, exit status, Ctrl-C, size of the terminal."""

    def __init__(self, connection, request, reads=True):
        self.connection, self.raw = connection, request.terminal is not None
        self.reads = reads
        self.status = None

    def run(self):
        """Returns the exit status; None if the guest has ended before the process has."""
        before = termios.tcgetattr(sys.stdin) if self.raw else None
        try:
            if self.raw:
                tty.setraw(sys.stdin.fileno())
                signal.signal(signal.SIGWINCH, lambda *_: send(self.connection, size=size_of(sys.stdin.fileno())))
            with contextlib.suppress(ConnectionError):
                self.pump()
        finally:
            if before:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        return self.status

    def pump(self):
        """Forwards data in both directions until the process has ended."""
        received = b""
        sources = [self.connection]
        if self.reads:
            sources.append(sys.stdin.fileno())
        else:
            send(self.connection, stdin=None)
        while self.status is None:
            ready, _, _ = select.select(sources, [], [])
            if len(ready) > 1 or ready[0] is not self.connection:
                data = os.read(sys.stdin.fileno(), CHUNK)
                send(self.connection, stdin=encoded(data) if data else None)
                if not data:
                    sources.pop()
            if self.connection in ready:
                data = self.connection.recv(2 * CHUNK)
                if not data:
                    return
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    self.show(json.loads(line))

    def show(self, message):
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            if name in message:
                stream.buffer.write(decoded(message[name]))
                stream.buffer.flush()
        self.status = message.get("status", self.status)
