# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Output of dkms/advise for the running kernel, and actions of dkms/load after an installation, on a stand-in for a machine."""

import subprocess
import unittest

from stand_ins import StandIns

KERNEL = "7.3.4"
REJECTED = ("Loading of module with unavailable key is rejected", "Lockdown: modprobe: unsigned module loading is restricted")


class Running(StandIns):
    def setUp(self):
        super().setUp()
        self.advise = self.script("dkms/advise", "/lib/modules", "/sys/", "/usr/sbin")
        self.program("uname", f"echo {KERNEL}")
        self.program("modinfo", "echo 0.1.99")
        self.program("dmesg", 'cat "$ROOT/log"')
        self.write("log", "Booting\n")
        self.write(f"lib/modules/{KERNEL}/build/.config", "CONFIG_RUST=y\nCONFIG_INFINIBAND_USER_ACCESS=m\n")

    def says(self, pattern, *arguments):
        command = [self.advise, *arguments]
        said = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=True).stdout
        self.assertRegex(said, pattern)

    def test_a_driver_that_is_not_loaded(self):
        self.says("^$")

    def test_a_user_without_the_folder_of_modinfo(self):
        (self.root / "usr/sbin").mkdir(parents=True)
        (self.root / "bin/modinfo").rename(self.root / "usr/sbin/modinfo")
        self.says("^$")

    def test_one_that_is(self):
        self.write("sys/module/efa/version", "0.1.99\n")
        self.says("^$")

    def test_an_upgrade_leaves_the_old_one(self):
        self.write("sys/module/efa/version", "0.1.0\n")
        self.says("^efa-rs: The running kernel 7.3.4 still uses the module that was loaded before: .*'rmmod efa && modprobe efa'")

    def test_so_does_an_installation_over_another_driver(self):
        self.write("sys/module/efa/refcnt", "0\n")
        self.says("still uses the module that was loaded before")

    def test_another_kernel_that_has_the_driver(self):
        configuration = self.root / f"lib/modules/{KERNEL}/build/.config"
        configuration.write_text("CONFIG_INFINIBAND_USER_ACCESS=m\n")
        self.says(r"^efa-rs: The running kernel 7.3.4 gets no driver, as .* \(CONFIG_RUST\): install one that has it \(on Debian 13 ")
        self.write("lib/modules/7.3.9/updates/dkms/efa.ko.xz", "")
        self.says(r"^efa-rs: The running kernel 7.3.4 gets no driver, as .* \(CONFIG_RUST\)\. Kernel 7.3.9 has it: reboot into that one\.$")

    def test_secure_boot_without_the_key(self):
        for line in REJECTED:
            self.write("log", f"Booting\n{line}\n")
            self.says("^efa-rs: The running kernel 7.3.4 rejects the driver, .*mokutil --import /var/lib/dkms/mok.pub")

    def test_a_removal_says_how_to_return_to_amazons(self):
        self.says("^efa-rs: The driver is removed. .*Amazon's EFA installer again", "--removed")

    def test_a_build_for_a_kernel_says_nothing_of_the_running_one(self):
        self.write("sys/module/efa/version", "0.1.0\n")
        self.says("^$", "--kernel", KERNEL)


class Load(StandIns):
    def setUp(self):
        super().setUp()
        self.load = self.script("dkms/load", "/run/systemd")
        self.program("modinfo", "echo efa")
        self.systemd("loaded")
        self.write("run/systemd/system/unit", "")

    def systemd(self, state):
        self.program("systemctl", f'case $* in show*) echo {state} ;; *) echo "$@" >>"$ROOT/done" ;; esac')

    def does(self, *commands):
        subprocess.run([self.load], env=self.environment(), check=True)
        done = self.root / "done"
        self.assertEqual(done.read_text().splitlines() if done.exists() else [], list(commands))

    def test_what_each_boot_does(self):
        self.does("daemon-reload", "start modprobe@efa.service")

    def test_nothing_if_an_administrator_has_masked_that(self):
        self.systemd("masked")
        self.does("daemon-reload")

    def test_nothing_in_a_chroot(self):
        (self.root / "run/systemd/system").rename(self.root / "run/systemd/other")
        self.does()

    def test_nothing_without_a_module(self):
        self.program("modinfo", "exit 1")
        self.does()


if __name__ == "__main__":
    unittest.main()
