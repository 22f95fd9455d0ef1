# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests of tests/interop without guests: processes of several guests, here all on this host, and results of programs."""

import contextlib
import socket
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from support import CLONE

sys.path += [str(CLONE / "tests" / "interop"), str(CLONE / "tests" / "kselftest"), str(CLONE / "tools" / "guest")]

import agent
import conditions
import guests
import libfabric
import patience
import perftest
from efa_tools import remote
from efa_tools.running import free_port
from selftest import Failed, Skipped

PERFTEST = """\
 Dual-port       : OFF          Device         : rxe0
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 2          500              0.00               0.01                 0.003512
 1048576    20               26.11              25.90                0.000026
---------------------------------------------------------------------------------------
"""
WITHOUT_CLOCK = PERFTEST.replace("0.003512", "0.003512Correlation coefficient r^2: 0.31 < 0.9").replace("0.000026", "0.000000")
LATENCY = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]
 64      1000          812.20         4100.41      990.07              1021.33         80.11            1500.09
 128     1000          21.30          173829.04    206.75              1865.90         -nan             75850.58
"""
PINGPONG = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      20      =20      2.5k        0.64s      0.00   16099.83       0.00
1k      20      19       40k         0.64s      0.00   16099.84       0.00
"""


@contextlib.contextmanager
def no_patience(hangs):
    """Makes waits fail as soon as hangs() is true for the processes started so far."""
    started = []

    class Noted(guests.Process):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def wait(condition, what):
        return patience.wait_until(lambda: condition() or given_up(what), what)

    def given_up(what):
        if hangs(started):
            raise Failed(f"{what}: it hangs")

    with mock.patch.multiple(guests, Process=Noted, wait_until=wait):
        yield


def ended(pid):
    """Whether a process has ended. It may still be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Rows(unittest.TestCase):
    def test_bandwidths(self):
        found = perftest.rows(PERFTEST)
        self.assertEqual(sorted(found), [2, 1 << 20])
        self.assertEqual((found[1 << 20][perftest.AVERAGE], found[2][perftest.RESULT]), (25.9, 0.003512))

    def test_latencies(self):
        found = perftest.rows(LATENCY)
        self.assertEqual((found[64][perftest.TYPICAL], found[128][perftest.TYPICAL]), (990.07, 206.75))

    def test_what_a_network_prevents(self):
        names = {
            condition.suffix: {name for name, _ in perftest.tests("efa_0", False, condition)}
            for condition in (conditions.GOOD, *conditions.BAD)
        }
        good, loss = names[""], names[", 1 % loss"]
        self.assertEqual(names[", reordering"], good)
        self.assertEqual(good - loss, {name for name in good if " UD" in name})
        self.assertEqual(names[", one of four paths down"], loss)

    def test_no_table(self):
        self.assertEqual(perftest.rows("Couldn't connect to guest1:18515\n 12 1 1.0 1.0\n"), {})

    def test_runs_without_a_clock_are_repeated(self):
        with mock.patch.object(guests, "pair", side_effect=[WITHOUT_CLOCK, WITHOUT_CLOCK, PERFTEST]) as pair:
            self.assertEqual(perftest.measure("efa_0", "ib_write_bw"), perftest.rows(PERFTEST))
        self.assertEqual(len({call.args[2] for call in pair.call_args_list}), 3, "each run has a port of its own")
        with mock.patch.object(guests, "pair", return_value=WITHOUT_CLOCK), self.assertRaisesRegex(Failed, "had no clock in 5"):
            perftest.measure("efa_0", "ib_write_bw")

    def test_each_size_has_to_move_as_often_as_asked_for(self):
        sizes = [2, 1 << 20]
        for output, count, good in (
            (PERFTEST, 20, True),
            (WITHOUT_CLOCK, 20, True),
            (PERFTEST, 21, False),
            (PERFTEST.replace(" 2  ", " 4  "), 20, False),
        ):
            expected = contextlib.nullcontext() if good else self.assertRaisesRegex(Failed, f"not .* and {count}")
            with mock.patch.object(guests, "pair", return_value=output), expected:
                perftest.test("efa_0", "ib_write_bw", ("-n", str(count)), sizes)

    def test_fi_pingpong_needs_a_prefix_that_newer_libraries_do_not_keep(self):
        for release, skipped in (("2.1.0", []), ("2.5.1", []), ("2.6.0", ["rdm efa, 1 MiB"]), ("3.0.0", ["rdm efa, 1 MiB"])):
            libfabric.version.cache_clear()
            found = []
            said = f"fi_info: {release}\nlibfabric: {release}\nlibfabric api: 2.1\n"
            with mock.patch.object(guests, "run", return_value=said), mock.patch.object(libfabric, "pingpong") as pingpong:
                for name, test in list(libfabric.tests(True, False))[1:]:
                    try:
                        test()
                    except Skipped:
                        found.append(name.removeprefix("fi_pingpong "))
            self.assertEqual((found, pingpong.call_count), (skipped, 3 - len(skipped)), release)
        libfabric.version.cache_clear()

    def test_messages_that_are_missing_show(self):
        self.assertEqual(libfabric.ROW.findall(PINGPONG), [("20", "=", "20"), ("20", "", "19")])
        self.assertEqual(libfabric.microseconds(PINGPONG), 16099.84)


class Together(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.prepared, token = Path(folder.name) / "prepared", Path(folder.name) / "token"
        token.write_text("secret")
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=agent.serve_all, args=(server, "secret"), daemon=True).start()
        for patches in (
            mock.patch.multiple(guests, name=lambda guest: "127.0.0.1", PREPARED=cls.prepared),
            mock.patch.multiple(remote, PORT=server.getsockname()[1], TOKEN=token),
        ):
            patches.start()
            cls.addClassCleanup(patches.stop)

    def python(self, script):
        return [sys.executable, "-c", script]

    def server(self, port, then=""):
        return self.python(f"import socket; c, _ = socket.create_server(('127.0.0.1', {port})).accept(); {then or 'c.recv(9)'}")

    def client(self, port, then=""):
        return self.python(f"import socket, sys; c = socket.create_connection(('127.0.0.1', {port})); print('hello'); {then}")

    def fails(self, expected, *arguments, **options):
        with self.assertRaises(Failed) as caught:
            guests.pair(*arguments, **options)
        self.assertRegex(str(caught.exception), expected)
        return caught.exception

    def test_a_client_waits_for_its_server(self):
        port = free_port()
        self.assertEqual(guests.pair(self.server(port), self.client(port), port), "hello\n")

    def test_the_output_of_both_is_shown_if_the_client_fails(self):
        port = free_port()
        failure = self.fails(
            r"(?s)a program failed.*exit status 3\n  \| hello\n.*create_server.*\n  \| taken",
            *(self.server(port, "print('taken', flush=True); c.recv(9)"), self.client(port, "exit(3)"), port),
        )
        self.assertEqual(failure.output, "hello\n")

    def test_a_server_that_fails_ends_the_client(self):
        port = free_port()
        client = self.client(port, "c.recv(9); import time; time.sleep(9999)")
        failure = self.fails("exit status 4", self.server(port, "exit(4)"), client, port)
        self.assertIn("still runs", str(failure))

    def test_a_server_that_does_not_start(self):
        self.fails("(?s)the server did not start.*exit status 5", self.python("exit(5)"), ["true"], 1)

    def test_a_program_that_is_missing(self):
        with self.assertRaisesRegex(Failed, "(?s)exit status 127.*No such file"):
            guests.run(["no-such-program"])

    def test_a_client_that_hangs(self):
        port = free_port()
        client = self.client(port, "sys.stdout.flush(); import time; time.sleep(9999)")
        with no_patience(lambda started: started[-1].output == "hello\n"):
            failure = self.fails("it hangs", self.server(port), client, port)
        self.assertEqual(str(failure).count("still runs"), 2)

    def test_a_server_that_stays(self):
        port = free_port()
        with no_patience(lambda started: started[1:] and started[1].ended.is_set()):
            failure = self.fails("it hangs", self.server(port, "import time; time.sleep(9999)"), self.client(port), port)
        self.assertRegex(str(failure), r"(?s)exit status 0.*still runs")

    def test_a_program_with_output_does_not_hang(self):
        """Each output restarts the timeout."""
        with tempfile.TemporaryDirectory() as folder:
            marks = [Path(folder) / name for name in ("one", "two")]
            script = "".join(f"until [ -e {mark} ]; do sleep 0.01; done; echo {mark.name}; " for mark in marks)
            waits = iter(marks)

            def wait(condition, what):
                # The program prints only during a wait.
                if mark := next(waits, None):
                    mark.touch()
                patience.wait_until(condition, what)

            with mock.patch.object(guests, "wait_until", wait):
                self.assertEqual(guests.run(["sh", "-c", script]), "one\ntwo\n")
        self.assertIsNone(next(waits, None))

    def test_processes_end_with_their_context(self):
        with guests.Process(1, ["sh", "-c", "echo $$; sleep 60 & echo $!; wait"]) as process:
            patience.wait_until(lambda: process.output.count("\n") == 2, "the numbers of both processes")
            pids = [int(line) for line in process.output.split()]
        patience.wait_until(lambda: all(map(ended, pids)), "the end of both processes")

    def test_the_environment(self):
        self.assertEqual(guests.run(["sh", "-c", "echo $COLOUR"], environment={"COLOUR": "blue"}), "blue\n")

    def test_settings_of_the_caller(self):
        self.assertEqual(guests.run(["sh", "-c", "echo [$EFA_CONTROL_PORT]"]), "[]\n")

    def test_the_leader_waits_for_the_others_to_be_prepared(self):
        main = mock.Mock()
        with mock.patch.object(guests, "GUESTS", 2):
            hangs = no_patience(lambda started: len(started) > 3 and started[-1].ended.is_set())
            with hangs, self.assertRaisesRegex(Failed, "is prepared: it hangs"):
                guests.lead(main)
            with mock.patch.object(guests, "GUEST", 1):
                guests.lead(main)
            self.addCleanup(self.prepared.unlink)
            main.assert_not_called()
            guests.lead(main, 1, 2)
        main.assert_called_once_with(1, 2)

    def test_a_guest_that_does_not_answer(self):
        two, port = mock.patch.object(guests, "GUESTS", 2), mock.patch.object(remote, "PORT", free_port())
        with two, port, no_patience(lambda started: True), self.assertRaisesRegex(Failed, "127.0.0.1 answers: it hangs"):
            guests.meet()


if __name__ == "__main__":
    unittest.main()
