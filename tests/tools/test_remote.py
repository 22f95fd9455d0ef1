# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Programs in running guests: the agent, its client, and the search for a set of guests."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from support import CLONE, LIBRARY, PATIENCE, TemporaryCache

sys.path.insert(0, str(CLONE / "tools" / "guest"))

import agent
from efa_tools import cache, remote, running
from efa_tools.failure import Failure

TOKEN = "secret"
# The agent's client, which tests run as a program.
FRONT = """
import sys
from efa_tools import remote
request = remote.Request(sys.argv[2:], folder="/", token={token!r})
sys.exit(remote.Front(remote.start(("127.0.0.1", int(sys.argv[1])), request), request).run())
"""


class Agent(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = socket.create_server(("127.0.0.1", 0))
        cls.port = server.getsockname()[1]
        threading.Thread(target=agent.serve_all, args=(server, TOKEN), daemon=True).start()

    def front(self, *command, **options):
        program = [sys.executable, "-c", FRONT.format(token=TOKEN), str(self.port), *command]
        return subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(LIBRARY)}, **options)

    def run_in(self, script, text=b""):
        pipe = subprocess.PIPE
        with self.front("sh", "-c", script, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            output, errors = process.communicate(text, PATIENCE)
        return process.returncode, output, errors

    def connect(self, **options):
        request = remote.Request(folder="/", **options)
        connection = remote.start(("127.0.0.1", self.port), request)
        self.addCleanup(connection.close)
        return connection

    def messages(self, connection):
        with connection.makefile("rb") as lines:
            return [json.loads(line) for line in lines]

    def test_both_streams_and_the_status(self):
        self.assertEqual(self.run_in("echo out; echo err >&2; exit 7"), (7, b"out\n", b"err\n"))

    def test_a_signal_is_a_status_as_a_shell_has_it(self):
        self.assertEqual(self.run_in("kill -9 $$")[0], 128 + 9)

    def test_what_is_read(self):
        text = os.urandom(300_000)
        self.assertEqual(self.run_in("cat", text), (0, text, b""))

    def test_a_program_that_does_not_read_to_the_end(self):
        self.assertEqual(self.run_in("exec <&-; sleep 0.2; echo done", os.urandom(300_000)), (0, b"done\n", b""))

    def test_a_program_that_is_missing(self):
        connection = self.connect(command=["/no/such/program"], token=TOKEN)
        *_, last = self.messages(connection)
        self.assertEqual(last, {"status": 127})

    def test_several_at_once(self):
        # None ends before all have started.
        with tempfile.TemporaryDirectory() as folder:
            script = f'touch {folder}/$$; until [ "$(ls {folder} | wc -l)" = 4 ]; do sleep 0.05; done'
            processes = [self.front("sh", "-c", script, stdin=subprocess.DEVNULL) for _ in range(4)]
            self.assertEqual([process.wait(PATIENCE) for process in processes], [0] * 4)

    def test_a_wrong_token_is_refused(self):
        for token in ("", "secre"):
            self.assertEqual(self.messages(self.connect(command=["true"], token=token)), [])

    def test_what_is_no_request(self):
        for text in (
            b"\n",
            b"{}\n",
            b"[1]\n",
            b"nonsense\n",
            b'{"command": ["true"]}\n',
            b'{"command": 1, "token": "secret", "more": 2}\n',
        ):
            with socket.create_connection(("127.0.0.1", self.port)) as connection:
                connection.sendall(text)
                connection.shutdown(socket.SHUT_WR)
                self.assertEqual(connection.recv(1), b"", text)
        self.assertEqual(self.run_in("true")[0], 0)

    def test_a_terminal(self):
        connection = self.connect(
            command=["sh", "-c", "stty size; tty; read x; stty size; exit 5"], token=TOKEN, terminal=(11, 22, "vt100")
        )
        remote.send(connection, size=(33, 44))
        remote.send(connection, stdin=remote.encoded(b"x\n"))
        messages = self.messages(connection)
        printed = b"".join(remote.decoded(message.get("stdout", "")) for message in messages).decode()
        # The terminal echoes input when it arrives, which may be before the shell's own lines.
        self.assertRegex(printed, r"^(x\r\n)?(11 22|33 44)\r\n")
        self.assertRegex(printed, r"\n/dev/pts/\d+\r\n")
        self.assertTrue(printed.endswith("33 44\r\n"), printed)
        self.assertEqual(messages[-1], {"status": 5})


class Sets(TemporaryCache):
    def announced(self, name):
        folder = cache.folder("runs", name)
        shared = cache.folder("runs", name, "shared")
        running.make_token(shared)
        running.announce(folder, 2)
        return folder

    def in_use(self, folder):
        descriptor = os.open(folder, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        script = f"flock -s {folder} sh -c 'echo locked; sleep 60'"
        holder = subprocess.Popen(["sh", "-c", f"exec {script}"], stdout=subprocess.PIPE, process_group=0)
        holder.stdout.readline()
        self.addCleanup(holder.wait)
        self.addCleanup(os.killpg, holder.pid, 9)
        self.addCleanup(holder.stdout.close)

    def test_only_those_that_run_are_found(self):
        with self.assertRaisesRegex(Failure, "No guests with an agent run"):
            running.find()
        ended, runs = self.announced("ended"), self.announced("runs")
        os.utime(runs / "agents", (1, 1))
        self.in_use(runs)
        self.assertEqual(running.find().folder, runs)
        self.assertEqual(running.find(runs).folder, runs)
        with self.assertRaisesRegex(Failure, "have ended"):
            running.find(ended)

    def test_what_is_no_set(self):
        with self.assertRaisesRegex(Failure, "is not the folder of guests"):
            running.find(Path("/nonexistent"))

    def test_an_agent_is_reached_by_a_socket_however_long_its_path_is(self):
        folder = self.announced("a" * 200)
        with socket.socket(socket.AF_UNIX) as server:
            directory = os.open(folder, os.O_PATH)
            self.addCleanup(os.close, directory)
            server.bind(f"/proc/self/fd/{directory}/agent0")
            server.listen()
            threading.Thread(target=agent.serve_all, args=(server, running.Running(folder).token), daemon=True).start()
            self.assertTrue(running.Running(folder).answers(0))
            self.assertFalse(running.Running(folder).answers(1))

    def test_free_ports_are_never_given_by_the_host(self):
        with socket.create_server(("127.0.0.1", 0)) as given:
            ports = [running.free_port(2) for _ in range(9)]
            self.assertLess(max(ports) + 1, given.getsockname()[1])
        self.assertEqual(len({number for port in ports for number in (port, port + 1)}), 18)

    def test_others_do_not_see_the_token(self):
        folder = self.announced("one")
        self.assertEqual((folder / "shared" / "token").stat().st_mode & 0o777, 0o600)
        self.assertNotEqual((folder / "shared" / "token").read_text(), (self.announced("two") / "shared" / "token").read_text())

    def test_a_guest_that_is_not_there(self):
        found = running.Running(self.announced("one"))
        with self.assertRaisesRegex(Failure, "There is no guest 2: valid numbers are 0 to 1"):
            found.start(2, ["true"])
        with self.assertRaisesRegex(Failure, "Guest 1 .* cannot be reached"):
            found.start(1, ["true"])

    def test_a_program_of_the_toolroot_asks_the_emulator(self):
        # This host's libraries may be older than those of the toolroot.
        folder = self.announced("one")
        inside = self.patch(mock.patch("efa_tools.build.in_toolroot", return_value=["sh", "-c", "exit 3"]))
        self.assertEqual(running.Running(folder).control(["{}"]), 3)
        command, binds = inside.call_args.args
        self.assertEqual((command[1:2], command[3:]), (["ctl"], ["{}"]))
        self.assertEqual([(source, Path(command[0]).parent) for source, *_ in binds], [(folder, Path(binds[0][1]))])


if __name__ == "__main__":
    unittest.main()
