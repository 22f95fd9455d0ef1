# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Choices for arm64 kernels, without building any of them."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support
from efa_tools import arm64, build, check_arm64, cli, guest, namespace, qemu, suite, toolroot, userland
from efa_tools.failure import Failure

RELEASE = "7.3.4+deb13-arm64-16k"
OTHER = "7.3.4+deb13-cloud-amd64"
# Unpacks no packages, but creates the files that the recipe takes from them, and saves the list of packages.
MMDEBSTRAP = """#!/bin/sh
for argument; do
	case $argument in
	--include=*) echo "${argument#*=}" | tr , '\\n' >"$PACKAGES" ;;
	esac
	root=$argument
done
mkdir -p "$root/usr/share/base-passwd" "$root/usr/bin" "$root/etc" "$root/var"
touch "$root/usr/share/base-passwd/passwd.master" "$root/usr/share/base-passwd/group.master"
"""


class Arm64(unittest.TestCase):
    def setUp(self):
        for target, value in (
            ("efa_tools.toolroot.root", Path("/toolroot")),
            ("efa_tools.arm64.folder", Path("/made")),
            ("efa_tools.toolroot.key", "key"),
            ("efa_tools.toolroot.flavour_of", "some"),
        ):
            patcher = mock.patch(target, return_value=value)
            patcher.start()
            self.addCleanup(patcher.stop)

    def test_is_known_by_the_release(self):
        self.assertTrue(arm64.is_release("7.3.4+deb13-cloud-arm64"))
        self.assertTrue(arm64.is_release(RELEASE))
        self.assertFalse(arm64.is_release(OTHER))
        self.assertFalse(arm64.is_release("7.3.4-debug"))

    def test_has_a_root_of_its_own(self):
        self.assertEqual(toolroot.root_of(OTHER), Path("/toolroot"))
        self.assertEqual(toolroot.root_of(RELEASE).lowers, [Path("/made/layer"), Path("/toolroot")])
        self.assertEqual(toolroot.modules_of(OTHER), Path("/toolroot/usr/lib/modules"))
        self.assertEqual(toolroot.modules_of(RELEASE), Path("/made/layer/usr/lib/modules"))
        self.assertEqual(build.image(RELEASE)[0], f"/usr/lib/modules/{RELEASE}/vmlinuz")

    def test_guests_have_one_too(self):
        with (
            mock.patch("efa_tools.cache.make", side_effect=lambda path, *_: path),
            mock.patch("efa_tools.cache.folder", return_value=Path("/cache")),
        ):
            folder, binds = userland.share("stable", RELEASE)
            self.assertEqual(folder, userland.MOUNT)
            self.assertEqual(binds[1][0], Path("/made/layer/usr/lib/modules"))
            self.assertEqual(userland.share("stable", OTHER), ("/", []))
            with self.assertRaisesRegex(Failure, "no userland 'next' for arm64"):
                userland.root("next", RELEASE)

    def test_has_longer_time_limits(self):
        self.assertEqual(arm64.slowness("cloud-amd64", "amd64"), 1)
        self.assertEqual(arm64.slowness("arm64-16k"), arm64.SLOW)
        self.assertEqual(arm64.slowness("cloud-amd64", "cloud-arm64"), arm64.SLOW)

    def test_pages_are_larger_with_one_kernel(self):
        self.assertEqual([arm64.page_size(flavour) for flavour in arm64.FLAVOURS], [4096, 4096, 16384])

    def test_each_job_has_what_it_needs(self):
        jobs = check_arm64.everything()
        names = [job.name for job in jobs]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual([need for job in jobs for need in job.after if need not in names and "debug" not in need], [])

    def test_a_request_of_a_share_is_at_most_what_virtiofsd_takes(self):
        self.assertEqual(arm64.share_queue("arm64-16k") * arm64.page_size("arm64-16k"), 1 << 20)

    def test_guests_can_be_of_two_architectures(self):
        self.assertEqual(guest.Options(None, flavour="a", guests=3).flavours(), ["a", "a", "a"])
        self.assertEqual(guest.Options(None, flavour="a", others="b", guests=3).flavours(), ["a", "b", "b"])
        self.assertEqual(guest.Options(None, flavour="a", others="b").flavours(), ["a"])

    def test_has_a_machine_without_a_pc(self):
        command = arm64.machine("/vmlinuz", "1G", 2, "quiet")
        self.assertEqual(command[0], "qemu-system-aarch64")
        self.assertIn("virt,gic-version=3,memory-backend=memory", command)
        self.assertFalse([option for option in qemu.hotplug([{}], "/monitor", foreign=True) if "ICH9" in option])
        self.assertTrue([option for option in qemu.hotplug([{}], "/monitor") if "ICH9" in option])
        self.assertEqual(qemu.accelerator(RELEASE), "tcg")

    def test_is_an_architecture_of_the_command_line(self):
        self.assertEqual(cli.cloud_flavour("arm64"), "cloud-arm64")
        with self.assertRaises(cli.argparse.ArgumentTypeError):
            cli.cloud_flavour("sparc")
        output = subprocess.run(
            ["make", "--dry-run", "module", "ARCH=arm64"], cwd=support.CLONE, capture_output=True, text=True, check=False
        ).stdout
        self.assertIn("--flavour cloud-arm64", output)


class Programs(unittest.TestCase):
    """Execution of arm64 programs."""

    def test_only_they_take_a_user_namespace_of_root(self):
        with mock.patch("efa_tools.namespace.unshare", return_value=["unshare"]), mock.patch("os.geteuid", return_value=0):
            self.assertEqual(namespace.enter("/root", ["true"])[0], "unshare")
            command = namespace.enter("/root", ["true"], emulator="/qemu")
        self.assertEqual((Path(command[1]).name, command[2]), ("mapped.py", "unshare"))
        self.assertIn("--emulator /qemu /root", " ".join(map(str, command)))

    @unittest.skipUnless(os.geteuid() == 0, "is for root")
    def test_ids_are_what_they_are_outside(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chown(folder, 1234, 5678)
            script = f"stat --format '%u %g' {folder}; readlink /proc/self/ns/user; exit 3"
            command = [sys.executable, Path(namespace.__file__).with_name("mapped.py"), "sh", "-c", script]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        ids, own = done.stdout.splitlines()
        self.assertEqual((done.returncode, ids), (3, "1234 5678"), done.stderr)
        self.assertNotEqual(own, os.readlink("/proc/self/ns/user"))


class Root(support.TemporaryCache):
    """The guests' root, made by the recipe with a stand-in for mmdebstrap."""

    def setUp(self):
        super().setUp()
        program = self.folder / "bin/mmdebstrap"
        program.parent.mkdir()
        program.write_text(MMDEBSTRAP)
        program.chmod(0o755)
        self.root, packages = self.folder / "root", self.folder / "packages"
        environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PACKAGES": str(packages)}
        subprocess.run(["sh", arm64.RECIPE, self.root], env=environment, check=True)
        self.packages = packages.read_text().splitlines()

    def test_has_the_programs_that_guests_are_told_to_run(self):
        with mock.patch("efa_tools.suite.in_guest", return_value=(None, None)) as in_guest:
            suite.kselftest("rust", arm64.FLAVOURS[0])
        self.assertIn(in_guest.call_args.args[1].split()[0], self.packages)

    def test_has_the_folders_into_which_the_first_process_links(self):
        init = (namespace.TOOLS / "guest/init").read_text()
        folders = set(re.findall(r"ln -s \S+ (/usr/local/\S+)/", init))
        self.assertEqual([folder for folder in folders if not (self.root / folder.lstrip("/")).is_dir()], [])
        self.assertTrue(folders)


if __name__ == "__main__":
    unittest.main()
