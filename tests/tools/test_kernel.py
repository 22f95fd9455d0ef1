# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The kernel image of guests."""

import struct
import unittest
from pathlib import Path
from unittest import mock

import support
from efa_tools import build

RELEASE = "9.8.99+deb13-cloud-amd64"
SETUP_SECTORS, OFFSET, PACKED = 3, 100, b"packed"


def bzimage():
    """Returns an image with the compressed kernel OFFSET bytes behind the boot sector and the setup."""
    setup = bytearray((SETUP_SECTORS + 1) * 512)
    setup[0x1F1] = SETUP_SECTORS
    struct.pack_into("<II", setup, 0x248, OFFSET, len(PACKED) + 4)
    return bytes(setup) + bytes(OFFSET) + PACKED + struct.pack("<I", 1000) + b"more"


class Kernel(support.TemporaryCache):
    def setUp(self):
        super().setUp()
        (self.folder / "usr/lib/modules" / RELEASE).mkdir(parents=True)
        (self.folder / "usr/lib/modules" / RELEASE / "vmlinuz.unsigned").write_bytes(bzimage())
        for target, value in (("root", self.folder), ("key", "key"), ("flavour_of", "cloud-amd64")):
            self.patch(mock.patch(f"efa_tools.toolroot.{target}", return_value=value))
        self.patch(mock.patch("efa_tools.namespace.enter", side_effect=lambda root, command, binds, environment: [command, binds]))
        self.step = self.patch(mock.patch("efa_tools.steps.run"))

    def test_it_is_unpacked_once(self):
        for _ in range(2):
            file, ((folder, target, mode),) = build.image(RELEASE)
            self.assertEqual((Path(file), mode), (Path(target) / "vmlinux", "ro"))
            self.assertEqual((folder / "vmlinux.zst").read_bytes(), PACKED)
        self.step.assert_called_once()


if __name__ == "__main__":
    unittest.main()
