# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest
from unittest import mock

import support
from efa_tools import arm64, cache, steps, toolroot
from efa_tools.failure import Failure

RECIPE = """
mkdir -p "$1/root" "$1/tmp"
cd "$1/root"
for file in usr/bin/rustc usr/bin/qemu-system-x86_64 usr/libexec/virtiofsd usr/src/linux-source-9.8.tar.xz \\
	usr/lib/modules/9.8.99+deb13-cloud-amd64/vmlinuz.unsigned usr/lib/modules/9.8.99+deb13-amd64/vmlinuz.unsigned \\
	usr/lib/modules/9.9.3+deb13-cloud-amd64/vmlinuz.unsigned; do
	mkdir -p "$(dirname "$file")" && touch "$file"
done
"""


class Toolroot(support.TemporaryCache):
    def setUp(self):
        super().setUp()
        self.recipe("exit 1")
        self.patch(mock.patch.object(toolroot, "RECIPE", self.folder / "recipe.sh"))
        series = self.folder / "series"
        series.write_text("# the floor\n9.8 cloud-amd64 amd64\n9.9 cloud-amd64\n")
        floor, flavours, following = toolroot.read_series(series.read_text())
        self.patch(mock.patch.multiple(toolroot, SERIES_FILE=series, SERIES=floor, FLAVOURS=flavours, NEXT=following))
        self.patch(mock.patch("efa_tools.namespace.require"))

    def recipe(self, text):
        (self.folder / "recipe.sh").write_text(text)

    def test_a_recipe_that_fails_leaves_nothing(self):
        self.recipe("echo no network; exit 100")
        with self.assertRaises(Failure) as caught:
            toolroot.root()
        self.assertRegex(str(caught.exception), r"(?s)no network.*Making the toolroot failed \(exit status 100\)")
        self.assertFalse((cache.folder("toolroot") / toolroot.key()).exists())

    def test_a_changed_recipe_makes_a_new_one(self):
        self.recipe(RECIPE)
        first = toolroot.root()
        self.assertEqual(toolroot.root(), first)
        self.recipe(RECIPE + "# changed\n")
        second = toolroot.root()
        self.assertNotEqual(second, first)
        toolroot.SERIES_FILE.write_text("9.8 cloud-amd64\n")
        self.assertNotIn(toolroot.root(), (first, second))

    def test_a_damaged_one_is_made_again(self):
        self.recipe(RECIPE)
        (toolroot.root() / "usr/bin/rustc").unlink()
        self.assertTrue((toolroot.root() / "usr/bin/rustc").exists())

    def test_its_kernels(self):
        self.recipe(RECIPE)
        self.assertEqual(toolroot.kernel("amd64"), "9.8.99+deb13-amd64")
        self.assertEqual(toolroot.flavour_of("9.8.99+deb13-cloud-amd64"), "cloud-amd64")
        self.assertEqual(toolroot.flavour_of(toolroot.kernel("debug")), "debug")
        self.assertEqual(toolroot.kernel("debug"), "9.8.99-debug")
        self.assertEqual(toolroot.kernel("cloud-amd64-9.9"), "9.9.3+deb13-cloud-amd64")
        self.assertEqual(sorted([*toolroot.kernels(), *arm64.FLAVOURS]), sorted(toolroot.all_flavours()))
        self.assertEqual(toolroot.source("9.9.3+deb13-cloud-amd64"), "/usr/src/linux-source-9.9.tar.xz")

    def test_there_may_be_no_next_series(self):
        self.assertEqual(toolroot.read_series("9.8 cloud-amd64 amd64\n"), ("9.8", ("cloud-amd64", "amd64"), ()))

    def test_it_says_which_kernels_it_has(self):
        self.recipe(RECIPE + "echo 'choose-kernel: Linux 9.8 is 9.8.99+deb13 (9.8.99-1).' >&2\n")
        toolroot.root()
        steps.note.assert_any_call("Linux 9.8 is 9.8.99+deb13 (9.8.99-1).")

    def test_the_versions_of_packages(self):
        status = "Package: a\nStatus: install ok installed\nVersion: 1-1\n\nPackage: bb\nVersion: 2\n\nPackage: b\nVersion: 3~1\n"
        self.recipe(RECIPE + f"mkdir -p var/lib/dpkg && printf '%s' '{status}' >var/lib/dpkg/status\n")
        self.assertEqual(toolroot.versions("b", "a"), ["a 1-1", "b 3~1"])

    def test_a_wrong_kernel(self):
        self.recipe(RECIPE)
        with self.assertRaises(Failure) as caught:
            toolroot.flavour_of("6.1.0-1-amd64")
        self.assertEqual(
            str(caught.exception),
            "There is no kernel 6.1.0-1-amd64 in the toolroot: choose one of 9.8.99+deb13-amd64, 9.8.99+deb13-cloud-amd64, 9.8.99-debug,"
            " 9.9.3+deb13-cloud-amd64.",
        )

    def test_the_settings_of_apt_that_matter(self):
        dump = 'Acquire::Check-Valid-Until "false";\nAcquire::http::Proxy "http://p:1";\nAcquire::http "";\nDir "/";\n'
        with (
            mock.patch("shutil.which", return_value="/usr/bin/apt-config"),
            mock.patch("subprocess.run", return_value=mock.Mock(stdout=dump)),
        ):
            self.assertEqual(toolroot.apt_settings(), dump.splitlines()[:2])


if __name__ == "__main__":
    unittest.main()
