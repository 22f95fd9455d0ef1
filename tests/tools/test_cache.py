# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import collections
import os
import select
import signal
import subprocess
import unittest
from pathlib import Path
from unittest import mock

import support
from efa_tools import cache, guest, namespace
from efa_tools.failure import Failure

MAKE = """
import os, signal, sys, time
from efa_tools import cache
def build(path):
    path.mkdir()
    with open(cache.folder() / "builds", "a") as file:
        file.write("x")
    {action}
    (path / "whole").touch()
cache.make(cache.folder("thing") / "key", "the thing", 0.001, build)
"""

RUN = """
from efa_tools import guest
print(guest.new_folder(), flush=True)
input()
"""


class Cache(support.TemporaryCache):
    def made(self):
        return cache.folder("thing") / "key" / "whole"

    def builds(self):
        return len((cache.folder() / "builds").read_text())

    def test_what_is_there_is_not_made_again(self):
        for _ in range(2):
            self.assertEqual(self.python(MAKE.format(action="pass")).wait(), 0)
        self.assertEqual(self.builds(), 1)

    def test_a_killed_build_is_made_afresh(self):
        killed = self.python(MAKE.format(action="os.kill(os.getpid(), signal.SIGKILL)"))
        self.assertEqual(killed.wait(), -signal.SIGKILL)
        self.assertFalse(self.made().parent.exists())
        self.assertEqual(self.python(MAKE.format(action="assert not os.listdir(path)")).wait(), 0)
        self.assertTrue(self.made().exists())
        self.assertEqual(self.builds(), 2)

    def test_a_failed_build_leaves_nothing(self):
        failed = self.python(MAKE.format(action="raise OSError(28, 'full')"), stderr=subprocess.DEVNULL)
        self.assertEqual(failed.wait(), 1)
        self.assertEqual(list(self.made().parent.parent.iterdir()), [])

    def test_two_runs_at_once_share_the_work(self):
        go = self.folder / "go"
        script = MAKE.format(action=f"while not os.path.exists({str(go)!r}): time.sleep(0.01)")
        runs = [self.python(script, stderr=subprocess.PIPE) for _ in range(2)]
        # The waiting run prints a message while the other one builds.
        ready, _, _ = select.select([run.stderr for run in runs], [], [], support.PATIENCE)
        self.assertIn("waiting for another run", ready[0].readline())
        go.touch()
        for run in runs:
            run.communicate()
        self.assertEqual([run.returncode for run in runs], [0, 0])
        self.assertEqual(self.builds(), 1)

    def run_folder(self, script=RUN):
        """Starts a run that waits for input; returns its process and its folder."""
        process = self.python(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.stdout.close)
        return process, Path(process.stdout.readline().strip())

    def end(self, process):
        process.communicate("\n")
        self.assertEqual(process.returncode, 0)

    def ended(self, name, clone=None, *marks):
        """Creates the folder of a run that ended long ago."""
        folder = cache.folder("runs", name)
        for mark in marks:
            (folder / mark).touch()
        if clone:
            (folder / guest.CLONE_FILE).write_text(str(clone))
        os.utime(folder, (int(name), int(name)))
        return folder

    def test_the_folder_of_a_run_stays_until_it_ends(self):
        first, folder = self.run_folder()
        os.utime(folder, (0, 0))
        for number in range(1, guest.KEPT_RUNS + 1):
            self.ended(str(number), cache.CLONE)
        for process in (first, self.run_folder()[0]):
            self.assertTrue(folder.exists())
            self.end(process)
        last, newest = self.run_folder()
        self.assertFalse(folder.exists())
        self.assertTrue(newest.exists())
        self.end(last)

    def test_of_a_clone_the_newest_runs_are_kept(self):
        ours = [self.ended(str(number), cache.CLONE) for number in range(1, guest.KEPT_RUNS + 3)]
        self.end(self.run_folder()[0])
        self.assertEqual([folder.exists() for folder in ours], [False] * 2 + [True] * guest.KEPT_RUNS)

    def test_runs_of_others_are_left_alone(self):
        others = [self.ended(str(number), self.folder) for number in range(1, guest.KEPT_RUNS + 3)]
        self.end(self.run_folder()[0])
        self.assertTrue(all(folder.exists() for folder in others))

    def test_runs_of_clones_that_are_gone_go(self):
        gone, nobodys = self.ended("1", "/nonexistent/clone"), self.ended("2")
        self.end(self.run_folder()[0])
        self.assertFalse(gone.exists() or nobodys.exists())

    def test_runs_that_have_just_ended_are_kept(self):
        ours = [cache.folder("runs", str(number)) for number in range(guest.KEPT_RUNS + 3)]
        for folder in ours:
            (folder / guest.CLONE_FILE).write_text(str(cache.CLONE))
        self.end(self.run_folder()[0])
        self.assertTrue(all(folder.exists() for folder in ours))

    def test_a_run_can_be_kept(self):
        process, folder = self.run_folder(RUN.replace("new_folder()", "new_folder(keep=True)"))
        self.end(process)
        os.utime(folder, (1, 1))
        for number in range(2, guest.KEPT_RUNS + 4):
            self.ended(str(number), cache.CLONE)
        self.end(self.run_folder()[0])
        self.assertTrue(folder.exists())
        self.assertFalse((folder.parent / "2").exists())

    def test_a_run_in_a_folder_of_ones_own(self):
        folder = self.folder / "mine"
        self.assertEqual(guest.output_folder(folder, None), folder)
        (folder / "shared").mkdir()
        # Another attempt to boot begins with an empty folder.
        self.assertEqual(guest.output_folder(folder, folder), folder)
        self.assertEqual(list(folder.iterdir()), [])
        (folder / "precious").touch()
        with self.assertRaisesRegex(Failure, "mine is not empty"):
            guest.output_folder(folder, None)
        with self.assertRaisesRegex(Failure, "cannot be used .File exists."):
            guest.output_folder(folder / "precious", None)

    def test_no_space(self):
        usage = collections.namedtuple("usage", "total used free")(1e9, 1e9 - 5e8, 5e8)
        with mock.patch("shutil.disk_usage", return_value=usage), self.assertRaises(Failure) as caught:
            cache.require_space(6, "the toolroot")
        self.assertRegex(str(caught.exception), r"no room for the toolroot: it needs 6 GB in .* and 0\.5 GB are free")

    def test_no_cache_folder(self):
        (self.folder / "file").touch()
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.folder / "file")}), self.assertRaises(Failure) as caught:
            cache.folder()
        self.assertIn("set XDG_CACHE_HOME", str(caught.exception))

    def test_the_key_depends_on_each_part(self):
        self.assertEqual(cache.key("a", "b"), cache.key("a", "b"))
        self.assertNotEqual(cache.key("a", "b"), cache.key("ab"))


class Namespace(unittest.TestCase):
    def as_user(self):
        namespace.unshare.cache_clear()
        self.addCleanup(namespace.unshare.cache_clear)
        for patcher in (mock.patch("os.geteuid", return_value=1), mock.patch("shutil.which", return_value="/bin/x")):
            self.addCleanup(patcher.stop)
            patcher.start()

    def test_a_user_without_subordinate_ids(self):
        self.as_user()
        with mock.patch.object(namespace, "has_subordinate_ids", return_value=False), self.assertRaises(Failure) as caught:
            namespace.unshare()
        self.assertRegex(str(caught.exception), "/etc/subuid gives the user daemon no subordinate ids.*usermod --add-subuids")

    def test_a_system_that_forbids_user_namespaces(self):
        self.as_user()
        refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")
        with (
            mock.patch.object(namespace, "has_subordinate_ids", return_value=True),
            mock.patch("subprocess.run", return_value=refused),
            self.assertRaises(Failure) as caught,
        ):
            namespace.unshare()
        self.assertRegex(str(caught.exception), "does not let the user daemon make namespaces .*Operation not permitted")

    def test_a_missing_tool_is_named_with_its_package(self):
        with (
            mock.patch("os.geteuid", return_value=1),
            mock.patch("shutil.which", return_value=None),
            self.assertRaises(Failure) as caught,
        ):
            namespace.require("newuidmap", "uidmap")
        self.assertEqual(str(caught.exception), "The program newuidmap is missing: install the package uidmap.")

    def test_root_installs_a_missing_tool(self):
        found = {"apt-get": "/usr/bin/apt-get"}

        def run(command, **_):
            if "install" in command:
                found["mmdebstrap"] = "/usr/bin/mmdebstrap"

        with (
            mock.patch("os.geteuid", return_value=0),
            mock.patch("shutil.which", side_effect=found.get),
            mock.patch("subprocess.run", side_effect=run) as called,
        ):
            namespace.require("mmdebstrap", "mmdebstrap")
        self.assertEqual([call.args[0][1] for call in called.call_args_list], ["update", "install"])


if __name__ == "__main__":
    unittest.main()
