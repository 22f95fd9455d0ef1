#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs programs in this guest for the host and for other guests: the server of tools/vm exec and tools/guest/ssh.

usage: agent.py TOKEN-FILE
"""

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from efa_tools import remote

# Columns and values of /proc/net/tcp.
LOCAL_ADDRESS, STATE, LISTEN = 1, 3, "0A"
# The character that ends the input of a terminal.
END_OF_INPUT = b"\x04"


def listens(port):
    """Whether a program of this guest listens at a TCP port."""
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(file) as table:
            for line in table:
                columns = line.split()
                if columns[STATE] == LISTEN and columns[LOCAL_ADDRESS].endswith(f":{port:04X}"):
                    return True
    return False


def status_of(process):
    """Returns the exit status as a shell does: 128 plus the signal's number, if a signal killed the process."""
    status = process.wait()
    return status if status >= 0 else 128 - status


class Served:
    """A requested process."""

    def __init__(self, connection, messages):
        self.connection, self.messages = connection, messages
        self.lock = threading.Lock()
        # The standard input of the process: a pipe, or its terminal.
        self.input: Any = None

    def send(self, **message):
        with self.lock, contextlib.suppress(OSError):
            remote.send(self.connection, **message)

    def run(self, request):
        """Runs the request and reports its progress."""
        command = request.command or ["bash", "-l"]
        environment = {**os.environ, **request.environment}
        try:
            if request.terminal:
                process, streams = self.start_in_terminal(command, environment, request)
            else:
                process, streams = self.start(command, environment, request)
        except OSError as error:
            self.send(stderr=remote.encoded(f"{error}\n".encode()))
            self.send(status=127)
            return
        copiers = [threading.Thread(target=self.copy, args=stream, daemon=True) for stream in streams]
        others = [threading.Thread(target=self.follow, args=(process,), daemon=True)]
        if request.listens_at:
            others.append(threading.Thread(target=self.await_server, args=(process, request.listens_at), daemon=True))
        for thread in (*copiers, *others):
            thread.start()
        status = status_of(process)
        # Children that are left running may hold its pipes, whose output is awaited. A terminal ends with the process.
        for copier in copiers:
            copier.join(1 if request.terminal else None)
        for _, stream in (*streams, ("stdin", self.input)):
            stream.close()
        self.send(status=status)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def start(self, command, environment, request):
        """Starts the process with pipes."""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, bufsize=0, env=environment, cwd=request.folder, process_group=0, **pipes)
        self.input = process.stdin
        return process, [("stdout", process.stdout), ("stderr", process.stderr)]

    def start_in_terminal(self, command, environment, request):
        """Starts the process with a terminal of its own."""
        rows, columns, environment["TERM"] = request.terminal
        outer, inner = pty.openpty()
        remote.set_size(inner, rows, columns)
        self.input = open(outer, "r+b", buffering=0)
        streams: dict[str, Any] = {"stdin": inner, "stdout": inner, "stderr": inner}
        # The child has no process group of its own. So setsid does not fork, and the child that is waited for leads the session.
        process = subprocess.Popen(["setsid", "--ctty", *command], env=environment, cwd=request.folder, **streams)
        os.close(inner)
        return process, [("stdout", self.input)]

    def copy(self, name, stream):
        """Forwards the output of the process."""
        # A terminal whose process has ended returns an error in place of the end of the file.
        with contextlib.suppress(OSError):
            while data := stream.read(remote.CHUNK):
                self.send(**{name: remote.encoded(data)})

    def await_server(self, process, port):
        while process.poll() is None:
            if listens(port):
                self.send(ready=True)
                return
            time.sleep(0.05)

    def follow(self, process):
        """Forwards input to the process, and kills the process when the connection ends."""
        with contextlib.suppress(OSError, ValueError):
            for line in self.messages:
                self.obey(json.loads(line))
        # The whole process group, as children may outlive the process.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def obey(self, message):
        if "size" in message:
            remote.set_size(self.input.fileno(), *message["size"])
        if "stdin" not in message or self.input.closed:
            return
        if message["stdin"] is None:
            if self.input.isatty():
                self.input.write(END_OF_INPUT)
            else:
                self.input.close()
            return
        data = remote.decoded(message["stdin"])
        # The process may close its input without reading all of it.
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[self.input.write(data) :]


def serve(connection, token):
    """Serves a connection."""
    with connection, connection.makefile("rb") as messages, contextlib.suppress(ValueError, TypeError):
        request = json.loads(messages.readline() or "{}")
        if isinstance(request, dict) and request.get("token") == token:
            Served(connection, messages).run(remote.Request(**request))


def serve_all(server, token):
    """Serves all clients of SERVER. Never returns."""
    while True:
        connection, _ = server.accept()
        threading.Thread(target=serve, args=(connection, token), daemon=True).start()


if __name__ == "__main__":
    serve_all(socket.create_server(("", remote.PORT), backlog=64), Path(sys.argv[1]).read_text())
