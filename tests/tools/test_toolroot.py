# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest
from unittest import mock

import support
from efa_tools import cache, toolroot
from efa_tools.failure import Failure

RECIPE = """
mkdir -p "$1/root" "$1/tmp"
cd "$1/root"
for file in usr/bin/rustc usr/bin/qemu-system-x86_64 usr/libexec/virtiofsd usr/src/linux-source-7.2.tar.xz \\
	usr/lib/modules/7.2.99+deb13-cloud-amd64/vmlinuz usr/lib/modules/7.2.99+deb13-amd64/vmlinuz \\
	usr/lib/modules/7.3.9+deb13-cloud-amd64/vmlinuz; do
	mkdir -p "$(dirname "$file")" && touch "$file"
done
"""


class Toolroot(support.TemporaryCache):
    def setUp(self):
        super().setUp()
        self.recipe("exit 1")
        self.patch(mock.patch.object(toolroot, "RECIPE", self.folder / "recipe.sh"))
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
        self.assertNotEqual(toolroot.root(), first)

    def test_a_damaged_one_is_made_again(self):
        self.recipe(RECIPE)
        (toolroot.root() / "usr/bin/rustc").unlink()
        self.assertTrue((toolroot.root() / "usr/bin/rustc").exists())

    def test_its_kernels(self):
        self.recipe(RECIPE)
        self.assertEqual(toolroot.kernel("amd64"), "7.2.99+deb13-amd64")
        self.assertEqual(toolroot.flavour_of("7.2.99+deb13-cloud-amd64"), "cloud-amd64")
        self.assertEqual(toolroot.flavour_of(toolroot.kernel("debug")), "debug")
        self.assertEqual(toolroot.kernel("debug"), "7.2.99-debug")
        self.assertEqual(toolroot.kernel(toolroot.NEXT), "7.3.9+deb13-cloud-amd64")
        self.assertEqual(sorted(toolroot.kernels()), sorted(toolroot.all_flavours()))
        self.assertEqual(toolroot.source("7.3.9+deb13-cloud-amd64"), "/usr/src/linux-source-7.3.tar.xz")

    def test_a_wrong_kernel(self):
        self.recipe(RECIPE)
        with self.assertRaises(Failure) as caught:
            toolroot.flavour_of("6.1.0-1-amd64")
        self.assertEqual(
            str(caught.exception),
            "There is no kernel 6.1.0-1-amd64 in the toolroot: choose one of 7.2.99+deb13-amd64, 7.2.99+deb13-cloud-amd64, 7.2.99-debug,"
            " 7.3.9+deb13-cloud-amd64.",
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
