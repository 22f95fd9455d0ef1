#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""usage: monitor.py pull|plug NUMBER
       monitor.py REQUEST...

Pulls a device out of its slot, without the guest's consent, and plugs it in again. Or sends requests of QMP to QEMU, such as
'{"execute":"query-status"}', and prints what each returns. For guests of tools/vm --hotplug.
"""

import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path

PORT = Path("/dev/virtio-ports/qemu.monitor")
# A line for each slot, with what makes its device.
SLOTS = Path(f"/run/efa-rs/guest{os.environ.get('EFA_GUEST', '0')}/slots")
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
        # QEMU wants it once in its life, and an earlier session may have done it.
        with contextlib.suppress(Refused):
            self.execute("qmp_capabilities")

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

    def pull(self, number):
        """Pulls a device out of its slot, whether or not the guest wants to let it go.

        Before, the emulator must unplug it, which ends its DMA.
        """
        self.replace(number, "empty", driver="pci-testdev")

    def plug(self, number):
        """Plugs a device into the slot that it was pulled out of. It comes from the emulator as after power on."""
        self.replace(number, "efa", **json.loads(SLOTS.read_text().splitlines()[number]))

    def replace(self, number, kind, **device):
        """Puts another device in a slot at once.

        QEMU can't delete vfio-user devices without aborting: those that are not in their slots any more stay behind, unrealized. QEMU
        does not notify the guest of a slot that becomes empty, but only of one with a new device. So an empty slot has a device that has
        no driver.
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
        sys.exit(f"There is no port {PORT}: this is no guest of tools/vm --hotplug.")
    except (OSError, ValueError, KeyError, Refused) as error:
        sys.exit(f"monitor: {error}")


if __name__ == "__main__":
    main(sys.argv[1:] or sys.exit(__doc__.strip()))
