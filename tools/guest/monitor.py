#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""usage: monitor REQUEST...

Has the guest's QEMU do what requests of QMP ask for, such as '{"execute":"query-status"}', and prints what each returns.
For guests of tools/vm --hotplug, which have QEMU's monitor as a port.
"""

import json
import os
import select
import sys
import time
from pathlib import Path

PORT = Path("/dev/virtio-ports/qemu.monitor")
# Seconds that QEMU may take to answer: far more than it does.
TIMEOUT = 30


class Refused(Exception):
    """QEMU did not do what it was asked for."""


class Monitor:
    """A session with QEMU's monitor, of which there can be one at a time. Tests import this file."""

    def __init__(self):
        self.port = os.open(PORT, os.O_RDWR | os.O_NONBLOCK)
        self.buffer = b""
        # What an earlier session has not read is still to come: an answer is known by its id.
        self.last = time.monotonic_ns()
        try:
            self.execute("qmp_capabilities")
        except Refused:
            # QEMU wants it once in its life, and an earlier session has done it.
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.port)

    def message(self, deadline):
        """The next message of QEMU."""
        while b"\n" not in self.buffer:
            if not select.select([self.port], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Refused(f"QEMU did not answer within {TIMEOUT} s")
            self.buffer += os.read(self.port, 65536)
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def execute(self, command, **arguments):
        """Has QEMU execute a command and returns what that does."""
        self.last += 1
        request = {"execute": command, "arguments": arguments, "id": self.last}
        os.write(self.port, json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + TIMEOUT
        while True:
            message = self.message(deadline)
            if message.get("id") != self.last:
                continue
            if "error" in message:
                raise Refused(f"{command}: {message['error']['desc']}")
            return message["return"]


def main(requests):
    if not requests:
        sys.exit(__doc__.strip())
    try:
        with Monitor() as monitor:
            for request in map(json.loads, requests):
                print(json.dumps(monitor.execute(request["execute"], **request.get("arguments", {}))))
    except FileNotFoundError:
        sys.exit(f"There is no port {PORT}: this is no guest of tools/vm --hotplug.")
    except (OSError, ValueError, KeyError, Refused) as error:
        sys.exit(f"monitor: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
