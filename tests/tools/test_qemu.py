# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What QEMU makes of its options, without a guest."""

import json
import types
import unittest
from pathlib import Path
from unittest import mock

import support
import test_lab
from efa_tools import patience, qemu

CPU = "processor\t: 0\nmodel name\t: one with svm\nflags\t\t: fpu svm avx2\n"


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
    def test_the_lab_waits_as_long(self):
        # Which has no EFA_PATIENCE.
        self.assertEqual(json.loads(lab_command(0)[-1])["x-msg-timeout"], 120_000)
        self.assertEqual(qemu.ANSWER_LIMIT, patience.PATIENCE * 1000)


class Kvm(support.TemporaryCache):
    """Whether it is used, on hosts that are stand-ins."""

    def setUp(self):
        super().setUp()
        self.boots = self.patch(mock.patch.object(qemu, "boots_with_kvm", return_value=True))
        self.patch(mock.patch.multiple(qemu, KVM=self.file("kvm", ""), CPUS=self.file("cpuinfo", CPU), BOOT=self.file("boot_id", "1")))

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_it_is_tried_once(self):
        self.assertEqual([qemu.accelerator() for _ in range(2)], ["kvm", "kvm"])
        self.assertEqual(self.boots.call_count, 1)

    def test_it_is_tried_again_once_the_host_was_booted(self):
        self.boots.return_value = False
        self.assertEqual([qemu.accelerator() for _ in range(2)], ["tcg", "tcg"])
        self.boots.return_value = True
        self.file("boot_id", "2")
        self.assertEqual(qemu.accelerator(), "kvm")
        self.assertEqual((self.boots.call_count, len(list((self.folder / "efa-rs").glob("kvm-*")))), (2, 1))

    def test_a_cpu_that_cannot_is_not_asked(self):
        self.file("cpuinfo", CPU.replace(" svm ", " "))
        self.assertEqual(qemu.accelerator(), "tcg")
        (self.folder / "kvm").unlink()
        self.file("cpuinfo", CPU)
        self.assertEqual(qemu.accelerator(), "tcg")
        self.boots.assert_not_called()


if __name__ == "__main__":
    unittest.main()
