# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Output of dkms/advise for the running kernel, and actions of dkms/load after an installation, on a stand-in for a machine."""

import subprocess

from stand_ins import StandIns

MINUTES = 1
TIER = "check"

KERNEL = "7.3.4"
# Each distribution's os-release, its command for a kernel's headers, and the certificate of the key that its DKMS signs with.
DKMS = "/var/lib/dkms/mok.pub"
DISTRIBUTIONS = {
    "debian": ("ID=debian", "run 'apt install linux-headers-7.3.4'", DKMS),
    "ubuntu": (
        "ID=ubuntu\nID_LIKE=debian",
        "run 'apt install linux-headers-7.3.4'",
        "/var/lib/shim-signed/mok/MOK.der",
    ),
    "fedora": ("ID=fedora", "run 'dnf install kernel-devel-7.3.4'", DKMS),
    "amazon": ('ID="amzn"\nID_LIKE="fedora"', "run 'dnf install kernel-devel-7.3.4'", DKMS),
    "rocky": ('ID="rocky"\nID_LIKE="rhel centos fedora"', "run 'dnf install kernel-devel-7.3.4'", DKMS),
    "arch": ("ID=arch", "run 'pacman -S linux-headers'", DKMS),
    "other": ("ID=other", "install its headers", DKMS),
}
REJECTED = ("Loading of module with unavailable key is rejected", "Lockdown: modprobe: unsigned module loading is restricted")


class Running(StandIns):
    def setUp(self):
        super().setUp()
        self.advise = self.script("dkms/advise", "/lib/modules", "/sys/", "/usr/sbin", "/etc/")
        self.program("uname", f"echo {KERNEL}")
        self.program("modinfo", 'case $* in *"field srcversion"*) echo 7D3 ;; *) echo 3.3.1-rs0.1.99 ;; esac')
        self.program("dmesg", 'cat "$ROOT/log"')
        self.write("log", "Booting\n")
        self.write(f"lib/modules/{KERNEL}/build/.config", "CONFIG_RUST=y\nCONFIG_INFINIBAND_USER_ACCESS=m\nCONFIG_NET_DEVLINK=y\n")

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
        self.write("sys/module/efa/version", "3.3.1-rs0.1.99\n")
        self.write("sys/module/efa/srcversion", "7D3\n")
        self.says("^$")

    def test_an_upgrade_leaves_the_old_one(self):
        for version, sources in (("3.3.1-rs0.1.0", "7D3"), ("3.3.1-rs0.1.99", "7D2")):
            self.write("sys/module/efa/version", f"{version}\n")
            self.write("sys/module/efa/srcversion", f"{sources}\n")
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
            self.says("^efa-rs: The running kernel 7.3.4 rejects the driver, .*'mokutil --import /var/lib/dkms/mok.pub'")

    def test_a_key_that_the_administrator_has_chosen(self):
        self.write("log", f"{REJECTED[0]}\n")
        self.write("etc/dkms/framework.conf", "# mok_certificate=/var/lib/dkms/mok.pub\n")
        self.says("'mokutil --import /var/lib/dkms/mok.pub'")
        self.write("etc/dkms/framework.conf.d/own.conf", 'mok_certificate="/root/own.der"\n')
        self.says("'mokutil --import /root/own.der'")

    def test_commands_and_paths_are_the_distributions(self):
        for name, (release, headers, certificate) in DISTRIBUTIONS.items():
            with self.subTest(name):
                self.write("etc/os-release", f"NAME=x\n{release}\n")
                configuration = self.write(f"lib/modules/{KERNEL}/build/.config", "CONFIG_RUST=y\n")
                source = r" \(on Debian 13 with 'apt install .*'\)" if name == "debian" else ""
                self.says(rf"\(CONFIG_INFINIBAND_USER_ACCESS\): install one that has it{source}, then reboot\.$")
                configuration.unlink()
                self.says(rf"^efa-rs: The running kernel 7.3.4 has no driver, as its headers are missing: {headers}\.$")
                configuration.write_text("CONFIG_RUST=y\nCONFIG_INFINIBAND_USER_ACCESS=m\nCONFIG_NET_DEVLINK=y\n")
                self.write("log", f"{REJECTED[0]}\n")
                self.says(f"'mokutil --import {certificate}'")

    def test_ubuntus_package_of_metadata_is_that_of_generic_kernels(self):
        self.write("etc/os-release", "ID=ubuntu\n")
        release = "7.3.0-8-generic"
        (self.root / "lib/modules" / release).mkdir()
        for machine, package in (("x86_64", f" linux-lib-rust-{release}"), ("aarch64", "")):
            self.program("uname", f"[ $1 = -m ] && echo {machine} || echo {release}")
            self.says(f"headers are missing: run 'apt install linux-headers-{release}{package}'")

    def test_a_removal_says_how_to_return_to_amazons(self):
        self.says("^efa-rs: The driver is removed. .*Amazon's EFA installer again", "--removed")

    def test_a_build_for_a_kernel_says_nothing_of_the_running_one(self):
        self.write("sys/module/efa/version", "3.3.1-rs0.1.0\n")
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
