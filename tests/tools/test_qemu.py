# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Options of QEMU, without a guest."""

import json
import types
import unittest
from pathlib import Path
from unittest import mock

import support
import test_lab
from efa_tools import patience, qemu, topology

CPU = "processor\t: 0\nmodel name\t: one with svm\nflags\t\t: fpu svm avx2\n"


def lab_command(guest):
    """Returns the command line by which efa-emu-lab starts a guest."""
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


class Nodes(unittest.TestCase):
    def test_cpus_and_memory_are_divided(self):
        options = qemu.resources("1023M", 3, 2)
        backends = [f"memory-backend-memfd,id=memory{node},size={size}M,share=on" for node, size in enumerate((511, 512))]
        nodes = ["node,nodeid=0,memdev=memory0,cpus=0-0", "node,nodeid=1,memdev=memory1,cpus=1-2"]
        self.assertEqual(options[2:], ["-object", backends[0], "-numa", nodes[0], "-object", backends[1], "-numa", nodes[1]])

    def test_a_node_may_have_no_cpu(self):
        self.assertIn("node,nodeid=0,memdev=memory0", qemu.resources("512M", 1, 2))

    def test_devices_are_divided_in_their_order(self):
        parts, places = topology.of("p5.48xlarge,profile=efa2").places(32)
        switch = {part["id"]: part.get("bus") for part in parts}
        self.assertEqual([switch[place["bus"]] for place in places], [f"switch{number // 4}" for number in range(32)])

    def test_most_instances_have_none(self):
        for instance in (None, "c7gn.16xlarge"):
            self.assertEqual(topology.of(instance).places(1), ([], []))


class Answer(unittest.TestCase):
    def test_the_lab_waits_as_long(self):
        # The lab does not use EFA_PATIENCE.
        self.assertEqual(json.loads(lab_command(0)[-1])["x-msg-timeout"], 120_000)
        self.assertEqual(qemu.ANSWER_LIMIT, patience.PATIENCE * 1000)


class Kvm(support.TemporaryCache):
    """Choice of KVM, with stand-ins for the host's files."""

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
