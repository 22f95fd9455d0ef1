# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""How long QEMU waits for an emulator that does not answer."""

import contextlib
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

import support
from efa_tools import build, qemu

RUN = "/run/efa-rs/run"
# QEMU's own timeout for a device's answer, and a margin, in seconds.
OWN_LIMIT, MORE = 5, 2


class Answer(unittest.TestCase):
    """An emulator that does not answer."""

    def start(self, **properties):
        """Starts QEMU with a device of such an emulator; returns the process."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(str(Path(folder.name) / "efa"))
        listener.listen()
        command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-S"]
        command += qemu.device({**qemu.efa(f"{RUN}/efa"), **properties})
        binds = [(folder.name, RUN, "rw")]
        process = subprocess.Popen(build.in_toolroot(command, binds), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        listener.settimeout(support.PATIENCE)
        connection, _ = listener.accept()
        self.addCleanup(connection.close)
        return process

    def test_one_that_is_late_is_waited_for(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.fail(self.start().communicate(timeout=OWN_LIMIT + MORE)[0])

    def test_one_that_is_too_late_is_not(self):
        said, _ = self.start(**{"x-msg-timeout": 100}).communicate(timeout=support.PATIENCE)
        self.assertIn("timed out waiting for reply", said)


if __name__ == "__main__":
    unittest.main()
