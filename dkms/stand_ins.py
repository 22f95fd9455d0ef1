# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Stand-ins for a kernel's headers and source, for compilers and make, so that tests of all results of a build are fast."""

import re
import tempfile
import unittest
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
KERNEL = "7.3.12+deb13-amd64"
CONFIG = """CONFIG_CC_VERSION_TEXT="test-gcc-14 (Debian 14.2.0-19) 14.2.0"
CONFIG_RUST=y
CONFIG_RUSTC_VERSION_TEXT="rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)"
CONFIG_BINDGEN_VERSION_TEXT="bindgen 0.71.1"
"""
PROGRAMS = {
    # Preprocesses any header, if asked to.
    "test-gcc-14": '[ "$1" = --version ] || exit 0; echo "test-gcc-14 (Debian 14.2.0-19) 14.2.0"; echo Copyright',
    "rustc": """case $1 in
        --print) echo "$ROOT/sysroot" ;;
        *) echo "rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)" ;;
        esac""",
    "bindgen": "echo bindgen 0.71.1",
    "flex": "",
    "bison": "",
    "bc": "",
    "uname": f"[ $1 = -m ] && echo x86_64 || echo {KERNEL}",
    "make": """
[ ! -e "$ROOT/make-hook" ] || . "$ROOT/make-hook"
for argument; do
	case $argument in
	O=*) object=${argument#O=} ;;
	esac
done
echo "$*" >"$ROOT/make-arguments"
[ -n "$object" ] || exit 0
mkdir -p "$object/rust" "$object/scripts"
echo "EXPORT_SYMBOL_RUST_GPL(_RNvCs_6kernel4init);" >"$object/rust/exports_kernel_generated.h"
touch "$object/rust/libkernel.rmeta" "$object/rust/libmacros.so"
[ -e "$ROOT/no-target" ] || touch "$object/scripts/target.json"
""",
}
# Paths of rust-kit that are redirected to the test's folder.
RUST_KIT = ("/etc/os-release", "/lib/modules", "/usr/src", "/var/cache")


class StandIns(unittest.TestCase):
    """A folder with everything that a kit is built from."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.headers = self.root / "headers"
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
        self.write("etc/os-release", "ID=debian\n")
        self.write("sysroot/lib/rustlib/src/rust/library/core/src/lib.rs", "")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name, script):
        self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n").chmod(0o755)

    def script(self, name, *places):
        """Copies a script of the clone, with these places redirected to this folder; returns the copy's path."""
        text = (CLONE / name).read_text()
        self.assertEqual([place for place in places if place not in text], [])
        text = re.sub("|".join(places), lambda place: f"{self.root}{place[0]}", text)
        path = self.write(f"clone/{name}", text)
        path.chmod(0o755)
        return path

    def environment(self):
        return {"PATH": f"{self.root}/bin:/usr/bin:/bin", "ROOT": str(self.root), "TMPDIR": str(self.root)}
