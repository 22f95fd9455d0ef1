# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Uevents of the kernel, which udev gets."""

import socket

from selftest import Failed, wait_until

NETLINK_KOBJECT_UEVENT = 15
SO_RCVBUFFORCE = 33
KERNEL_GROUP = 1
# Enough for the objects of many devices that appear and disappear before a read.
BUFFER = 4 << 20


class Uevents:
    """Uevents from now on."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        self.socket.bind((0, KERNEL_GROUP))

    def read(self):
        """Yields action, path and variables of uevents that have arrived."""
        while True:
            try:
                head, *rest = self.socket.recv(1 << 16).decode(errors="replace").split("\0")
            except BlockingIOError:
                return
            except OSError as error:
                raise Failed(f"uevents are lost: {error.strerror}") from error
            action, _, path = head.partition("@")
            yield action, path, dict(line.split("=", 1) for line in rest if "=" in line)

    def of_driver(self, function):
        """Returns the driver's uevents of a device, with their reasons."""
        return [
            (variables["EFA_EVENT"], variables.get("EFA_REASON"))
            for action, path, variables in self.read()
            if action == "change" and path.endswith("/" + function.address) and "EFA_EVENT" in variables
        ]

    def await_driver(self, function, last):
        """As `of_driver`, but waits for one of the events in LAST."""
        found = []

        def has_arrived():
            found.extend(self.of_driver(function))
            return any(event in last for event, _ in found)

        wait_until(has_arrived, f"the uevent {' or '.join(last)}")
        return found
