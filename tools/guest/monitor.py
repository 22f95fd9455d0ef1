#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""usage: monitor.py pull|plug NUMBER
       monitor.py REQUEST...

Removes a device from its slot without notice (surprise removal), or plugs it in again. Or sends QMP requests to QEMU, such as
'{"execute":"query-status"}', and prints their results. For guests of tools/vm --hotplug.
"""

import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path

PORT = Path("/dev/virtio-ports/qemu.monitor")
# The properties of each slot's device, one line of JSON per slot.
SLOTS = Path(f"/run/efa-rs/guest{os.environ.get('EFA_GUEST', '0')}/slots")
# Timeout for an answer of QEMU, in seconds: far more than it needs.
TIMEOUT = 30


class Refused(Exception):
    """QEMU rejected a request, or did not answer it."""


class Monitor:
    """A session with QEMU's monitor, of which there can be one at a time. Tests import this file."""

    def __init__(self):
        self.port = os.open(PORT, os.O_RDWR | os.O_NONBLOCK)
        self.buffer = b""
        # Answers that an earlier session did not read may still arrive. They differ by their ids.
        self.last = time.monotonic_ns()
        # QEMU accepts this command only once, and an earlier session may have sent it.
        with contextlib.suppress(Refused):
            self.execute("qmp_capabilities")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.port)

    def message(self, deadline):
        """Returns the next message of QEMU."""
        while b"\n" not in self.buffer:
            if not select.select([self.port], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Refused(f"QEMU did not answer within {TIMEOUT} s")
            self.buffer += os.read(self.port, 65536)
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def execute(self, command, **arguments):
        """Has QEMU execute a command, and returns its result."""
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

    def pull(self, number):
        """Removes a device from its slot without notice to the guest.

        The emulator must unplug the device first, which ends its DMA.
        """
        self.replace(number, "empty", driver="pci-testdev")

    def plug(self, number):
        """Plugs a device into the slot that it was removed from. The emulator provides it in its state after power-on."""
        self.replace(number, "efa", **json.loads(SLOTS.read_text().splitlines()[number]))

    def replace(self, number, kind, **device):
        """Replaces the device in a slot at once.

        QEMU aborts when it deletes a vfio-user device, so that removed devices are kept, unrealized. QEMU notifies the guest of a new
        device in a slot, but not of an empty slot. So an empty slot has a device without driver.
        """
        names = [child["name"] for child in self.execute("qom-list", path="/machine/peripheral")]
        in_slot = [name for name in names if name.split("-")[0] in (f"efa{number}", f"empty{number}")]
        for name in in_slot:
            path = f"/machine/peripheral/{name}"
            if self.execute("qom-get", path=path, property="realized"):
                self.execute("qom-set", path=path, property="realized", value=False)
        self.execute("device_add", **{**device, "id": f"{kind}{number}-{len(in_slot)}", "bus": f"port{number}"})


def main(arguments):
    try:
        with Monitor() as monitor:
            match arguments:
                case ["pull" | "plug" as what, number]:
                    getattr(monitor, what)(int(number))
                case _:
                    for request in map(json.loads, arguments):
                        print(json.dumps(monitor.execute(request["execute"], **request.get("arguments", {}))))
    except FileNotFoundError:
        sys.exit(f"There is no port {PORT}: start this guest with tools/vm --hotplug.")
    except (OSError, ValueError, KeyError, Refused) as error:
        sys.exit(f"monitor: {error}")


if __name__ == "__main__":
    main(sys.argv[1:] or sys.exit(__doc__.strip()))
