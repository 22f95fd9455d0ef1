# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import os
import re
import subprocess

from stand_ins import CLONE, CONFIG, KERNEL, PROGRAMS, RUST_KIT, StandIns

MINUTES = 1
TIER = "check"


class RustKit(StandIns):
    def setUp(self):
        super().setUp()
        self.output = self.root / "kits" / KERNEL
        self.rust_kit = self.script("dkms/rust-kit", *RUST_KIT)

    def run_kit(self, *arguments, source="source"):
        arguments = arguments or ("--kernel", KERNEL, "--headers", self.headers)
        return self.run_script(*arguments, "--output", self.output, "--source", self.root / source)

    def run_script(self, *arguments):
        command = [self.rust_kit, *arguments]
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)

    def refuses(self, expected, *arguments, **options):
        """Fails unless rust-kit fails with that sentence, and leaves nothing behind."""
        result = self.run_kit(*arguments, **options)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr.splitlines()[-1], expected)
        self.assertFalse(self.output.exists())
        self.assertEqual(list(self.root.glob("rust-kit.*")) + list(self.root.glob("kits/*")), [])

    def test_makes_a_kit_of_links_and_metadata(self):
        result = self.run_kit()
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.output}\n"), result.stderr)
        self.assertEqual(os.readlink(self.output / ".config"), str(self.headers / ".config"))
        self.assertTrue((self.output / "rust/libkernel.rmeta").exists())
        self.assertTrue((self.output / "scripts/target.json").exists())
        self.assertTrue((self.output / "scripts/mod/modpost").exists())
        makefile = (self.output / "Makefile").read_text()
        self.assertEqual(makefile, f"KBUILD_OUTPUT={self.output}\ninclude {self.headers}-common/Makefile\n")
        self.assertFalse((self.headers / "scripts/target.json").exists())

    def test_of_a_source_and_nothing_else(self):
        (self.root / "lib/modules" / KERNEL).mkdir(parents=True)
        (self.root / "lib/modules" / KERNEL / "build").symlink_to(self.headers)
        result = self.run_script("--source", self.root / "source")
        output = self.root / "var/cache/efa-rs/kits" / KERNEL
        self.assertEqual((result.returncode, result.stdout), (0, f"{output}\n"), result.stderr)
        key = self.run_script("--key").stdout
        self.assertEqual((output / "key").read_text(), key)

    def test_leaves_the_headers_alone(self):
        target = self.write("headers/scripts/target.json", "another tool's")
        self.assertEqual(self.run_kit().returncode, 0)
        self.assertEqual((target.read_text(), (self.output / "scripts/target.json").read_text()), ("another tool's", ""))

    def test_replaces_an_older_kit(self):
        self.run_kit()
        (self.output / "old").touch()
        self.assertEqual(self.run_kit().returncode, 0)
        self.assertFalse((self.output / "old").exists())

    def test_a_folder_that_is_no_kit_stays(self):
        file = self.write(f"kits/{KERNEL}/precious", "text")
        result = self.run_kit()
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, "exists and is no kit: name another folder")
        self.assertEqual(file.read_text(), "text")

    def test_recovers_from_a_killed_run(self):
        self.write("make-hook", "kill -9 $PPID\n")
        self.assertNotEqual(self.run_kit().returncode, 0)
        self.assertFalse(self.output.exists())
        (self.root / "make-hook").unlink()
        self.write(f"kits/{KERNEL}.kit-new/rust/half", "what a run killed later would leave")
        self.assertEqual(self.run_kit().returncode, 0)
        self.assertFalse((self.output / "rust/half").exists())
        self.assertEqual([path.name for path in self.output.parent.iterdir()], [KERNEL])

    def test_headers_that_have_the_metadata(self):
        self.write("headers/rust/libkernel.rmeta", "")
        result = self.run_kit()
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.headers}\n"))
        self.assertIn("has Rust metadata of kernel", result.stderr)

    def test_the_tree_that_the_kernel_was_built_in(self):
        self.write("source/rust/libkernel.rmeta", "")
        self.write("source/.config", CONFIG)
        self.write("source/include/config/kernel.release", KERNEL + "\n")
        result = self.run_kit()
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}/source\n"), result.stderr)

    def test_a_tree_that_another_kernel_was_built_in(self):
        self.write("source/rust/libkernel.rmeta", "")
        self.write("source/.config", CONFIG)
        self.write("source/include/config/kernel.release", "7.3.13\n")
        self.refuses("source was built for another kernel or configuration")

    def test_what_a_build_by_dkms_knows_it_by(self):
        self.assertEqual(self.run_kit().returncode, 0)
        key = self.run_kit("--kernel", KERNEL, "--headers", self.headers, "--key").stdout
        self.assertEqual((self.output / "key").read_text(), key)
        with self.rust_kit.open("a") as file:
            file.write("# A later version of this script makes the same kits.\n")
        self.assertEqual(self.run_kit("--kernel", KERNEL, "--headers", self.headers, "--key").stdout, key)
        self.write("headers/Module.symvers", "0x00000000\tanother\tvmlinux\tEXPORT_SYMBOL_GPL\t\n")
        self.assertNotEqual(self.run_kit("--kernel", KERNEL, "--headers", self.headers, "--key").stdout, key)

    def cross(self):
        """Sets up a kernel of another architecture. Its compiler has another name on this machine."""
        cc = "aarch64-linux-gnu-gcc-14"
        self.write("headers/.config", CONFIG.replace("test-gcc-14", cc) + "CONFIG_ARM64=y\n")
        self.program(cc, PROGRAMS["test-gcc-14"].replace("test-gcc-14", cc))
        self.program("gcc-14", "exit 0")
        self.write("no-target", "")

    def test_a_kernel_of_another_architecture(self):
        self.cross()
        result = self.run_kit()
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.output}\n"), result.stderr)
        arguments = (self.root / "make-arguments").read_text().split()
        for argument in ("ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-", "CC=aarch64-linux-gnu-gcc-14", "HOSTCC=gcc-14"):
            self.assertIn(argument, arguments)
        self.assertFalse((self.output / "scripts/target.json").exists())

    def test_on_that_architecture(self):
        self.cross()
        self.program("uname", "echo aarch64")
        self.assertEqual(self.run_kit().returncode, 0)
        arguments = (self.root / "make-arguments").read_text().split()
        self.assertIn("HOSTCC=aarch64-linux-gnu-gcc-14", arguments)
        self.assertFalse([argument for argument in arguments if argument.startswith(("ARCH=", "CROSS_COMPILE="))])

    def test_missing_cross_compiler(self):
        self.cross()
        (self.root / "bin/aarch64-linux-gnu-gcc-14").unlink()
        self.refuses("C compiler is missing: install the package gcc-14-aarch64-linux-gnu")

    def test_missing_library_of_the_other_architecture(self):
        self.cross()
        cc = self.root / "bin/aarch64-linux-gnu-gcc-14"
        cc.write_text(cc.read_text().replace("|| exit 0", "|| exit 1"))
        self.refuses("install the package libc6-dev-arm64-cross")

    def test_unknown_option(self):
        self.refuses("'--frobnicate' is not an option", "--frobnicate")

    def test_missing_headers(self):
        self.refuses(
            "headers of kernel 6.1.0-1-amd64 are not complete .*: install the package linux-headers-6.1.0-1-amd64",
            "--kernel",
            "6.1.0-1-amd64",
        )

    def test_headers_of_another_kernel(self):
        self.refuses(f"has the headers of kernel .*{KERNEL[-5:]}, not of 7.3.13", "--kernel", "7.3.13", "--headers", self.headers)

    def test_kernel_without_rust(self):
        self.write("headers/.config", CONFIG.replace("CONFIG_RUST=y", "# CONFIG_RUST is not set"))
        self.refuses("built without Rust support")

    def test_another_c_compiler(self):
        self.program("test-gcc-14", "echo test-gcc-14 14.3.0")
        self.refuses("the C compiler here is 'test-gcc-14 14.3.0': install the package test-gcc-14 from")

    def test_another_rust_compiler(self):
        self.program("rustc", "echo 'rustc 1.90.0 (deadbeef 2025-09-01)'")
        self.refuses("built with 'rustc 1.85.1 .*' but the Rust compiler here is 'rustc 1.90.0 .*': install the package rustc")

    def test_another_bindgen(self):
        self.program("bindgen", "echo bindgen 0.72.1")
        self.refuses("the bindgen here is 'bindgen 0.72.1': install the package bindgen")

    def test_missing_bindgen(self):
        self.program("bindgen", "exit 127")
        self.refuses("bindgen is missing: install the package bindgen")

    def test_missing_rust_source(self):
        (self.root / "sysroot/lib/rustlib/src/rust/library/core/src/lib.rs").unlink()
        self.refuses("install the package rust-src")

    def test_missing_source(self):
        self.refuses("source of kernel .* is missing .*: install the package linux-source-7.3", source="nowhere.tar.xz")

    def test_damaged_source(self):
        self.write("linux-source-7.3.tar", "not a tar file")
        self.refuses("could not be unpacked", source="linux-source-7.3.tar")

    def test_source_of_another_release(self):
        self.write("source/Makefile", "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 1\n")
        self.refuses("the source is of 7.3.1: install the version of linux-source-7.3 that belongs to")

    def test_source_that_something_was_done_in(self):
        for name in (".config", "include/config/auto.conf", "arch/x86/include/generated/asm/unistd.h"):
            file = self.write(f"source/{name}", "")
            with self.subTest(name):
                self.refuses(r"/source was configured or built in place .*: run 'make mrproper' in it")
            file.unlink()
            while not any(file.parent.iterdir()):
                file.parent.rmdir()
                file = file.parent

    def test_a_build_that_fails(self):
        for target, sentence in (("olddefconfig", "could not be configured"), ("prepare", "Rust part of kernel .* could not be built")):
            self.write("make-hook", f'for a; do [ "$a" != {target} ] || exit 2; done\n')
            with self.subTest(target):
                self.refuses(sentence)

    def test_packages_are_called_as_on_fedora(self):
        self.write("etc/os-release", 'NAME="Amazon Linux"\nID="amzn"\nID_LIKE="fedora"\n')
        spec = (CLONE / "rpm/efa-rs-dkms.spec").read_text()
        for program, package in (("rustc", "rust"), ("bindgen", "bindgen-cli")):
            self.program(program, "exit 1")
            self.refuses(f"is missing: install the package {package}\\.$")
            self.program(program, PROGRAMS[program])
            self.assertIn(f" {package}\n", spec)
        for header, package in (("gelf.h", "elfutils-libelf-devel"), ("dwarf.h", "elfutils-devel"), ("openssl", "openssl-devel")):
            self.program("test-gcc-14", PROGRAMS["test-gcc-14"].replace("exit 0", f"{{ ! grep -q {header}; exit; }}"))
            self.refuses(f"install the package {package}\\.$")
            self.assertIn(f" {package}\n", spec)
        self.refuses("install the package kernel-devel-7.3.1-200.fc44.x86_64", "--kernel", "7.3.1-200.fc44.x86_64")

    def test_there_the_source_is_in_no_package(self):
        self.write("etc/os-release", "ID=fedora\n")
        self.refuses("source of kernel .* is missing .*: unpack the source of just this kernel, and run '.*--source DIR'", source="nowhere")

    def test_and_on_arch_linux(self):
        self.write("etc/os-release", "ID=arch\n")
        self.refuses(r"install the package linux-headers\.$", "--kernel", "7.3.1-arch1-1")
        self.program("rustc", "echo 'rustc 1.90.0 (deadbeef 2025-09-01)'")
        self.refuses("install the package rust from the kernel's own")

    def test_and_on_ubuntu_with_their_releases(self):
        self.write("etc/os-release", "ID=ubuntu\nID_LIKE=debian\n")
        for program, package in (("rustc", r"rustc-1\.85"), ("bindgen", r"bindgen-0\.71")):
            self.program(program, "exit 1")
            self.refuses(f"is missing: install the package {package}\\.$")
            self.program(program, PROGRAMS[program])

    def test_there_they_have_to_be_named_and_the_source_is_in_no_package(self):
        self.write("etc/os-release", "ID=ubuntu\nID_LIKE=debian\n")
        self.program("rustc", "echo 'rustc 1.93.1 (01f6ddf75 2026-02-11)'")
        self.refuses(r"install the package rustc-1\.85 from .*, and set RUSTC and BINDGEN to the programs with such numbers\.$")
        self.program("rustc", PROGRAMS["rustc"])
        run = f"run 'apt-get source linux-headers-{re.escape(KERNEL)}' .*, and '.*--source DIR' with its folder"
        self.refuses(rf"source of kernel .* is missing .*: {run}\.$", source="nowhere")
        # The headers' Makefile is that of the kernel's source, whose number is not in the kernel's release.
        self.write("headers/Makefile", "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 2\n")
        self.refuses(rf"the source is of 7.3.12: {run}\.$")
        self.write("source/Makefile", "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 2\nEXTRAVERSION =\n")
        self.assertEqual(self.run_kit().returncode, 0)

    def test_configuration_that_would_change(self):
        self.write("make-hook", 'for a; do case $a in O=*) echo "CONFIG_NEW=y" >>"${a#O=}/.config" ;; esac; done\n')
        self.refuses("configuration does not fit this source and toolchain .it would change: CONFIG_NEW=y")

    def test_symbols_that_the_kernel_does_not_export(self):
        self.write("headers/Module.symvers", "0x00000000\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n")
        self.refuses("1 of 1 Rust symbols are not those of kernel .*first: _RNvCs_6kernel4init")
