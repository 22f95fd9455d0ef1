#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests the emulator's systemd unit on a machine with its package, which it removes. Runs in a guest, and prints KTAP.

usage: emulator.py PACKAGE      the package's file
"""

import grp
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "kselftest"))

from patience import PATIENCE, wait_until

UNIT = "efa-emu@test.service"
FOLDER = Path("/run/efa-emu/test")
LINK = Path("/etc/systemd/system/multi-user.target.wants", UNIT)
# Requests of vfio-user.
VERSION, DMA_MAP = 1, 2
# Whether each test has passed.
results = []


def test(name, passed, *why):
    results.append(passed)
    for line in "\n".join(map(str, why)).splitlines() * (not passed):
        print(f"# {line}")
    print(f"{'' if passed else 'not '}ok {len(results)} {name}", flush=True)


def run(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def control(*prefix, name="control", request='{"command":"devices"}'):
    """Sends a request, for the list of devices by default; returns the exit status and the reply."""
    done = run(*prefix, "efa-emu", "ctl", str(FOLDER / name), request)
    return done.returncode, done.stdout


def request(connection, command, payload, *descriptors):
    """Sends a request; returns the error number of its reply."""
    message = struct.pack("<HHIII", 1, command, 16 + len(payload), 0, 0) + payload
    socket.send_fds(connection, [message], descriptors)
    _, _, size, flags, error = struct.unpack("<HHIII", connection.recv(16, socket.MSG_WAITALL))
    connection.recv(size - 16, socket.MSG_WAITALL)
    return error if flags & 0x20 else 0


def map_memory():
    """Maps memory for a device, as a VMM does; returns the error numbers of both requests."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(FOLDER / "efa0"))
        capabilities = json.dumps({"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": 1048576}}).encode() + b"\0"
        first = request(connection, VERSION, struct.pack("<HH", 0, 1) + capabilities)
        memory = os.memfd_create("memory")
        os.ftruncate(memory, 1 << 20)
        return first, request(connection, DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, 1 << 20), memory)


def process():
    """Returns the id of the unit's process."""
    return run("systemctl", "show", "--property=MainPID", "--value", UNIT).stdout.strip()


def main(package):
    print("KTAP version 1")
    verified = run("systemd-analyze", "verify", "--man=no", UNIT)
    test("systemd reports no problem of the unit", not verified.returncode and not verified.stdout, verified.stdout)
    started = run("systemctl", "start", UNIT)
    wait_until((FOLDER / "control").exists, "its control socket")
    log = run("journalctl", "--unit", UNIT, "--no-pager").stdout
    test("it starts", not started.returncode and run("systemctl", "is-active", UNIT).stdout.strip() == "active", started.stdout, log)

    status, text = control()
    devices = json.loads(text).get("ok", []) if not status else []
    test("it has the devices of /etc/default/efa-emu", [device["profile"] for device in devices] == ["efa3", "efa3"], text)
    mode = {name: (FOLDER / name).stat() for name in ("efa0", "efa1", "control")}
    good = all(stat.filemode(found.st_mode) == "srwxrwx---" and found.st_gid == grp.getgrnam("kvm").gr_gid for found in mode.values())
    test("its sockets belong to the group kvm", good, mode)
    nobody = ("setpriv", "--reuid=65534", "--regid=65534")
    status, text = control(*nobody, "--groups=kvm")
    test("members of the group can use them", not status, text)
    peek = {"request": '{"command":"peek","device":0,"queue":{"cq":0}}'}
    private = {"name": "private/control", **peek}
    open_to_all, of_root, closed = control(**peek), control(**private), control(*nobody, "--groups=kvm", **private)
    refused = "this control socket is not for debugging"
    good = refused in open_to_all[1] and not of_root[1].count(refused) and "Permission denied" in closed[1]
    test("only root can access queues of guests", good, open_to_all, of_root, closed)
    status, text = control(*nobody, "--clear-groups")
    test("other users cannot use them", status and "Permission denied" in text, status, text)

    facts = dict(line.split(":\t", 1) for line in Path(f"/proc/{process()}/status").read_text().splitlines() if ":\t" in line)
    wanted = {"CapEff": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}
    found = {name: facts[name] for name in wanted}
    test("it has no capability, can't get any, and few system calls", found == wanted, found)
    user = int(facts["Uid"].split()[0])
    test("it has a dynamic user", 61184 <= user <= 65519, user)
    errors = map_memory()
    test("it maps a guest's memory nevertheless", errors == (0, 0), errors, run("journalctl", "--unit", UNIT, "--no-pager").stdout)

    run("systemctl", "kill", "--signal=KILL", UNIT)
    wait_until(lambda: not control()[0], "its reply after it was killed")
    test("it is restarted after a failure", not control()[0], control())
    before, upgraded = process(), run("dpkg", "--install", package)
    test("an upgrade of the package leaves it running", not upgraded.returncode and process() == before, upgraded.stdout, before, process())
    stopped = run("systemctl", "stop", UNIT)
    test("it stops and leaves no files", not stopped.returncode and not FOLDER.exists(), stopped.stdout)
    state = run("systemctl", "is-failed", UNIT).stdout.strip()
    test("it has not failed", state == "inactive", state)

    enabled = run("systemctl", "enable", "--now", UNIT)
    wait_until((FOLDER / "control").exists, "its control socket once it is enabled")
    removed = run("dpkg", "--remove", "efa-emu")
    test("a removal of the package stops it", not removed.returncode and not FOLDER.exists(), enabled.stdout, removed.stdout)
    linked, purged = LINK.is_symlink(), run("dpkg", "--purge", "efa-emu")
    test("a purge disables it", not purged.returncode and linked and not LINK.is_symlink(), linked, purged.stdout)
    print(f"1..{len(results)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
