# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Uevents of the kernel, which udev gets."""

import contextlib
import socket

from selftest import wait_until

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

    def of_driver(self, function):
        """Returns the driver's uevents of a device since the last call, with their reasons."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                # Fails with ENOBUFS if uevents are lost.
                head, *rest = self.socket.recv(1 << 16).decode(errors="replace").split("\0")
                variables = dict(line.split("=", 1) for line in rest if "=" in line)
                if head.startswith("change@") and head.endswith("/" + function.address) and "EFA_EVENT" in variables:
                    found.append((variables["EFA_EVENT"], variables.get("EFA_REASON")))
        return found

    def await_driver(self, function, last):
        """As `of_driver`, but waits for one of the events in LAST."""
        found = []

        def has_arrived():
            found.extend(self.of_driver(function))
            return any(event in last for event, _ in found)

        wait_until(has_arrived, f"the uevent {' or '.join(last)}")
        return found
