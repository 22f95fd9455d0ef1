# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Reports on runs in which a process is killed. Each run is a script in place of tools/vm."""

import json
import subprocess
import unittest

import support

# A run that leaves nothing behind: the end of either of its processes is the end of the other.
GOOD = """
echo "==> logs in $FOLDER" >&2
setpriv --pdeathsig KILL sleep 9999 &
wait $! && echo "the device was used"
echo "a part was killed"
exit 1
"""
KILL = """
import json, os, sys, time
from pathlib import Path
from efa_tools import disturb

class Chance:
    def uniform(self, low, high):
        return low

    def choice(self, parts):
        # All have to be there first.
        found = {}
        while "sleep" not in found:
            time.sleep(0.01)
            found = {disturb.name_of(pid): pid for pid in disturb.tree(parts[0])}
        return found[sys.argv[2]]

disturb.VM = Path(sys.argv[1])
disturb.END_LIMIT, disturb.STRAY_LIMIT = map(float, sys.argv[3:])
disturb.adopt_orphans()
tally, _ = disturb.kill_one(0, 0, Chance())
print(json.dumps([tally.cases[0].name, tally.cases[0].said]))
for pid in disturb.children(os.getpid()):
    os.kill(pid, 9)
"""


class Kill(support.TemporaryCache):
    def kill(self, script, name, end=support.PATIENCE, stray=support.PATIENCE):
        """Kills a run's process of this name; returns the reported problem."""
        program = self.folder / "vm"
        program.write_text(f"#!/bin/sh\nFOLDER={self.folder}\n{script}")
        program.chmod(0o755)
        process = self.python(
            f"import sys; sys.argv[1:] = {[str(program), name, str(end), str(stray)]}\n{KILL}",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        printed, errors = process.communicate()
        self.assertEqual(process.returncode, 0, errors)
        title, said = json.loads(printed)
        self.assertIn(f"kill 0: {name}{' itself' * (name == 'vm')}, after ", title)
        return said

    def test_nothing_is_left(self):
        for name in ("vm", "sleep"):
            self.assertEqual(self.kill(GOOD, name), "")

    def test_a_process_is_left(self):
        self.assertRegex(self.kill(GOOD.replace("setpriv --pdeathsig KILL ", ""), "vm", stray=0), r"^sleep \(\d+\) is left")

    def test_a_socket_is_left(self):
        make = f"python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"{self.folder}/socket\")'\n"
        self.assertRegex(self.kill(make + GOOD, "sleep"), "^the socket .*/socket is left")

    def test_it_does_not_end(self):
        self.assertRegex(self.kill(GOOD.replace("exit 1", "exec sleep 9999"), "sleep", end=1), r"^it did not end within 1\.0 s")

    def test_it_does_not_notice(self):
        self.assertRegex(self.kill(GOOD.replace("exit 1", "exit 0"), "sleep"), "^it passed although a process was killed")


if __name__ == "__main__":
    unittest.main()
