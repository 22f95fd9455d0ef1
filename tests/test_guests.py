# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Guests themselves: what they have, the places of their devices, and which faults of a kernel fail a run."""

import collections
import subprocess
import sys

import pytest
import traffic
from conftest import CLONE
from guests import GuestFailed, Guests, ProgramFailed, wait_until

MINUTES = 5
TIER = "all"
NEEDS = ["emulator", "kernel-cloud-amd64", "rust-cloud-amd64"]
DEVICES = "cd /sys/class/infiniband; ls | wc -l; sort -u */device/device; sort -u */ports/1/rate; sort -u */node_guid | wc -l"
# Each device's NUMA node, and the port above it, or the one above that.
PLACES = "cd /sys/class/infiniband; for one in *; do echo $(cat $one/device/numa_node) $(cd -P $one/device/{}; pwd); done"
PORT = 8000
MONITOR = f"{CLONE}/tools/guest/monitor.py"


def test_a_guest(tmp_path):
    (tmp_path / "here").write_text("hello\n")
    root = [sys.executable, CLONE / "tools/vm.py", "root", tmp_path / "root"]
    (tmp_path / "root").mkdir()
    subprocess.run([*root, "echo changed >/etc/changed"], check=True)
    options = {"driver": "none", "append": "swiotlb=force", "cpu": "max", "cpus": 1, "share": tmp_path, "overlay": tmp_path / "root"}
    with Guests(2, **options) as guests:
        said = guests.run("cat /share/here /etc/changed /sys/devices/virtual/dmi/id/board_asset_tag; echo $EFA_DRIVER; ssh guest1 hostname")
        assert said.splitlines() == ["hello", "changed", "i-00000000000efa000", "none", "guest1"]
        assert "swiotlb=force " in guests.run("cat /proc/cmdline")
        # The level that EC2's instances with EFA have, at least.
        assert "x86-64-v3 (supported" in guests.run("$(ls /lib64/ld-linux-x86-64.so.2) --help")
        assert guests.tried(f"touch /share/there {CLONE}/there").returncode == 1 and not (tmp_path / "there").exists()
        assert "in use" in subprocess.run([*root, "true"], capture_output=True, text=True, check=False).stderr
        # A server that ends before it listens, and a client that fails, after which its server is killed.
        with pytest.raises(ProgramFailed, match="exit status 3"):
            traffic.pair(guests, "sh -c 'exit 3'", "true", PORT)
        with pytest.raises(ProgramFailed, match=r"(?s)no such file.*still runs"):
            traffic.pair(guests, f"python3 -m http.server {PORT}", "sh -c 'echo no such file; exit 1'", PORT)
        assert not guests.tried(f"ss -Hltn 'sport = :{PORT}'", 1).stdout


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("echo '<4>WARNING: something is wrong' >/dev/kmsg", "(?s)reported trouble.*something is wrong"),
        ("echo 512 >/proc/sys/kernel/tainted", "unexpected taint W"),
        ("busybox poweroff -f", "guest 0 ended during"),
        ("echo c >/proc/sysrq-trigger", "sysrq triggered crash"),
    ],
)
def test_a_fault_fails_the_run(command, what):
    with pytest.raises(GuestFailed, match=what), Guests(driver="none", cpus=1) as guests:
        guests.run(command)


@pytest.mark.parametrize(
    ("devices", "seen"),
    [
        # InfiniBand has no rate of 150 Gbit/s; 120 is the next lower one.
        ({"instance": "hpc7a.96xlarge"}, ["2", "0xefa1", "120 Gb/sec (12X FDR10)", "2"]),
        # More than there are slots.
        ({"devices": ["profile=efa2"] * 17}, ["17", "0xefa2", "200 Gb/sec (4X HDR)", "17"]),
    ],
)
def test_devices(devices, seen):
    with Guests(**devices) as guests:
        assert guests.run(DEVICES).splitlines() == seen


def test_nodes_and_root_buses():
    with Guests(instance="p4d.24xlarge") as guests:
        places = [f"{node} /sys/devices/pci0000:{bus}/0000:{bus}:00.0" for node, bus in ((0, 10), (0, 20), (1, 90), (1, "a0"))]
        assert sorted(guests.run(PLACES.format("..")).splitlines()) == places
        assert guests.run("cat /sys/devices/system/node/node*/cpulist").split() == ["0", "1"]


def test_switches():
    with Guests(instance="p5.48xlarge") as guests:
        seen = collections.Counter(guests.run(PLACES.format("../..")).splitlines())
        assert (list(seen.values()), sorted(line[0] for line in seen)) == ([4] * 8, [*"00001111"])


def test_slots():
    """Slots can be switched, and devices pulled out and plugged in, twice, as a device that was pulled out stays in QEMU."""
    with Guests(devices=["profile=efa2", "profile=efa3"], hotplug=True) as guests:

        def run(command, *devices):
            guests.run(command)
            wait_until(lambda: tuple(guests.run("lspci -d 1d0f: | cut -d ' ' -f 1").split()) == devices, f"{devices} after {command}")

        run("echo 0 >/sys/bus/pci/slots/1/power", "02:00.0")
        run("echo 1 >/sys/bus/pci/slots/1/power", "01:00.0", "02:00.0")
        for _ in range(2):
            guests.control({"command": "unplug"})
            run(f"{MONITOR} pull 0", "02:00.0")
            run(f"{MONITOR} plug 0", "01:00.0", "02:00.0")


def test_a_missing_monitor():
    with Guests(driver="none", cpus=1) as guests:
        assert "start this guest with tools/vm --hotplug" in guests.tried(f"{MONITOR} pull 0").stdout
    assert not list(guests.folder.glob("ssh[0-9]"))
