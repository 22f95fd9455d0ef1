# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests of the runner of guests, without any guest."""

import fcntl
import itertools
import os
import socket
import types
import unittest
from unittest import mock

import support
from efa_tools import guest, machine, patience, qemu, steps
from efa_tools.failure import Failure


def run_in(folder, **options):
    """Creates a run for which nothing is prepared yet."""
    run = guest.Run.__new__(guest.Run)
    run.folder, run.shared = folder, folder / "shared"
    run.options, run.accelerator, run.seed = guest.Options("true", **options), "tcg", 1
    run.ends, run.told, run.hung, run.processes = {}, set(), [], {}
    return run


class Repeated(support.TemporaryCache):
    """Repetition of a run of which a boot fails."""

    def execute(self, *ends):
        """Executes a run. `ends` has an exit status or a failure for each attempt. Sets `status`, and the number `repeated`."""
        run = run_in(self.folder)
        run.start_over = mock.Mock()
        self.patch(mock.patch.object(guest, "boots_repeated", []))
        try:
            with mock.patch.object(guest, "execute_once", side_effect=ends):
                self.status = guest.execute(run)
        finally:
            self.repeated = run.start_over.call_count
            self.assertEqual(len(guest.boots_repeated), self.repeated)

    def test_a_boot_that_meets_the_known_fault_is_repeated_and_counted(self):
        self.execute(guest.BootFailed("int3."), 7)
        self.assertEqual((self.status, self.repeated), (7, 1))
        self.assertIn("Booting again (1 boots were repeated so far)", str(steps.note.call_args_list))

    def test_but_not_for_ever(self):
        with self.assertRaisesRegex(Failure, "int3"):
            self.execute(*[guest.BootFailed("int3.")] * guest.BOOT_ATTEMPTS)
        self.assertEqual(self.repeated, guest.BOOT_ATTEMPTS - 1)

    def test_nothing_else_is_repeated(self):
        with self.assertRaisesRegex(Failure, "did not boot"):
            self.execute(Failure("The guests did not boot."))
        self.assertEqual(self.repeated, 0)

    def test_a_full_disk_is_told_of(self):
        said = self.assertRaisesRegex(Failure, "(?s)^It ended.\nThere is no space left on the disk for .*: free some")
        with mock.patch.object(steps, "is_full", return_value=True), said:
            self.execute(Failure("It ended."))


class Looks(patience.Deadline):
    """A deadline that expires after as many checks as it has seconds."""

    def again(self):
        self.looks = 0

    def over(self):
        self.looks += 1
        return self.looks > self.seconds


class Waiting(support.TemporaryCache):
    def test_a_boot_of_which_nothing_is_seen_hangs(self):
        run = run_in(self.folder)
        (run.shared / "guest0").mkdir(parents=True)
        console, looks = run.console_of(0), itertools.count()

        def poll():
            # The guest prints something at each of these polls, and nothing afterwards.
            if next(looks) < 2 * patience.PATIENCE:
                console.write_bytes(console.read_bytes() + b"x" if console.exists() else b"x")

        run.processes = {"qemu-0": types.SimpleNamespace(poll=poll, returncode=None)}
        said = self.assertRaisesRegex(Failure, f"did not boot: for {patience.PATIENCE} s .EFA_PATIENCE. they have printed nothing")
        with mock.patch.object(patience, "Deadline", Looks), mock.patch("time.sleep"), said:
            run.wait()
        self.assertGreater(next(looks), 3 * patience.PATIENCE)

    def test_a_guest_that_ends_before_its_leader_is_told_of(self):
        run = run_in(self.folder, guests=2, leader=True)
        run.console_of(1).write_text("")
        (self.folder / "guest1.output.log").write_text("no room\n")
        guests = [types.SimpleNamespace(poll=lambda status=status: status) for status in (None, 0)]
        self.assertRegex(run.left_alone(guests), r"no room\nGuest 1 ended while guest 0 still ran")


class Log(support.TemporaryCache):
    def test_a_program_with_streams_of_its_own_has_none(self):
        self.patch(mock.patch("efa_tools.build.in_toolroot"))
        process = self.patch(mock.patch("efa_tools.guest.Process"))
        run = guest.Run.__new__(guest.Run)
        run.folder, run.release, run.releases, run.processes = self.folder, "", [], {}
        run.start("qemu-0", [], stdin=None, stdout=None, stderr=None)
        self.assertFalse((self.folder / "qemu-0.log").exists())
        run.start("efa-emu", [])
        for stream in ("stdout", "stderr"):
            file = process.call_args.kwargs[stream]
            self.assertEqual(file.name, str(self.folder / "efa-emu.log"))
            file.close()


class Seed(unittest.TestCase):
    def test_it_depends_on_nothing_but_what_is_run(self):
        with mock.patch.dict(os.environ, {"EFA_SEED": ""}):
            self.assertEqual(guest.seed_of("one"), guest.seed_of("one"))
            self.assertNotEqual(guest.seed_of("one"), guest.seed_of("two"))
        with mock.patch.dict(os.environ, {"EFA_SEED": "7"}):
            self.assertEqual(guest.seed_of("one"), 7)


class Machines(unittest.TestCase):
    def test_their_kernel_is_in_the_run_folder(self):
        self.assertEqual(machine.Boot.image(None, 0), ("/run/efa-rs/run/vmlinuz", []))


class Places(unittest.TestCase):
    def places(self, count):
        return [qemu.places(number, count) for number in range(count)]

    def test_few_devices_are_where_qemu_puts_them(self):
        self.assertEqual(self.places(16), [{}] * 16)

    def test_eight_of_many_devices_share_a_slot(self):
        places = self.places(17)
        self.assertEqual([place["addr"] for place in places], [*(f"10.{n}" for n in range(8)), *(f"11.{n}" for n in range(8)), "12.0"])
        self.assertTrue(all(place["multifunction"] for place in places))


class Boot(support.TemporaryCache):
    """A run with a guest that ends with a console log of the test."""

    def check(self, text, booted=False, status=1):
        run = run_in(self.folder)
        (run.shared / "guest0").mkdir(parents=True)
        (run.folder / "guest0.console.log").write_text(text)
        if booted:
            (run.shared / "guest0" / "booted").touch()
        run.check_boot([mock.Mock(poll=lambda: status)])

    def test_a_breakpoint_before_the_first_process_is_tcgs(self):
        with self.assertRaisesRegex(guest.BootFailed, "Guest 0 ran an instruction that its kernel was patching"):
            self.check("[    3.881867] Oops: int3: 0000 [#1] SMP NOPTI\n")

    def test_other_trouble_is_not(self):
        self.check("[    3.881867] Oops: 0000 [#1] SMP NOPTI\n")

    def test_nor_is_a_breakpoint_later(self):
        self.check("[   13.881867] Oops: int3: 0000 [#1] SMP NOPTI\n", booted=True)

    def test_a_guest_that_runs_is_left_alone(self):
        self.check("[    3.881867] Oops: int3: 0000 [#1] SMP NOPTI\n", status=None)


class Killed(support.TemporaryCache):
    def folder_of_a_run(self, name):
        folder = guest.cache.folder("runs", name)
        (folder / guest.CLONE_FILE).write_text(str(guest.cache.CLONE))
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(folder / "socket"))
        return folder

    def test_the_next_run_removes_its_sockets(self):
        killed, running = self.folder_of_a_run("killed"), self.folder_of_a_run("running")
        (killed / "log").touch()
        descriptor = os.open(running, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        guest.new_folder()
        self.assertEqual([(killed / name).exists() for name in ("socket", "log")], [False, True])
        self.assertTrue((running / "socket").exists())


if __name__ == "__main__":
    unittest.main()
