# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Changed root file systems, and guests that use them."""

import subprocess
import tempfile
import unittest
from pathlib import Path

from support import CLONE, tool
from efa_tools import overlay, toolroot
from efa_tools.failure import Failure


class Root(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "root"

    def change(self, command):
        result = tool("vm", "root", str(self.folder), command)
        return result.returncode, result.stdout, result.stderr

    def test_what_is_changed_stays_there_and_only_there(self):
        self.assertEqual(self.change("echo one >/usr/bin/made; rm /usr/bin/perftest_bw /usr/bin/NPopenmpi; exit 3")[0], 3)
        self.assertEqual(self.change("cat /usr/bin/made; ls /usr/bin/NPopenmpi || touch /efa-rs/x")[1], "one\n")
        self.assertFalse((toolroot.root() / "usr/bin/made").exists())
        self.assertTrue((toolroot.root() / "usr/bin/NPopenmpi").exists())
        self.assertFalse((CLONE / "x").exists())

    def test_a_guest_has_what_was_changed(self):
        self.assertEqual(self.change("echo 'echo installed' >/usr/bin/made; chmod +x /usr/bin/made; rm /usr/bin/NPopenmpi")[0], 0)
        # As in an unprivileged user's root, this is no device.
        (self.folder / "upper" / "dev").mkdir(exist_ok=True)
        (self.folder / "upper" / "dev" / "null").touch()
        command = "made; ls /usr/bin/NPopenmpi 2>/dev/null; echo changed >/usr/bin/made; cat /usr/bin/made"
        result = tool("vm", "--driver", "none", "--cpus", "1", "--overlay", str(self.folder), command)
        self.assertEqual((result.returncode, result.stdout), (0, "installed\nchanged\n"), result.stderr)
        # A guest's changes are discarded at its end.
        self.assertEqual(self.change("made")[1], "installed\n")

    def test_one_at_a_time_changes_it_and_no_guest_has_it_then(self):
        program = [CLONE / "tools" / "vm", "root", self.folder, "echo here; cat"]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.readline(), "here\n")
            self.assertRegex(self.change("true")[2], "The root .*root is in use: wait")
            with self.assertRaisesRegex(Failure, "The root .*root is being changed: wait"):
                overlay.use(self.folder, "stable", toolroot.kernel("cloud-amd64"))
            process.stdin.close()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.change("true")[0], 0)

    def test_no_root(self):
        with self.assertRaisesRegex(Failure, "There is no root in /nowhere: make one by tools/vm root /nowhere COMMAND"):
            overlay.use(Path("/nowhere"), "stable", toolroot.kernel("cloud-amd64"))

    def test_a_root_of_another_toolroot(self):
        self.folder.mkdir()
        (self.folder / "of").write_text("/older")
        with self.assertRaisesRegex(Failure, "was made of /older, and guests now have .*: remove it, and make it again"):
            overlay.use(self.folder, "stable", toolroot.kernel("cloud-amd64"))


if __name__ == "__main__":
    unittest.main()
