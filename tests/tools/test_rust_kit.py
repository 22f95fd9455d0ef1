# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs the script with headers, source and compilers that are stand-ins, so that each way it can end takes no time."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import support

KERNEL = "7.3.12+deb13-amd64"
CONFIG = """CONFIG_CC_VERSION_TEXT="test-gcc-14 (Debian 14.2.0-19) 14.2.0"
CONFIG_RUST=y
CONFIG_RUSTC_VERSION_TEXT="rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)"
CONFIG_BINDGEN_VERSION_TEXT="bindgen 0.71.1"
"""
PROGRAMS = {
    # Preprocesses any header, if asked to.
    "test-gcc-14": '[ "$1" = --version ] || exit 0; echo "test-gcc-14 (Debian 14.2.0-19) 14.2.0"; echo Copyright',
    "rustc": 'case $1 in --print) echo "$ROOT/sysroot" ;; *) echo "rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)" ;; esac',
    "bindgen": "echo bindgen 0.71.1",
    "flex": "",
    "bison": "",
    "bc": "",
    "uname": "echo x86_64",
    "make": """
[ ! -e "$ROOT/make-hook" ] || . "$ROOT/make-hook"
for argument; do
	case $argument in
	O=*) object=${argument#O=} ;;
	esac
done
echo "$*" >"$ROOT/make-arguments"
mkdir -p "$object/rust" "$object/scripts"
echo "EXPORT_SYMBOL_RUST_GPL(_RNvCs_6kernel4init);" >"$object/rust/exports_kernel_generated.h"
touch "$object/rust/libkernel.rmeta" "$object/rust/libmacros.so"
[ -e "$ROOT/no-target" ] || touch "$object/scripts/target.json"
""",
}


class RustKit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.headers, self.output = self.root / "headers", self.root / "kits" / KERNEL
        for name, script in PROGRAMS.items():
            self.program(name, script)
        self.write("headers/.config", CONFIG)
        self.write("headers/Makefile", f"KBUILD_OUTPUT={self.headers}\ninclude {self.headers}-common/Makefile\n")
        self.write("headers/Module.symvers", "0x00000000\t_RNvCs_6kernel4init\tvmlinux\tEXPORT_SYMBOL_GPL\t\n")
        self.write("headers/include/config/kernel.release", KERNEL + "\n")
        self.write("headers/scripts/mod/modpost", "")
        self.write("source/Makefile", "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 12\nEXTRAVERSION =\n")
        self.write("source/rust/Makefile", "")
        self.write("source/rust/bindgen_parameters", "")
        self.write("sysroot/lib/rustlib/src/rust/library/core/src/lib.rs", "")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name, script):
        self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n").chmod(0o755)

    def run_kit(self, *arguments, source="source"):
        arguments = arguments or ("--kernel", KERNEL, "--headers", self.headers)
        command = [support.CLONE / "tools" / "rust-kit", *arguments, "--output", self.output, "--source", self.root / source]
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "ROOT": str(self.root), "TMPDIR": str(self.root)}
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def refuses(self, expected, *arguments, **options):
        """It fails with that sentence, and leaves nothing behind."""
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

    def test_leaves_the_headers_alone(self):
        target = self.write("headers/scripts/target.json", "another tool's")
        self.assertEqual(self.run_kit().returncode, 0)
        self.assertEqual((target.read_text(), (self.output / "scripts/target.json").read_text()), ("another tool's", ""))

    def test_replaces_an_older_kit(self):
        self.run_kit()
        (self.output / "old").touch()
        self.assertEqual(self.run_kit().returncode, 0)
        self.assertFalse((self.output / "old").exists())

    def test_recovers_from_a_killed_run(self):
        self.write("make-hook", "kill -9 $PPID\n")
        self.assertNotEqual(self.run_kit().returncode, 0)
        self.assertFalse(self.output.exists())
        (self.root / "make-hook").unlink()
        self.write(f"kits/{KERNEL}.tmp/rust/half", "what a run killed later would leave")
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
        self.write("headers/Module.symvers", "0x00000000\tanother\tvmlinux\tEXPORT_SYMBOL_GPL\t\n")
        self.assertNotEqual(self.run_kit("--kernel", KERNEL, "--headers", self.headers, "--key").stdout, key)

    def cross(self):
        """A kernel of another architecture, for whose compiler this machine has another name."""
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
        self.refuses(
            f"has the headers of kernel .*{KERNEL[-5:]}, not of 7.3.13", "--kernel", "7.3.13", "--headers", self.headers
        )

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
        (self.root / "bin/bindgen").unlink()
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

    def test_configuration_that_would_change(self):
        self.write("make-hook", 'for a; do case $a in O=*) echo "CONFIG_NEW=y" >>"${a#O=}/.config" ;; esac; done\n')
        self.refuses("configuration does not fit this source and toolchain .it would change: CONFIG_NEW=y")

    def test_symbols_that_the_kernel_does_not_export(self):
        self.write("headers/Module.symvers", "0x00000000\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n")
        self.refuses("1 of 1 Rust symbols are not those of kernel .*first: _RNvCs_6kernel4init")


if __name__ == "__main__":
    unittest.main()
