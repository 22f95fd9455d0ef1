# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Files and messages of efa-emu-lab, without guests. tests/test_packages.py tests it with guests."""

import importlib.machinery
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

MINUTES = 1
TIER = "check"
PROGRAM = Path(__file__).with_name("efa-emu-lab")
# Timeout in seconds of waits.
PATIENCE = 120
LOADER = importlib.machinery.SourceFileLoader("efa_emu_lab", str(PROGRAM))
lab = types.ModuleType("efa_emu_lab")
sys.dont_write_bytecode = True
LOADER.exec_module(lab)

SECTOR = 2048


def read_volume(data):
    """Returns the label and the files of an ISO 9660 volume, as Linux reads them."""
    primary = data[16 * SECTOR : 17 * SECTOR]
    if (
        primary[:8] != b"\1CD001\1\0"
        or data[17 * SECTOR :][:7] != b"\xffCD001\1"
        or len(data) != 2048 * struct.unpack("<I", primary[80:84])[0]
    ):
        raise ValueError("no ISO 9660 volume")
    start, size = struct.unpack("<I4xI", primary[158:170])
    directory, files = data[start * SECTOR :][:size], {}
    while directory[0]:
        record, directory = directory[: directory[0]], directory[directory[0] :]
        begin, length = struct.unpack("<I4xI", record[2:14])
        if (begin, length) != (struct.unpack(">I", record[6:10])[0], struct.unpack(">I", record[14:18])[0]):
            raise ValueError("the byte orders differ")
        if not record[25] & 2:
            name = record[33:][: record[32]].decode().lower()
            files[name.removesuffix(";1")] = data[begin * SECTOR :][:length]
    return primary[40:72].decode().rstrip(), files


class Seed(unittest.TestCase):
    def test_files_are_in_the_volume(self):
        files = {"one": b"1" * SECTOR, "two-three": b"", "z": b"2" * (SECTOR + 1)}
        self.assertEqual(read_volume(lab.volume("cidata", files)), ("cidata", files))

    def test_cloud_init_is_told_who_and_where(self):
        label, files = read_volume(lab.seed(1, "ssh-ed25519 KEY"))
        self.assertEqual((label, sorted(files)), ("cidata", ["meta-data", "network-config", "user-data"]))
        self.assertEqual(json.loads(files["meta-data"])["local-hostname"], "guest1")
        first, rest = files["user-data"].decode().split("\n", 1)
        self.assertEqual((first, json.loads(rest)["users"][0]["ssh_authorized_keys"]), ("#cloud-config", ["ssh-ed25519 KEY"]))
        self.assertEqual(json.loads(files["network-config"])["ethernets"]["lab"]["addresses"], ["10.99.0.2/24"])


class Ping(unittest.TestCase):
    def test_the_typical_time_is_found(self):
        text = (
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n"
            " 64      200          14.80          92.10        20.31   \n"
        )
        self.assertEqual(lab.LATENCY.search(text)[1], "20.31")
        self.assertIsNone(lab.LATENCY.search("Unable to create QP"))


NEW_QEMU = """case $* in *help*) echo 'name "vfio-user-pci", bus PCI' ;; *) echo 'QEMU emulator version 11.1.3' ;; esac"""
OLD_QEMU = """case $* in *help*) echo 'name "vfio-pci", bus PCI' ;; *) echo 'QEMU emulator version 10.0.13 (Debian)' ;; esac"""


class Lacks(unittest.TestCase):
    """Messages about missing requirements."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.image = self.folder / "image.qcow2"
        self.image.write_bytes(b"QFI\xfb")
        (self.folder / "bin").mkdir()
        for name in ("qemu-img", "efa-emu", "ssh", "ssh-keygen"):
            self.program(name, "exit 1")
        self.program("qemu-system-x86_64", NEW_QEMU)

    def program(self, name, script):
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def says(self, text, *arguments):
        """Fails unless the lab ends with this message."""
        command = [sys.executable, PROGRAM, "--folder", self.folder / "lab", "--ssh-port", "2222", self.image, *arguments]
        environment = {"PATH": str(self.folder / "bin")}
        # The scripts above name /bin/sh by its path, so that PATH does not matter to them.
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, f"(?s)efa-emu-lab: .*{text}")

    def test_a_program(self):
        for name, advice in (
            ("ssh-keygen", "openssh-client"),
            ("efa-emu", "--emulator"),
            ("qemu-img", "qemu-utils"),
            ("qemu-system-x86_64", r"QEMU 10.1 or newer; on Debian 13, apt install -t trixie-backports qemu-system-x86"),
        ):
            (self.folder / "bin" / name).unlink()
            self.says(f"There is no program {name}: .*{advice}")

    def test_a_qemu_that_is_new_enough(self):
        self.program("qemu-system-x86_64", OLD_QEMU)
        self.says("QEMU 10.0.13 has no vfio-user-pci, .*install 10.1 or newer; on Debian 13, apt install")

    def test_an_image(self):
        self.image.write_bytes(b"MBR")
        self.says("is not a qcow2 image")
        self.image.unlink()
        self.says(r"can't be read \(No such file or directory\)")

    def test_a_port(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            self.says(r"Port \d+ of 127.0.0.1.*Address already in use.*--ssh-port", "--ssh-port", str(other.getsockname()[1]))

    def test_a_folder(self):
        self.image.with_name("lab").write_text("")
        self.says("can't be written to .*--folder")

    def test_a_folder_that_nobody_uses(self):
        (self.folder / "lab").mkdir()
        with open(self.folder / "lab" / "lock", "w") as lock:
            lab.fcntl.flock(lock, lab.fcntl.LOCK_EX)
            self.says("Another lab runs in")

    def test_a_disk_of_this_image(self):
        (self.folder / "lab").mkdir()
        (self.folder / "lab" / "key.pub").write_text("KEY")
        (self.folder / "lab" / "disk0.qcow2").write_text("")
        self.program("qemu-img", """[ "$1" != info ] || echo '{"full-backing-filename":"/other.qcow2"}'""")
        self.says("disk0.qcow2 is of the image /other.qcow2, not .*--fresh")

    def test_kvm(self):
        with mock.patch.object(os, "access", return_value=False), mock.patch.object(lab, "say") as say:
            for there, reason in ((False, "there is no /dev/kvm"), (True, "the group kvm may")):
                with mock.patch.object(os.path, "exists", return_value=there):
                    self.assertEqual(lab.choose_accelerator(None), "tcg")
                    self.assertIn(reason, say.call_args[0][0])
                    with self.assertRaisesRegex(lab.Failure, reason):
                        lab.choose_accelerator("kvm")

    def test_a_program_that_goes_on(self):
        self.program("efa-emu", "echo no luck; exit 3")
        self.program("ssh-keygen", 'for last; do :; done; echo KEY >"$last.pub"')
        self.program("qemu-img", "exit 0")
        self.says("efa-emu ended with status 3: see .*efa-emu.log")


# A lab whose programs only sleep. It prints their ids, and later which guests' power buttons are pressed.
ASLEEP = """
import sys, time
from test_lab import lab

def run(self):
    for name in ("efa-emu", "guest0", "guest1"):
        self.start(name, {command})
    print(*(process.pid for process in self.programs.values()), flush=True)
    time.sleep(999)

lab.Lab.run = run
lab.Lab.power_off = lambda self, guest: print("button", guest, flush=True)
lab.POWER_OFF, lab.TERMINATION = {limits}
sys.argv[1:] = ["--folder", {folder!r}, "image"]
lab.main()
"""


class End(unittest.TestCase):
    """The end of a lab leaves no program."""

    def start(self, limits, command=("sleep", "999"), **options):
        """Starts a lab with LIMITS on the power-off and on the end of terminated programs."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        script = ASLEEP.format(command=command, limits=limits, folder=folder)
        process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parent, text=True, stdout=subprocess.PIPE, **options)
        self.addCleanup(process.kill)
        assert process.stdout
        self.programs = process.stdout.readline().split()
        self.assertEqual(len(self.programs), 3)
        return process

    def ends(self, process):
        printed, _ = process.communicate(timeout=PATIENCE)
        left = [program for program in self.programs if Path("/proc", program).exists()]
        for program in left:
            os.kill(int(program), signal.SIGKILL)
        self.assertEqual((left, printed), ([], "button 0\nbutton 1\n"))

    def test_a_second_signal_shortens_the_power_off(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start((9999, PATIENCE), stderr=subprocess.PIPE)
            process.send_signal(signal.SIGHUP)
            self.assertIn("the guests power off", process.stderr.readline())
            process.send_signal(signal.SIGHUP)
            process.send_signal(number)
            self.ends(process)

    def test_the_terminal_is_closed(self):
        reader, writer = os.pipe()
        os.close(reader)
        process = self.start((0, PATIENCE), stderr=writer)
        os.close(writer)
        process.send_signal(signal.SIGHUP)
        self.ends(process)

    def test_a_program_that_ignores_its_termination_is_killed(self):
        process = self.start((0, 0), ("env", "--ignore-signal=TERM", "sleep", "999"), stderr=subprocess.DEVNULL)
        process.terminate()
        self.ends(process)
