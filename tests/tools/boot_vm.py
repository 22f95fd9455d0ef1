# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Boots guests, mostly without a driver or a device, and checks how the runner handles their ends."""

import collections
import os
import re
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import support
from support import CLONE, tool


def vm(*arguments):
    # A guest with one CPU boots in a quarter less time.
    return tool("vm", "--driver", "none", "--cpus", "1", *arguments)


class Arguments(unittest.TestCase):
    def refuses(self, expected, *arguments):
        result = vm(*arguments)
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, expected)
        self.assertNotIn("Traceback", result.stderr)

    def test_unknown_flavour(self):
        self.refuses("invalid choice: 'rt-amd64'", "--flavour", "rt-amd64", "true")

    def test_no_guests(self):
        self.refuses("must be 1 or more", "--guests", "0", "true")

    def test_wrong_memory(self):
        self.refuses("--memory: must be a whole number of M or G, such as 512M", "--memory", "1.5G", "true")

    def test_missing_file(self):
        self.refuses("There is no file /nowhere/efa-emu: name one that exists.", "--emulator", "/nowhere/efa-emu", "true")

    def test_missing_folder(self):
        self.refuses("There is no folder /nowhere: give --share one that exists.", "--share", "/nowhere", "true")

    def test_an_output_folder_that_is_used(self):
        self.refuses("The folder / is not empty: give --output", "--output", "/", "true")

    def test_shell_without_terminal(self):
        self.refuses("A shell needs a terminal")

    def test_unknown_instance(self):
        self.refuses("no such instance: `p9.metal`, expected one of c5n.18xlarge, ", "--instance", "p9.metal", "true")

    def test_instance_and_devices(self):
        self.refuses("--device: not allowed with argument --instance", "--instance", "p4d.24xlarge", "--device", "profile=efa2", "true")

    def test_wrong_kernel(self):
        result = tool("build", "module", "--kernel", "6.1.0-1-amd64")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "There is no kernel 6.1.0-1-amd64 in the toolroot: choose one of 7.3")


def run_folder(result):
    return Path(re.search(r"logs in (\S+)", result.stderr)[1])


class Plain(unittest.TestCase):
    """Checks of a single boot."""

    COMMAND = (
        "echo $EFA_DRIVER $EFA_FLAVOUR [$EFA_KO]; ls -d /efa-rs/tools; cat /share/here /proc/cmdline"
        "; echo $(nproc) $(ld.so --help | grep -om1 'x86-64-v.* (supported')"
        "; cat /sys/devices/virtual/dmi/id/board_asset_tag; touch /run/efa-rs/out/here /usr/x; touch /efa-rs/x"
        "; touch /share/there || exit 7"
    )

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.share = Path(folder.name)
        (cls.share / "here").write_text("hello\n")
        cls.result = vm("--append", "swiotlb=force efa_test", "--share", folder.name, cls.COMMAND)
        cls.lines = cls.result.stdout.splitlines()

    def test_output_environment_and_exit_status(self):
        self.assertEqual((self.result.returncode, self.lines[:2]), (7, ["none cloud-amd64 []", "/efa-rs/tools"]))
        self.assertTrue((run_folder(self.result) / "shared/out/here").exists())
        self.assertFalse((CLONE / "x").exists())
        self.assertRegex((run_folder(self.result) / "guest0.console.log").read_text(), r"Linux version 7\.3\.")

    def test_a_folder_of_the_host(self):
        self.assertEqual(self.lines[2], "hello")
        self.assertFalse((self.share / "there").exists())

    def test_kernel_parameters(self):
        self.assertIn(" swiotlb=force efa_test ", self.lines[3])

    def test_cpus(self):
        # The level that EC2's instances with EFA have, at least; without KVM just this one.
        self.assertRegex(self.lines[4], r"^1 x86-64-v[34] ")

    def test_host_id(self):
        self.assertEqual(self.lines[5], "i-00000000000efa000")


class Guest(unittest.TestCase):
    def test_slots_can_be_switched(self):
        monitor = '/efa-rs/tools/guest/monitor.py \'{"execute":"query-status"}\' \'{"execute":"query-name"}\''
        seen = "echo $(lspci -d 1d0f: | cut -d ' ' -f 1)"
        switch = "echo {} >/sys/bus/pci/slots/1/power; " + seen
        devices = ("--device", "profile=efa2", "--device", "profile=efa3")
        result = vm("--hotplug", *devices, "; ".join([monitor, seen, switch.format(0), switch.format(1)]))
        answers = ['{"status": "running", "running": true}', "{}"]
        self.assertEqual(result.stdout.splitlines(), [*answers, "01:00.0 02:00.0", "02:00.0", "01:00.0 02:00.0"], result.stderr)

    def test_links_in_slots(self):
        # Links of the device and of its port: NIXL takes the port's for the limit of the device.
        links = "cat /sys/bus/pci/devices/0000:01:00.0/{current,max}_link_{speed,width}"
        port = "cd -P /sys/bus/pci/devices/0000:01:00.0/..; cat current_link_speed current_link_width"
        result = tool("vm", "--hotplug", "--instance", "p5en.48xlarge", f"bash -c '{links}; {port}'")
        self.assertEqual(result.stdout.splitlines(), ["16.0 GT/s PCIe", "16"] * 3, result.stderr)

    def devices(self, *arguments):
        """Returns a guest's view of its devices: their number, PCI ids, link speeds, and the number of GUIDs."""
        command = (
            "cd /sys/class/infiniband; ls | wc -l; cat */device/device | sort -u; cat */ports/1/rate | sort -u;"
            " cat */node_guid | sort -u | wc -l"
        )
        result = tool("vm", *arguments, command)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.splitlines()

    def test_an_instance(self):
        # InfiniBand has no rate of 150 Gbit/s; 120 is the next lower one. A profile's link has 100, 200 or 400 Gbit/s.
        self.assertEqual(self.devices("--instance", "hpc7a.96xlarge"), ["2", "0xefa1", "120 Gb/sec (12X FDR10)", "2"])

    def test_more_devices_than_slots(self):
        devices = ("--device", "profile=efa2") * 17
        self.assertEqual(self.devices(*devices), ["17", "0xefa2", "200 Gb/sec (4X HDR)", "17"])

    def test_root_buses_and_nodes_of_an_instance(self):
        devices = "cd /sys/class/infiniband; for one in *; do echo $(cat $one/device/numa_node) $(cd -P $one/device/..; pwd); done"
        result = tool("vm", "--instance", "p4d.24xlarge", f"cat /sys/devices/system/node/node*/cpulist; {devices}")
        places = [f"{node} /sys/devices/pci0000:{bus}/0000:{bus}:00.0" for node, bus in ((0, 10), (0, 20), (1, 90), (1, "a0"))]
        cpus, places_seen = result.stdout.splitlines()[:2], result.stdout.splitlines()[2:]
        self.assertEqual((cpus, sorted(places_seen)), (["0", "1"], places), result.stderr)

    def test_switches_of_an_instance(self):
        # A device's port is below another port, that of the switch.
        above = "cd /sys/class/infiniband; for one in *; do echo $(cat $one/device/numa_node) $(cd -P $one/device/../..; pwd); done"
        link = "cat */device/current_link_speed */device/../current_link_speed */device/../../current_link_speed | sort -u"
        result = tool("vm", "--instance", "p5.48xlarge", f"{above}; {link}")
        *lines, speed = result.stdout.splitlines()
        seen = collections.Counter(lines)
        self.assertEqual((list(seen.values()), speed), ([4] * 8, "8.0 GT/s PCIe"), result.stderr)
        self.assertEqual(sorted(line.split()[0] for line in seen), [*"00001111"])

    def test_a_device_is_pulled_out_and_plugged_in(self):
        # Twice, as a device that was pulled out stays in QEMU.
        seen = "{ lspci -d 1d0f: | cut -d ' ' -f 1 | xargs; }"
        settle = f'while [ "$({seen})" = "$before" ]; do sleep 0.1; done; {seen}'
        pull = '/efa-rs/tests/kselftest/emu \'{"command":"unplug"}\'; /efa-rs/tools/guest/monitor.py pull 0'
        steps = [f"before=$({seen}); {step}; {settle}" for step in (pull, "/efa-rs/tools/guest/monitor.py plug 0")]
        result = vm("--hotplug", "--device", "profile=efa2", "--device", "profile=efa3", "; ".join(steps * 2))
        self.assertEqual(result.stdout.splitlines(), ['{"ok":{}}', "02:00.0", "01:00.0 02:00.0"] * 2, result.stderr)

    def test_the_monitor_needs_its_port(self):
        result = vm('/efa-rs/tools/guest/monitor.py \'{"execute":"query-status"}\'')
        text = "There is no port /dev/virtio-ports/qemu.monitor: start this guest with tools/vm --hotplug.\n"
        self.assertEqual((result.returncode, result.stdout), (1, text))

    def test_a_warning_fails_the_run(self):
        result = vm("echo '<4>WARNING: something is wrong' >/dev/kmsg; echo done")
        self.assertEqual((result.returncode, result.stdout), (1, "done\n"))
        self.assertRegex(result.stderr, r"(?s)WARNING: something is wrong.*The kernel of guest 0 reported trouble")

    def test_an_unexpected_taint_fails_the_run(self):
        result = vm("echo 512 >/proc/sys/kernel/tainted")
        self.assertEqual(result.returncode, 1)
        self.assertIn("unexpected taint W", result.stderr)

    def test_a_guest_that_ends_early_fails_the_run(self):
        result = vm("busybox poweroff -f")
        self.assertEqual(result.returncode, 1)
        self.assertIn("Guest 0 ended before its command did", result.stderr)

    def test_a_crash_fails_the_run(self):
        result = vm("echo c >/proc/sysrq-trigger")
        self.assertEqual(result.returncode, 1)
        self.assertIn("sysrq triggered crash", result.stderr)

    def test_the_time_limit(self):
        result = vm("--timeout", "2", "sleep 1000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("did not end within 2 s", result.stderr)

    def test_two_runs_at_once(self):
        command = [CLONE / "tools" / "vm", "--driver", "none", "sleep 1; exit 5"]
        runs = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
        self.assertEqual([run.wait() for run in runs], [5, 5])

    def test_guests_reach_each_other(self):
        talk = (
            "python3 -c 'import os, socket, time\n"
            'if os.environ["EFA_GUEST"] == "0":\n'
            '    server = socket.create_server(("10.0.0.1", 4000)); print(server.accept()[0].recv(9).decode())\n'
            "else:\n"
            "    while True:\n"
            "        try:\n"
            '            socket.create_connection(("guest0", 4000), 5).sendall(b"hello"); break\n'
            "        except OSError:\n"
            "            time.sleep(0.1)\n'"
        )
        result = vm("--guests", "2", talk)
        self.assertEqual((result.returncode, result.stdout), (0, "guest0: hello\n"), result.stderr)

    def test_the_end_of_the_leader_is_the_end_of_all(self):
        # ssh waits for a guest that is still booting.
        command = "if [ $EFA_GUEST = 1 ]; then sleep 1000; fi; ssh guest1 echo done by \\$EFA_GUEST && exit 6"
        result = vm("--guests", "2", "--leader", command)
        self.assertEqual((result.returncode, result.stdout.splitlines()), (6, ["done by 1"]), result.stderr)

    def test_a_guest_whose_command_has_ended_stays_for_the_leader(self):
        ended = "/run/efa-rs/out/ended"
        command = f"if [ $EFA_GUEST = 1 ]; then touch {ended}; exit; fi; until [ -e {ended} ]; do sleep 0.1; done; ssh guest1 echo there"
        result = vm("--guests", "2", "--leader", command)
        self.assertEqual((result.returncode, result.stdout), (0, "there\n"), result.stderr)

    def test_a_leader_that_is_left_alone_fails_the_run(self):
        result = vm("--guests", "2", "--leader", "if [ $EFA_GUEST = 1 ]; then echo no room; exit 3; fi; sleep 1000")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"(?s)no room\nGuest 1 ended while guest 0 still ran")


class Interrupted(unittest.TestCase):
    """Runs that a signal ends, after the guests have printed their output."""

    def interrupted(self, command):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "run"
            program = [CLONE / "tools" / "vm", "--driver", "none", "--cpus", "1", "--output", output, f"{command}; echo here; sleep 1000"]
            process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(process.stdout.readline(), "here\n")
            os.kill(process.pid, signal.SIGTERM)
            _, errors = process.communicate()
            # The kernel kills processes that have lost their parent, but only after the parent's end.
            pgrep = ["pgrep", "-f", str(output)]
            support.wait_until(
                lambda: not subprocess.run(pgrep, capture_output=True, text=True, check=False).stdout, "what was left did not end"
            )
            return process.returncode, errors

    def test_a_run_that_was_well(self):
        status, errors = self.interrupted("true")
        self.assertEqual(status, 128 + signal.SIGTERM, errors)
        self.assertIn("interrupted by SIGTERM; until then no kernel reported trouble", errors)

    def test_a_run_that_was_not(self):
        status, errors = self.interrupted("echo '<4>WARNING: something is wrong' >/dev/kmsg; sleep 1")
        self.assertEqual(status, 1, errors)
        self.assertIn("The kernel of guest 0 reported trouble", errors)


if __name__ == "__main__":
    unittest.main()
