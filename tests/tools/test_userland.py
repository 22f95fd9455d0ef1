# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest
from pathlib import Path
from unittest import mock

import support
from support import tool
from efa_tools import cache, toolroot, userland
from efa_tools.failure import Failure

RECIPE = 'mkdir -p "$1/usr/lib/modules"\n'


class Userland(support.TemporaryCache):
    """A userland that is made by a recipe of the test, with a stand-in for the toolroot."""

    def setUp(self):
        super().setUp()
        self.recipe(RECIPE)
        self.patch(mock.patch.object(userland, "RECIPE", self.folder / "userland.sh"))
        self.patch(mock.patch.object(toolroot, "root", return_value=Path("/toolroot")))
        self.entered = self.patch(mock.patch("efa_tools.layer.enter", side_effect=self.enter))

    def recipe(self, text):
        (self.folder / "userland.sh").write_text(text)

    def enter(self, command, binds):
        [(path, _, _)] = binds
        return ["sh", str(userland.RECIPE), str(path / Path(command[2]).name)]

    def test_it_is_made_once(self):
        first = userland.root("next")
        self.assertEqual(userland.root("next"), first)
        self.assertEqual(self.entered.call_count, 1)

    def test_a_changed_recipe_makes_a_new_one(self):
        first = userland.root("next")
        self.recipe(RECIPE + "# changed\n")
        self.assertNotEqual(userland.root("next"), first)

    def test_another_toolroot_does_not(self):
        first = userland.root("next")
        with mock.patch.object(toolroot, "key", return_value="another"):
            self.assertEqual(userland.root("next"), first)

    def test_a_recipe_that_fails_leaves_nothing(self):
        self.recipe(RECIPE + "echo no network; exit 25\n")
        with self.assertRaises(Failure) as caught:
            userland.root("next")
        self.assertRegex(str(caught.exception), r"(?s)no network.*\nMaking the next userland failed \(exit status 25\)\. The end")
        self.assertFalse((cache.folder("userland") / userland.key()).exists())

    def test_a_guest_has_it_with_the_modules_of_the_toolroot(self):
        folder, binds = userland.share("next")
        made = userland.root("next")
        modules = (Path("/toolroot/usr/lib/modules"), f"{folder}/usr/lib/modules", "ro")
        self.assertEqual(binds, [(made, folder, "ro"), modules])
        self.assertTrue((made / "usr/lib/modules").is_dir())

    def test_a_guest_has_the_toolroot_unless_told_otherwise(self):
        self.assertEqual((userland.root("stable"), userland.share("stable")), (Path("/toolroot"), ("/", [])))
        self.assertEqual(self.entered.call_count, 0)


class Choice(unittest.TestCase):
    def test_a_wrong_one(self):
        for program, arguments in (("vm", ["true"]), ("check", ["rdma-core"]), ("check", ["rdma-core-diff"])):
            command = [*arguments, "--userland=sid"] if program == "check" else ["--userland=sid", *arguments]
            result = tool(program, *command)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertEqual(result.stderr, "There is no userland 'sid': choose one of stable, next.\n")


if __name__ == "__main__":
    unittest.main()
