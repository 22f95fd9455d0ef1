# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tally and checks of make check-install, without a machine."""

import subprocess
import unittest
from unittest import mock

import support
from efa_tools import install, ktap, machine, namespace, package, patience, qemu, steps
from efa_tools.failure import Failure
from efa_tools.tally import Tally
from stand_ins import StandIns


class Scenario:
    tally = Tally()
    machine = mock.Mock()

    def __init__(self, *_):
        pass

    def end(self):
        return Tally(passed=3)


def without_machine(_):
    raise Failure("It has no root.")


class Scenarios(unittest.TestCase):
    def test_one_that_cannot_run_keeps_no_other_from_it(self):
        scenarios = {"first": (without_machine, True), "second": (Scenario, False)}
        with (
            mock.patch.object(package, "deb"),
            mock.patch.object(namespace, "remove"),
            mock.patch.object(steps, "note") as note,
            mock.patch.multiple(install, fresh=Scenario, depends=Scenario, SCENARIOS=scenarios),
        ):
            total = install.run()
        self.assertEqual((total.passed, total.failures), (6, ["first could not run to its end"]))
        self.assertIn("It has no root.", str(note.call_args))


class Driver(StandIns):
    """The checks within a machine, on a stand-in for it."""

    def setUp(self):
        super().setUp()
        self.driver = self.script("tests/install/driver.sh", "/sys/", "/usr/src")
        self.program("uname", "echo 7.3")
        answers = {"Wants": "wants", "LoadState": "state", "=Before": "before", "Timestamp": "times"}
        cases = " ".join(f'*{asked}*) cat "$ROOT/{file}" ;;' for asked, file in answers.items())
        self.program("systemctl", f"case $* in {cases} esac")
        self.write("before", "shutdown.target sysinit.target\n")
        self.write("state", "loaded\n")
        self.program("modprobe", "exit 1")
        self.program("modinfo", 'cat "$ROOT/module"')
        self.wants("")

    def wants(self, text):
        """Sets the units that sysinit.target wants."""
        self.write("wants", f"systemd-udevd.service {text}\n")

    def package(self):
        self.write("usr/src/efa-rs-0.1.0/dkms.conf", "")
        self.write("module", "/lib/modules/7.3/updates/dkms/efa.ko.xz\n")
        self.wants("modprobe@efa.service")

    def module(self):
        self.write("sys/module/efa/version", "")

    def fails(self, state, boot="running"):
        """Returns the checks that fail in that state."""
        command, environment = [self.driver, state], self.environment() | {"EFA_BOOT": boot}
        text = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
        tally = ktap.parse(text)
        self.assertIn(f"\n1..{tally.total()}\n", text)
        return tally.failures

    def test_a_machine_without_the_driver(self):
        self.assertEqual(self.fails("absent"), [])
        self.wants("modprobe@efa.service")
        self.assertEqual(self.fails("absent"), ["the boot waits for the driver if and only if the package is installed"])

    def test_one_whose_kernel_has_none(self):
        self.package()
        self.assertEqual(self.fails("absent"), [])
        self.wants("")
        self.assertEqual(self.fails("absent"), ["the boot waits for the driver if and only if the package is installed"])

    def test_one_without_a_device(self):
        self.package()
        self.module()
        self.assertEqual(self.fails("idle"), [])
        self.wants("")
        self.assertEqual(self.fails("idle"), ["the boot waits for the driver"])

    def times(self, ended, reached, status=0):
        """Sets the times at which the driver was loaded, and at which sysinit.target was reached."""
        self.write("times", f"ExecMainExitTimestampMonotonic={ended}\nExecMainStatus={status}\nActiveEnterTimestampMonotonic={reached}\n")

    def test_one_whose_services_find_the_driver(self):
        self.package()
        self.module()
        self.write("sys/bus/pci/drivers/efa/0000:00:04.0/vendor", "")
        self.program("ibv_devinfo", "echo PORT_ACTIVE")
        collects = "efa-report collects what a report needs"
        self.times(100, 100)
        self.assertEqual(self.fails("present"), [collects])
        for times in ((101, 100), (0, 100), (99, 100, 1)):
            self.times(*times)
            self.assertEqual(self.fails("present"), [collects, "the driver was loaded before any service"])
        self.times(100, 100)
        self.write("before", "shutdown.target\n")
        self.assertEqual(self.fails("present"), [collects, "the driver was loaded before any service"])

    def test_one_whose_administrator_does_not_want_it(self):
        self.package()
        self.assertEqual(self.fails("blacklisted"), [])
        self.assertEqual(self.fails("off"), ["the boot does not wait for the driver"])
        self.write("state", "masked\n")
        self.assertEqual(self.fails("off"), [])
        self.assertEqual(self.fails("blacklisted"), ["the boot would wait for the driver"])

    def test_one_into_which_it_was_inserted(self):
        self.module()
        self.program("modinfo", "exit 1")
        self.write("sys/bus/pci/drivers/efa/0000:00:04.0/vendor", "")
        self.program("ibv_devinfo", "echo PORT_ACTIVE")
        self.assertEqual(self.fails("inserted"), [])
        self.package()
        self.program("modinfo", 'cat "$ROOT/module"')
        self.assertEqual(self.fails("inserted"), ["no other driver is installed"])

    def test_one_with_the_other_driver(self):
        self.module()
        self.write("module", "/lib/modules/7.3/kernel/drivers/infiniband/hw/efa/efa.ko.xz\n")
        self.assertEqual(self.fails("c"), [])
        self.wants("modprobe@efa.service")
        self.assertEqual(self.fails("c"), ["the boot does not wait for ours"])

    def test_one_on_which_something_failed(self):
        self.package()
        for state in ("absent", "blacklisted"):
            self.assertEqual(self.fails(state, "degraded"), ["no unit failed during the boot"])


class Boot(unittest.TestCase):
    def test_a_machine_has_its_own_kernel(self):
        self.assertEqual(machine.Boot.image(mock.Mock(), 0), (f"{qemu.RUN}/vmlinuz", []))

    def test_services_have_as_long_to_start_as_the_boot(self):
        for slow in (1, 4):
            boot = mock.Mock(**{"boot_slowness.return_value": slow})
            self.assertIn(f"systemd.default_timeout_start_sec={slow * patience.PATIENCE} ", machine.Boot.init(boot))


class Guide(unittest.TestCase):
    def test_says_how_a_module_is_loaded_by_hand(self):
        commands = install.INSERT_COMMANDS.search((support.CLONE / package.GUIDE).read_text())
        self.assertEqual(commands.groups(), ("modprobe ib_uverbs", "insmod efa.ko"))


if __name__ == "__main__":
    unittest.main()
