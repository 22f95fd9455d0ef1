# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What QEMU makes of its options, without a guest."""

import contextlib
import json
import socket
import subprocess
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import support  # noqa: F401
import test_lab
from efa_tools import build, qemu

RUN = "/run/efa-rs/run"
# Seconds after which QEMU gives a device up by itself, and some for a busy host.
OWN_LIMIT, MORE = 5, 2


def lab_command(guest):
    """How efa-emu-lab starts a guest."""
    with mock.patch.object(test_lab.lab.Lab, "start") as start:
        lab = test_lab.lab.Lab(types.SimpleNamespace(folder=Path(), ssh_port=0, memory="1G", cpus=1, bios=None))
        lab.qemu, lab.accelerator = "qemu", "tcg"
        lab.start_guest(guest)
    return start.call_args.args[1]


class HostId(unittest.TestCase):
    def test_it_is_like_an_instances_and_another_for_each_guest(self):
        for number in (0, 1):
            option, value = qemu.host_id(number)
            self.assertRegex(value, f"^type=2,asset=i-0[0-9a-f]{{15}}{number}$")
            self.assertIn(f"{option} {value} ", " ".join(lab_command(number)))


class Answer(unittest.TestCase):
    """An emulator that does not answer."""

    def start(self, **properties):
        """Starts QEMU with a device of one; returns its output."""
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
        listener.settimeout(60)
        connection, _ = listener.accept()
        self.addCleanup(connection.close)
        return process

    def test_one_that_is_late_is_waited_for(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.fail(self.start().communicate(timeout=OWN_LIMIT + MORE)[0])

    def test_one_that_is_too_late_is_not(self):
        said, _ = self.start(**{"x-msg-timeout": 100}).communicate(timeout=60)
        self.assertIn("timed out waiting for reply", said)

    def test_the_lab_waits_as_long(self):
        self.assertEqual(json.loads(lab_command(0)[-1])["x-msg-timeout"], qemu.ANSWER_LIMIT)


if __name__ == "__main__":
    unittest.main()
