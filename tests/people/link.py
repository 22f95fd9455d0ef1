# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A connection between the programs of two hosts, and contents that both know."""

import socket

import numpy as np


class Link:
    """The first host has no argument, and the second one, which starts later, the name of the first."""

    def __init__(self, port, words):
        self.first = not words
        with socket.create_server(("", port)) if self.first else socket.create_connection((words[0], port)) as made:
            self.stream = (made.accept()[0] if self.first else made).makefile("rwb")

    def swap(self, text):
        """Sends a line, and returns the other side's. Both have come to the same place then."""
        self.stream.write(f"{text}\n".encode())
        self.stream.flush()
        return self.stream.readline().decode().strip()

    def pattern(self, size, mine=True):
        """Returns what this side sends, or the other one."""
        return np.random.default_rng([size, self.first == mine]).integers(0, 256, size, np.uint8)

    def by_turns(self, call):
        """Calls a function that returns 0, first in one program and then in the other one."""
        for turn in (True, False):
            assert self.first != turn or call() == 0
            self.swap("done")
