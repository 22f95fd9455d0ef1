# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""When the driver finds out that a device has to be reset, by its own tracepoint."""

import os
import re
from pathlib import Path

INSTANCE = Path("/sys/kernel/tracing/instances/efa_life")
EVENT = INSTANCE / "events/efa/efa_reset/enable"
# Time, device and cause.
LINE = re.compile(r" (?P<seconds>\d+\.\d+): efa_reset: (?P<address>\S+) ")
ENOUGH = 1 << 16


class Detections:
    """Those from now on. The C driver, which resets nothing, has none."""

    def __init__(self):
        INSTANCE.mkdir(exist_ok=True)
        # That of time.monotonic().
        (INSTANCE / "trace_clock").write_text("mono")
        self.pipe = os.open(INSTANCE / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self):
        """Forgets what was, and takes notice of what comes: a module that is loaded anew has new tracepoints."""
        if EVENT.exists() and EVENT.read_text().strip() != "1":
            EVENT.write_text("1")
        self.read()

    def read(self):
        text = b""
        while True:
            try:
                text += os.read(self.pipe, ENOUGH)
            except BlockingIOError:
                return text.decode(errors="replace")

    def of(self, function):
        """When the reset of a device was found to be due, or nothing if none was."""
        times = [float(match["seconds"]) for match in LINE.finditer(self.read()) if match["address"] == function.address]
        return times[0] if times else None
