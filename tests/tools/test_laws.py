# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import subprocess
import unittest
from unittest import mock

import support
from efa_tools import cache, laws


class Laws(support.TemporaryCache):
    def setUp(self):
        super().setUp()
        self.patch(mock.patch.object(cache, "CLONE", self.folder))
        subprocess.run(["git", "init", "--quiet", self.folder], check=True)

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def test_unsafe_outside_its_folders(self):
        self.write("efa_rs/verbs/qp.rs", "// unsafe is not used\n#![deny(unsafe_code)]\nlet x = unsafe { y };\n")
        self.write("efa_rs/rdma/device.rs", "unsafe impl Send for Device {}\n")
        self.write("efa_rs/sys.rs", "unsafe fn f() {}\n")
        self.assertEqual(laws.unsafe_in_its_folders(), ["efa_rs/verbs/qp.rs:3: let x = unsafe { y };"])

    def test_a_release_outside_its_folders(self):
        self.write("efa_rs/sys/irq.rs", "#[cfg(linux_7_4)]\n")
        self.write("efa_rs/com/reset.rs", "#[cfg(not(linux_7_4))]\n")
        self.assertEqual(laws.releases_in_their_folders(), ["efa_rs/com/reset.rs:1: #[cfg(not(linux_7_4))]"])

    def test_too_much_c(self):
        self.write("efa_rs/ffi/a.c", "int x;\n" * 200)
        self.assertEqual(laws.little_c(), [])
        self.write("efa_rs/ffi/b.h", "int y;\n" * 100)
        self.assertEqual(laws.little_c(), ["efa_rs/ffi/a.c: 200 lines", "efa_rs/ffi/b.h: 100 lines"])

    def test_a_mirror(self):
        self.write("README", "See https://www.debian.org/ and lists.debian.org.\n")
        self.assertEqual(laws.no_mirror(), [])
        self.write("run.sh", "apt http://deb." + "debian.org/debian\n")
        self.assertEqual(len(laws.no_mirror()), 1)


if __name__ == "__main__":
    unittest.main()
