# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Reactions of the driver to a failed device, and the RDMA core's events to programs, in the order of the kernel's trace."""

import os
import re
from pathlib import Path

from selftest import Failed
from tracing import dynamic_event

INSTANCE = Path("/sys/kernel/tracing/instances/efa_life")
EVENTS = INSTANCE / "events"
# The core's function that queues an event for a program, and the number of this event. In the debug kernel the core is built in.
MODULE = "ib_uverbs:" if Path("/sys/module/ib_uverbs/initstate").exists() else ""
PROBE, FUNCTION, DEVICE_FATAL = "efa_life/notified", f"{MODULE}ib_uverbs_async_handler", 8
# An event and its text.
LINE = re.compile(r" \d+\.\d+: (?P<event>efa_reset|efa_state|notified): (?P<text>.*)$", re.MULTILINE)
ENOUGH = 1 << 16
# A recovery: programs get one event for this failure, before the driver tries to restart the device. The restart may be delayed.
RECOVERY = re.compile(r"reset \w+( state resetting)+( notified)+( state resetting)*( state up)?")
# The same if the bus resets the device. The driver announces the end of that reset 10 s after its begin at the latest, also if some
# programs have no event yet. It restarts the device after the last event.
BUS_RESET = re.compile(r"reset requested state resetting( notified)+ state resetting( notified)+( state resetting)*( state up)?")


class Detections:
    """Detected failures from now on. The C driver does not reset devices in use, and has none."""

    def __init__(self):
        INSTANCE.mkdir(exist_ok=True)
        # One clock of all processors, so that the order of events is theirs.
        (INSTANCE / "trace_clock").write_text("mono")
        if not (EVENTS / PROBE).exists():
            dynamic_event(f"p:{PROBE} {FUNCTION} event=$arg3:u64")
        (EVENTS / PROBE / "filter").write_text(f"event == {DEVICE_FATAL}")
        (EVENTS / PROBE / "enable").write_text("1")
        self.pipe = os.open(INSTANCE / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.text = ""

    def listen(self):
        """Discards earlier events, and enables tracepoints that are off: a reloaded module has new ones."""
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
        """Returns the events of a device, as texts. It adds all events of programs, which do not name a device."""
        self.read()
        found = []
        for match in LINE.finditer(self.text):
            address, _, text = match["text"].partition(" ")
            if match["event"] == "notified":
                found.append("notified")
            elif address == function.address:
                found.append(f"{match['event'].removeprefix('efa_')} {text}")
        return found

    def check_order(self, function):
        """Fails unless there was one recovery, and programs got their event before the driver continued it."""
        order = " ".join(self.of(function))
        if not (RECOVERY.fullmatch(order) or BUS_RESET.fullmatch(order)):
            raise Failed(f"programs do not get their event before anything else happens: {order}")
