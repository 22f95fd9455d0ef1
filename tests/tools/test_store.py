# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import itertools
import os
import select
import subprocess
import unittest
from pathlib import Path
from unittest import mock

import support
from efa_tools import cache, store
from efa_tools.failure import Failure

CLAIM = """
from pathlib import Path
from efa_tools import cache
print(cache.claim(cache.folder("clone"), Path({owner!r})), flush=True)
input()
"""
BUILD = """
import pathlib, sys, time
from efa_tools import cache, store
cache.CLONE = pathlib.Path({clone!r})
def make():
    with open(cache.folder() / "builds", "a") as file:
        file.write("x")
    {action}
    (cache.folder() / "made").write_text("built")
    return [cache.folder() / "made"]
print(store.build("thing", ["source"], (), "the thing", 0.001, make))
"""


class Clone(support.TemporaryCache):
    """A clone with a folder of sources."""

    def setUp(self):
        super().setUp()
        self.clone = self.folder / "clone of a user"
        self.source = self.clone / "source"
        (self.source / "part").mkdir(parents=True)
        (self.source / "one.rs").write_text("one")
        (self.source / "part" / "two.rs").write_text("two")
        (self.clone / ".gitignore").write_text("# A comment.\n*.o\ntarget/\n/source/generated.rs\n")
        self.patch(mock.patch("efa_tools.cache.CLONE", self.clone))


class Key(Clone):
    def test_it_changes_with_each_file(self):
        keys = {store.key(["source"])}
        (self.source / "one.rs").write_text("one more")
        keys.add(store.key(["source"]))
        (self.source / "one.rs").rename(self.source / "renamed.rs")
        keys.add(store.key(["source"]))
        (self.source / "part" / "new.rs").touch()
        keys.add(store.key(["source"]))
        keys.add(store.key(["source"], "another compiler"))
        self.assertEqual(len(keys), 5)

    def test_it_does_not_change_with_time_place_or_what_a_build_leaves(self):
        before = store.key(["source"])
        os.utime(self.source / "one.rs", (0, 0))
        (self.source / "one.o").touch()
        (self.source / "generated.rs").touch()
        (self.source / "target").mkdir()
        (self.source / "target" / "x").touch()
        self.assertEqual(store.key(["source"]), before)
        other = self.clone.rename(self.folder / "another clone")
        with mock.patch("efa_tools.cache.CLONE", other):
            self.assertEqual(store.key(["source"]), before)

    def test_what_links_lead_to_counts(self):
        (self.clone / "elsewhere").mkdir()
        (self.clone / "elsewhere" / "three.rs").write_text("three")
        (self.source / "linked").symlink_to("../elsewhere")
        before = store.key(["source"])
        (self.clone / "elsewhere" / "three.rs").write_text("3")
        self.assertNotEqual(store.key(["source"]), before)


class Build(Clone):
    def build(self, action="pass", **options):
        script = BUILD.format(clone=str(self.clone), action=action)
        return self.python(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def builds(self):
        return len((cache.folder() / "builds").read_text())

    def test_the_same_sources_are_built_once(self):
        paths = {self.build().communicate()[0] for _ in range(2)}
        self.assertEqual(self.builds(), 1)
        (path,) = paths
        self.assertEqual((Path(path.strip()) / "made").read_text(), "built")

    def test_another_clone_uses_it(self):
        self.build().communicate()
        self.clone = self.clone.rename(self.folder / "another")
        self.build().communicate()
        self.assertEqual(self.builds(), 1)

    def test_two_runs_at_once_build_once(self):
        go = self.folder / "go"
        runs = [self.build(f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)") for _ in range(2)]
        ready, _, _ = select.select([run.stderr for run in runs], [], [], support.PATIENCE)
        self.assertIn("waiting for another run", ready[0].readline())
        go.touch()
        for run in runs:
            run.communicate()
        self.assertEqual([run.returncode for run in runs], [0, 0])
        self.assertEqual(self.builds(), 1)

    def test_one_that_was_interrupted_is_done_again(self):
        run = self.build("print('building', flush=True); time.sleep(9999)")
        run.stdout.readline()
        run.kill()
        run.communicate()
        self.build().communicate()
        self.assertEqual(self.builds(), 2)

    def test_one_whose_sources_change_meanwhile_is_done_again(self):
        run = self.build(f"pathlib.Path({str(self.source / 'one.rs')!r}).write_text('changed')")
        said = run.communicate()[1]
        self.assertEqual(self.builds(), 2)
        self.assertIn("built again", said)

    def test_sources_that_change_all_the_time_are_told_of(self):
        numbers = itertools.count()

        def make():
            (self.source / "one.rs").write_text(str(next(numbers)))
            return []

        with self.assertRaisesRegex(Failure, "changed during each of 5 builds: do not edit"):
            store.build("thing", ["source"], (), "the thing", 0.001, make)

    def test_folders_that_were_unused_for_long_are_removed(self):
        made = cache.folder("thing")
        for number in range(4):
            cache.folder("thing", str(number))
            os.utime(made / str(number), (number, number))
        os.utime(made / "3")
        with mock.patch.object(store, "KEPT", 2):
            store.discard_old(made)
        self.assertEqual(sorted(path.name for path in made.iterdir()), ["2", "3"])
        with mock.patch.object(store, "KEPT", 0):
            store.discard_old(made)
        self.assertEqual([path.name for path in made.iterdir()], ["3"])

    def test_one_that_is_used_meanwhile_is_kept(self):
        made, removed = cache.folder("thing"), []
        for name in ("one", "two"):
            os.utime(cache.folder("thing", name), (0, 0))

        def remove(path):
            removed.append(path)
            for other in made.iterdir():
                os.utime(other)

        with mock.patch.object(store, "KEPT", 0), mock.patch("efa_tools.namespace.remove", remove):
            store.discard_old(made)
        self.assertEqual(len(removed), 1)

    def test_one_that_is_removed_meanwhile_does_no_harm(self):
        # Like an entry that is removed after it was listed, a dangling link has a name only.
        (cache.folder("thing") / "gone").symlink_to("nowhere")
        with mock.patch.object(store, "KEPT", 0):
            store.discard_old(cache.folder("thing"))


class Folders(support.TemporaryCache):
    """Folders of clones, also of clones that no longer exist."""

    def owner(self, name):
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def claim(self, owner):
        process = self.python(CLAIM.format(owner=str(owner)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return process, Path(process.stdout.readline().strip())

    def claimed(self, owner):
        process, path = self.claim(owner)
        process.communicate("\n")
        return path

    def fill(self, path):
        """Fills a folder as builds do; returns its subfolder of fingerprints."""
        (path / "module" / "rust").mkdir(parents=True)
        marks = path / "emulator" / "target" / "debug" / ".fingerprint"
        for crate in ("serde-0123", "efa-emu-0123", "vfio-user-0123", "vfio-ioctls-0123"):
            (marks / crate).mkdir(parents=True)
        return marks

    def test_a_clone_keeps_its_folder(self):
        owner = self.owner("one")
        path = self.claimed(owner)
        self.fill(path)
        self.assertEqual(self.claimed(owner), path)
        self.assertTrue((path / "module" / "rust").exists())

    def test_a_new_clone_takes_over_crates_of_others_from_one_that_is_gone(self):
        owner = self.owner("one")
        old = self.claimed(owner)
        self.fill(old)
        owner.rmdir()
        new = self.claimed(self.owner("two"))
        self.assertFalse(old.exists())
        marks = new / "emulator" / "target" / "debug" / ".fingerprint"
        self.assertEqual(sorted(path.name for path in marks.iterdir()), ["serde-0123", "vfio-ioctls-0123"])
        self.assertFalse((new / "module").exists())

    def test_one_that_has_a_folder_takes_over_nothing_and_the_gone_one_goes(self):
        one, two = self.owner("one"), self.owner("two")
        old, path = self.claimed(one), self.claimed(two)
        one.rmdir()
        self.assertEqual(self.claimed(two), path)
        self.assertFalse(old.exists())

    def test_a_folder_in_use_stays_though_its_clone_is_gone(self):
        one = self.owner("one")
        process, old = self.claim(one)
        one.rmdir()
        self.claimed(self.owner("two"))
        self.assertTrue(old.exists())
        process.communicate("\n")
        self.claimed(self.owner("two"))
        self.assertFalse(old.exists())

    def test_an_old_one_without_an_owner_is_removed(self):
        young, old = cache.folder("clone", "young"), cache.folder("clone", "old")
        os.utime(old, (0, 0))
        self.claimed(self.owner("one"))
        self.assertTrue(young.exists())
        self.assertFalse(old.exists())


if __name__ == "__main__":
    unittest.main()
