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
    "make": """
[ ! -e "$ROOT/make-hook" ] || . "$ROOT/make-hook"
for argument; do
	case $argument in
	O=*) object=${argument#O=} ;;
	esac
done
mkdir -p "$object/rust" "$object/scripts"
echo "EXPORT_SYMBOL_RUST_GPL(_RNvCs_6kernel4init);" >"$object/rust/exports_kernel_generated.h"
touch "$object/rust/libkernel.rmeta" "$object/rust/libmacros.so" "$object/scripts/target.json"
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
        self.assertIn("have Rust metadata already", result.stderr)

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
