# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What the driver does about a device that has failed, and when the RDMA core tells programs, in the order of the kernel's trace."""

import os
import re
from pathlib import Path

from selftest import Failed
from tracing import dynamic_event

INSTANCE = Path("/sys/kernel/tracing/instances/efa_life")
EVENTS = INSTANCE / "events"
# The core's function that gives a program an event, and the number of this one. In the debug kernel it is of no module.
MODULE = "ib_uverbs:" if Path("/sys/module/ib_uverbs/initstate").exists() else ""
PROBE, FUNCTION, DEVICE_FATAL = "efa_life/told", f"{MODULE}ib_uverbs_async_handler", 8
# Time, event and what it says.
LINE = re.compile(r" (?P<seconds>\d+\.\d+): (?P<event>efa_reset|efa_state|told): (?P<text>.*)$", re.MULTILINE)
ENOUGH = 1 << 16
# A recovery: programs get one event for this failure, before the driver tries to restart the device, which may wait.
RECOVERY = re.compile(r"reset (?P<cause>\w+)( state resetting)+( told)+( state resetting)*( state up)?")


class Detections:
    """Those from now on. The C driver, which resets nothing, has none."""

    def __init__(self):
        INSTANCE.mkdir(exist_ok=True)
        # That of timing.py.
        (INSTANCE / "trace_clock").write_text("mono")
        if not (EVENTS / PROBE).exists():
            dynamic_event(f"p:{PROBE} {FUNCTION} event=$arg3:u64")
        (EVENTS / PROBE / "filter").write_text(f"event == {DEVICE_FATAL}")
        (EVENTS / PROBE / "enable").write_text("1")
        self.pipe = os.open(INSTANCE / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.text = ""

    def listen(self):
        """Forgets what was, and takes notice of what comes: a module that is loaded anew has new tracepoints."""
        for event in ("efa_reset", "efa_state"):
            enable = EVENTS / "efa" / event / "enable"
            if enable.exists() and enable.read_text().strip() != "1":
                enable.write_text("1")
        self.read()
        self.text = ""

    def read(self):
        while True:
            try:
                self.text += os.read(self.pipe, ENOUGH).decode(errors="replace")
            except BlockingIOError:
                return

    def of(self, function):
        """The events of a device, as pairs of a time and a text. The trace does not have the device of a program's event."""
        self.read()
        found = []
        for match in LINE.finditer(self.text):
            address, _, text = match["text"].partition(" ")
            if match["event"] == "told":
                found.append((float(match["seconds"]), "told"))
            elif address == function.address:
                found.append((float(match["seconds"]), f"{match['event'].removeprefix('efa_')} {text}"))
        return found

    def first(self, function):
        """When the reset of a device was found to be due."""
        times = [seconds for seconds, text in self.of(function) if text.startswith("reset ")]
        if not times:
            raise Failed("programs get no event for a detected failure")
        return times[0]

    def check_order(self, function):
        """Fails unless programs got their event in the midst of one recovery, before the driver continued."""
        said = " ".join(text for _, text in self.of(function))
        if not RECOVERY.fullmatch(said):
            raise Failed(f"programs do not get their event before anything else happens: {said}")
