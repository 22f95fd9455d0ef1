# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import subprocess
import unittest
from unittest import mock

import support
from efa_tools import cache, laws


class Laws(support.TemporaryCache):
    def setUp(self):
        super().setUp()
        self.patch(mock.patch.object(cache, "CLONE", self.folder))
        subprocess.run(["git", "init", "--quiet", self.folder], check=True)

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def test_unsafe_outside_its_folders(self):
        self.write("efa_rs/verbs/qp.rs", "// unsafe is not used\n#![deny(unsafe_code)]\nlet x = unsafe { y };\n")
        self.write("efa_rs/rdma/device.rs", "unsafe impl Send for Device {}\n")
        self.write("efa_rs/sys.rs", "unsafe fn f() {}\n")
        self.assertEqual(laws.unsafe_in_its_folders(), ["efa_rs/verbs/qp.rs:3: let x = unsafe { y };"])

    def test_unsafe_in_a_sample(self):
        self.write("efa_rs/rdma.rs", "unsafe fn f() {}\n")
        self.write("samples/null/null_main.rs", "unsafe fn f() {}\n")
        # The target of a link is checked at its own place only.
        (self.folder / "samples/null/rdma.rs").symlink_to("../../efa_rs/rdma.rs")
        self.assertEqual(laws.unsafe_in_its_folders(), ["samples/null/null_main.rs:1: unsafe fn f() {}"])

    def test_an_arrow_that_is_not_drawn(self):
        self.write("efa_rs/efa_main.rs", "mod com;\nmod driver;\nmod ffi;\nmod hw;\nmod rdma;\nmod verbs;\nmod version;\n")
        self.write("efa_rs/driver.rs", "use crate::{com::Session, hw, rdma, version, verbs::Verbs};\nlet x = crate::made_by_a_macro::x;\n")
        self.write(
            "efa_rs/com.rs", "use crate::{hw::{self, regs::{Caps, Register as R, //\n}}, version};\n/* crate::verbs::X */ let x = hw::Y;\n"
        )
        self.write("efa_rs/hw.rs", "pub mod regs;\n")
        self.write("efa_rs/hw/regs.rs", "use super::{Y, wire::layout};\n")
        self.write("efa_rs/rdma.rs", "mod cq;\n")
        self.write("efa_rs/rdma/cq.rs", 'use crate::ffi;\nlet x = ffi::f();\nlet y = "crate::com::Z";\n')
        self.write("efa_rs/verbs.rs", "mod abi;\nmod cq;\n")
        self.write("efa_rs/verbs/abi.rs", "let x: crate::ffi::T;\n")
        self.write("efa_rs/version.rs", "use crate::ffi::V;\n")
        self.write("efa_rs/ffi.rs", "mod bindings {}\npub(crate) use bindings::*;\n")
        self.assertEqual(laws.arrows(), [])
        self.write("efa_rs/verbs/cq.rs", "use crate::{\n    com::Session,\n    ffi, //\n};\nfn f() {\n    ffi::g();\n}\n")
        self.write("efa_rs/hw/regs.rs", "use super::super::com::Session;\n")
        self.write("efa_rs/com.rs", "fn f() -> crate :: rdma :: Cq<'a'> {}\n")
        self.write("efa_rs/rdma/cq.rs", "use crate::verbs;\nlet x = verbs::Z;\n")
        self.assertEqual(
            laws.arrows(),
            [
                "efa_rs/com.rs:1: com names rdma::Cq",
                "efa_rs/hw/regs.rs:1: hw names com::Session",
                "efa_rs/rdma/cq.rs:2: rdma names verbs::Z",
                "efa_rs/verbs/cq.rs:6: verbs names ffi::g",
            ],
        )

    def test_an_effect_that_is_not_tested(self):
        self.write(
            "emulator/model/src/faults/then.rs",
            "pub struct Then {\n    pub silence: bool,\n    pub die: bool,\n}\npub struct X {\n    pub y: u8,\n}\n",
        )
        self.write("tests/kselftest/effects.md", "| effect | when |\n|---|---|\n| silence | command |\n| noise | command |\n")
        self.assertEqual(
            laws.effects_are_tested(),
            [
                "emulator/model/src/faults/then.rs:3: die has no row in tests/kselftest/effects.md",
                "tests/kselftest/effects.md:4: noise is no effect",
            ],
        )

    def test_a_test_that_reads_a_clock(self):
        self.write("tests/kselftest/patience.py", "end = time.monotonic() + PATIENCE\n")
        self.write("tests/kselftest/killed.py", "start = time.monotonic()\n")
        self.write("tests/debug/run.sh", "start=$SECONDS\nname=SECONDS\n")
        self.write(
            "emulator/vfio/src/socket.rs",
            "let late = start.elapsed();\n#[cfg(test)]\nmod tests {\n    assert!(start.elapsed() < LIMIT);\n}\n",
        )
        self.write("emulator/vfio/src/socket/tests.rs", "let end = start.elapsed();\n")
        self.write("emulator/vfio/tests/guest.rs", "let runtime = Runtime::new(1, Instant::now());\nlet end = Instant::now() + LIMIT;\n")
        self.write("tools/lib/steps.py", "start = time.monotonic()\n")
        self.assertEqual(
            laws.no_clock(),
            [
                "emulator/vfio/src/socket.rs:4: assert!(start.elapsed() < LIMIT);",
                "emulator/vfio/src/socket/tests.rs:1: let end = start.elapsed();",
                "emulator/vfio/tests/guest.rs:2: let end = Instant::now() + LIMIT;",
                "tests/debug/run.sh:1: start=$SECONDS",
                "tests/kselftest/killed.py:1: start = time.monotonic()",
            ],
        )

    def test_no_circle(self):
        self.write("efa_rs/efa_main.rs", "mod rdma;\nmod verbs;\nmodule! { type: verbs::V }\n")
        # A file does not depend on items that it only declares or re-exports.
        self.write("efa_rs/rdma.rs", "mod a;\nmod b;\npub(crate) use self::{a::A, b::{B, C as D}};\npub(crate) struct Base;\n")
        self.write("efa_rs/rdma/a.rs", "use super::{b::B, Base};\nuse crate::rdma::{self, D};\nlet x: rdma::B;\n")
        self.write("efa_rs/rdma/b.rs", '//! See [`super::a::A`].\nuse super::Base;\nlet x = "super::a::A";\n')
        self.assertEqual(laws.no_circles(), [])

    def test_provider(self):
        self.write("efa_rs/efa_main.rs", "mod rdma;\n")
        self.write("efa_rs/rdma.rs", "mod provider;\nmod qp;\nmod work;\n")
        self.write("efa_rs/rdma/provider.rs", "use super::qp::QueuePair;\n")
        self.write("efa_rs/rdma/qp.rs", "use super::{provider::Provider, work::QpRef};\n")
        self.write("efa_rs/rdma/work.rs", "use super::provider::Provider;\n")
        self.assertEqual(laws.no_circles(), [])
        # The exception for this file does not hide a circle of others.
        self.write("efa_rs/rdma/work.rs", "use super::qp::QueuePair;\n")
        self.assertEqual(laws.no_circles(), ["efa_rs/rdma/qp.rs:1 -> efa_rs/rdma/work.rs:1 -> efa_rs/rdma/qp.rs"])

    def test_circles(self):
        self.write("efa_rs/efa_main.rs", "mod rdma;\n")
        self.write("efa_rs/rdma.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub(crate) use self::{a::A, d::D};\n\npub(crate) struct Base(D);\n")
        self.write("efa_rs/rdma/a.rs", "use super::b::B;\n")
        self.write("efa_rs/rdma/b.rs", "use super::c;\nlet x: c::C;\n")
        self.write("efa_rs/rdma/c.rs", "\n// By a name that rdma.rs passes on.\nlet x = crate::rdma::A;\n")
        self.write("efa_rs/rdma/d.rs", "use super::Base;\n")
        self.assertEqual(
            laws.no_circles(),
            [
                "efa_rs/rdma.rs:5 -> efa_rs/rdma/d.rs:1 -> efa_rs/rdma.rs",
                "efa_rs/rdma/a.rs:1 -> efa_rs/rdma/b.rs:2 -> efa_rs/rdma/c.rs:3 -> efa_rs/rdma/a.rs",
            ],
        )

    def test_circles_in_the_emulator(self):
        self.write("emulator/a/src/lib.rs", "mod x;\nmod x2;\npub struct Base(x::X);\n")
        self.write("emulator/a/src/main.rs", "use crate::x;\n")
        # A module of tests may name items of the modules that it is in. Code behind it is not a part of it.
        tests = "#[cfg(test)]\nmod tests {\n    use super::super::Base;\n    fn f() { g() }\n}\n"
        self.write("emulator/a/src/x.rs", tests)
        self.write("emulator/b/src/main.rs", "mod y;\nmod z;\n")
        self.write("emulator/b/src/y.rs", "use crate::z::Z;\n")
        self.write("emulator/b/src/z.rs", "struct Z;\n")
        self.assertEqual(laws.no_circles(), [])
        self.write("emulator/a/src/x.rs", f"{tests}use crate::Base;\n")
        self.write("emulator/b/src/z.rs", "struct Z(crate::y::Y);\n")
        self.assertEqual(
            laws.no_circles(),
            [
                "emulator/a/src/lib.rs:3 -> emulator/a/src/x.rs:6 -> emulator/a/src/lib.rs",
                "emulator/b/src/y.rs:1 -> emulator/b/src/z.rs:1 -> emulator/b/src/y.rs",
            ],
        )

    def test_reasons_that_are_elsewhere(self):
        reasons = ("As `x` is valid, see `f`.", "By the type invariant `raw` is owned.", "The caller upholds the same.")
        own = "".join(f"// SAFETY: {reason}\n" for reason in reasons)
        self.write("efa_rs/sys/a.rs", own)
        self.assertEqual(laws.own_reasons(), [])
        for text in ("As above.", "As for `read`; in range.", "See the module's documentation.", "By the type invariant.", "Likewise."):
            self.write("efa_rs/sys/a.rs", f"{own}    // SAFETY: {text}\n")
            self.assertEqual(laws.own_reasons(), [f"efa_rs/sys/a.rs:4: // SAFETY: {text}"])

    def test_a_release_outside_its_folders(self):
        self.write("efa_rs/sys/irq.rs", "#[cfg(linux_7_4)]\n")
        self.write("efa_rs/com/reset.rs", "#[cfg(not(linux_7_4))]\n")
        self.assertEqual(laws.releases_in_their_folders(), ["efa_rs/com/reset.rs:1: #[cfg(not(linux_7_4))]"])

    def test_too_much_c(self):
        self.write("efa_rs/ffi/a.c", "int x;\n" * 320)
        self.assertEqual(laws.little_c(), [])
        self.write("efa_rs/ffi/b.h", "int y;\n" * 100)
        self.assertEqual(laws.little_c(), ["efa_rs/ffi/a.c: 320 lines", "efa_rs/ffi/b.h: 100 lines"])

    def test_a_long_file(self):
        self.write("emulator/vfio/src/dma.rs", "\n" * 500)
        self.write("host/driver/src/life.rs", "\n" * 501)
        self.assertEqual(laws.short_files(), [])
        long = ["efa_rs/verbs/qp.rs", "emulator/vfio/tests/guest/main.rs"]
        for name in long:
            self.write(name, "\n" * 501)
        self.assertEqual(laws.short_files(), [f"{name}: 501 lines" for name in long])

    def test_a_link_that_leads_nowhere(self):
        self.write(
            "README.md", "# Head\n[a](docs/page.md), [b](docs/page.md#the-second-one), [c](#head), [d](https://x.invalid/#y), [e](docs)\n"
        )
        self.write("docs/page.md", "## The second, `one`\n[back](../README.md#head)\n")
        self.assertEqual(laws.links_lead_somewhere(), [])
        self.write("docs/page.md", "[a](../README.md#foot)\n[b](other.md)\n[c](#the-second-one)\n")
        expected = [
            "README.md:2: there is no docs/page.md#the-second-one",
            *("docs/page.md:1: there is no ../README.md#foot", "docs/page.md:2: there is no other.md"),
            "docs/page.md:3: there is no #the-second-one",
        ]
        self.assertEqual(laws.links_lead_somewhere(), expected)

    def test_a_mirror(self):
        self.write("README", "See https://www.debian.org/ and lists.debian.org.\n")
        self.assertEqual(laws.no_mirror(), [])
        self.write("run.sh", "apt http://deb." + "debian.org/debian\n")
        self.assertEqual(len(laws.no_mirror()), 1)


if __name__ == "__main__":
    unittest.main()
