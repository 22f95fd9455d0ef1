# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The judges of tests/lint/laws.py: each finds what breaks its law in a clone, and nothing else."""

import subprocess
import sys

import pytest
from conftest import CLONE

sys.path.append(str(CLONE / "tests/lint"))

import laws

MINUTES = 1
TIER = "check"
TREE = "mod com;\nmod driver;\nmod ffi;\nmod hw;\nmod rdma;\nmod verbs;\nmod version;\n"
CODE = {
    "efa_rs/efa_main.rs": TREE,
    "efa_rs/driver.rs": "use crate::{com::Session, hw, rdma, version, verbs::Verbs};\nlet x = crate::made_by_a_macro::x;\n",
    "efa_rs/com.rs": "use crate::{hw::{self, regs::{Caps, Register as R, //\n}}, version};\n/* crate::verbs::X */ let x = hw::Y;\n",
    "efa_rs/hw.rs": "pub mod regs;\n",
    "efa_rs/hw/regs.rs": "use super::{Y, wire::layout};\n",
    "efa_rs/rdma.rs": "mod cq;\n",
    "efa_rs/rdma/cq.rs": 'use crate::ffi;\nlet x = ffi::f();\nlet y = "crate::com::Z";\n',
    "efa_rs/verbs.rs": "mod abi;\nmod cq;\n",
    "efa_rs/verbs/abi.rs": "let x: crate::ffi::T;\n",
    "efa_rs/version.rs": "use crate::ffi::V;\n",
    "efa_rs/ffi.rs": "mod bindings {}\npub(crate) use bindings::*;\n",
}
RDMA = {
    "efa_rs/efa_main.rs": "mod rdma;\n",
    # A file does not depend on items that it only declares or re-exports.
    "efa_rs/rdma.rs": "mod a;\nmod b;\nmod c;\npub(crate) use self::{a::A, b::{B, C as D}};\npub(crate) struct Base;\n",
    "efa_rs/rdma/a.rs": "use super::{b::B, Base};\nuse crate::rdma::{self, D};\nlet x: rdma::B;\n",
    "efa_rs/rdma/b.rs": '//! See [`super::a::A`].\nuse super::Base;\nlet x = "super::a::A";\n',
}
PROVIDER = {
    "efa_rs/efa_main.rs": "mod rdma;\n",
    "efa_rs/rdma.rs": "mod provider;\nmod qp;\nmod work;\n",
    "efa_rs/rdma/provider.rs": "use super::qp::QueuePair;\n",
    "efa_rs/rdma/qp.rs": "use super::{provider::Provider, work::QpRef};\n",
    "efa_rs/rdma/work.rs": "use super::provider::Provider;\n",
}
# A module of tests may name items of the modules that it is in. Code behind it is not a part of it.
INNER = "#[cfg(test)]\nmod tests {\n    use super::super::Base;\n    fn f() { g() }\n}\n"
EMULATOR = {
    "emulator/a/src/lib.rs": "mod x;\nmod x2;\npub struct Base(x::X);\n",
    "emulator/a/src/main.rs": "use crate::x;\n",
    "emulator/a/src/x.rs": INNER,
}
SAFETY = "".join(
    f"// SAFETY: {why}\n" for why in ("As `x` is valid, see `f`.", "By the type invariant `raw` is owned.", "The caller upholds the same.")
)
LINKS = {
    "README.md": "# Head\n[a](docs/page.md), [b](docs/page.md#the-second-one), [c](#head), [d](https://x.invalid/#y), [e](docs)\n",
    "docs/page.md": "## The second, `one`\n[back](../README.md#head)\n",
}
STATE = """struct A { // Mutex
    inner: Mutex<u8>, state: u8,
    pub(super) count: [AtomicU32; 2],
}
fn f(&self) {
    self.count.get(0)?.store(self.count.get(1)?.load(Acquire) + 1, Release);
    self.registers.write(Register::EqDb, 1);
}
"""
ROWS = """| a | b | c | d |
|---|---|---|---|
| com/a.rs | inner | Mutex | `races::two` |
| com/a.rs | count | AtomicU32 | `races::two` |
| com/a.rs | get | load Acquire, store Release | `races::two`; `that` |
| com/a.rs | f: EqDb | doorbell | `com/a.rs f: write` |
"""
EFFECTS = "parts! {\n    silence: bool where command,\n}\npub struct X {\n    pub y: u8,\n}\n"
# The law, files that keep it, files that break it, and what the law finds then.
CASES = [
    (
        laws.unsafe_in_its_folders,
        {"efa_rs/rdma/device.rs": "unsafe impl Send for Device {}\n", "efa_rs/sys.rs": "unsafe fn f() {}\n"},
        {
            "efa_rs/verbs/qp.rs": "// unsafe is not used\n#![deny(unsafe_code)]\nlet x = unsafe { y };\n",
            "samples/null/null_main.rs": "unsafe fn f() {}\n",
        },
        ["efa_rs/verbs/qp.rs:3: let x = unsafe { y };", "samples/null/null_main.rs:1: unsafe fn f() {}"],
    ),
    (
        laws.arrows,
        CODE,
        {
            "efa_rs/verbs/cq.rs": "use crate::{\n    com::Session,\n    ffi, //\n};\nfn f() {\n    ffi::g();\n}\n",
            "efa_rs/hw/regs.rs": "use super::super::com::Session;\n",
            "efa_rs/com.rs": "fn f() -> crate :: rdma :: Cq<'a'> {}\n",
            "efa_rs/rdma/cq.rs": "use crate::verbs;\nlet x = verbs::Z;\n",
        },
        [
            f"efa_rs/{line}"
            for line in (
                "com.rs:1: com names rdma::Cq",
                "hw/regs.rs:1: hw names com::Session",
                "rdma/cq.rs:2: rdma names verbs::Z",
                "verbs/cq.rs:6: verbs names ffi::g",
            )
        ],
    ),
    (
        laws.no_circles,
        RDMA,
        {
            "efa_rs/rdma/b.rs": "use super::c;\nlet x: c::C;\n",
            "efa_rs/rdma/c.rs": "// By a name that rdma.rs passes on.\nlet x = crate::rdma::A;\n",
        },
        ["efa_rs/rdma/a.rs:1 -> efa_rs/rdma/b.rs:2 -> efa_rs/rdma/c.rs:2 -> efa_rs/rdma/a.rs"],
    ),
    # The exception for provider.rs does not hide a circle of others.
    (
        laws.no_circles,
        PROVIDER,
        {"efa_rs/rdma/work.rs": "use super::qp::QueuePair;\n"},
        ["efa_rs/rdma/qp.rs:1 -> efa_rs/rdma/work.rs:1 -> efa_rs/rdma/qp.rs"],
    ),
    (
        laws.no_circles,
        EMULATOR,
        {"emulator/a/src/x.rs": f"{INNER}use crate::Base;\n"},
        ["emulator/a/src/lib.rs:3 -> emulator/a/src/x.rs:6 -> emulator/a/src/lib.rs"],
    ),
    (
        laws.releases_in_their_folders,
        {"efa_rs/sys/irq.rs": "#[cfg(linux_7_4)]\n"},
        {"efa_rs/com/reset.rs": "#[cfg(not(linux_7_4))]\n"},
        ["efa_rs/com/reset.rs:1: #[cfg(not(linux_7_4))]"],
    ),
    (
        laws.little_c,
        {"efa_rs/ffi/a.c": "int x;\n" * 320},
        {"efa_rs/ffi/b.h": "int y;\n" * 100},
        ["efa_rs/ffi/a.c: 320 lines", "efa_rs/ffi/b.h: 100 lines"],
    ),
    (laws.short_files, {"emulator/a.rs": "\n" * 500, "host/b.rs": "\n" * 501}, {"efa_rs/c.rs": "\n" * 501}, ["efa_rs/c.rs: 501 lines"]),
    *(
        (
            laws.own_reasons,
            {"efa_rs/sys/a.rs": SAFETY},
            {"efa_rs/sys/a.rs": f"{SAFETY}// SAFETY: {text}\n"},
            [f"efa_rs/sys/a.rs:4: // SAFETY: {text}"],
        )
        for text in ("As above.", "As for `read`; in range.", "See the module's documentation.", "By the type invariant.", "Likewise.")
    ),
    (
        laws.no_clock,
        {
            "tests/kselftest/patience.py": "end = time.monotonic()\n",
            "emulator/a/src/b.rs": "let late = start.elapsed();\n#[cfg(test)]\nmod tests {\n}\n",
        },
        {
            "tests/kselftest/killed.py": "start = time.monotonic()\n",
            "tests/debug/run.sh": "start=$SECONDS\nname=SECONDS\n",
            "emulator/a/src/b.rs": "let late = start.elapsed();\n#[cfg(test)]\nmod tests {\n    let end = start.elapsed();\n}\n",
            "emulator/a/tests/c.rs": "let runtime = Runtime::new(1, Instant::now());\nlet end = Instant::now() + LIMIT;\n",
        },
        [
            "emulator/a/src/b.rs:4: let end = start.elapsed();",
            "emulator/a/tests/c.rs:2: let end = Instant::now() + LIMIT;",
            "tests/debug/run.sh:1: start=$SECONDS",
            "tests/kselftest/killed.py:1: start = time.monotonic()",
        ],
    ),
    (
        laws.effects_are_tested,
        {
            "emulator/model/src/faults/then.rs": EFFECTS,
            "tests/kselftest/effects.md": "| effect | when |\n|---|---|\n| silence | command |\n",
        },
        {
            "emulator/model/src/faults/then.rs": EFFECTS.replace("silence", "die"),
        },
        [
            "emulator/model/src/faults/then.rs:2: die has no row in tests/kselftest/effects.md",
            "tests/kselftest/effects.md:3: silence is no effect",
        ],
    ),
    (
        laws.shared_state_is_covered,
        {"efa_rs/com/a.rs": STATE, "host/driver/tests/driver/races.rs": "fn two() {}\n", laws.SHARED: ROWS},
        {
            "efa_rs/com/a.rs": STATE.replace("Release", "Relaxed") + "fn g() { fence(SeqCst) }\nstruct B(Mutex<u8>);\n",
            laws.SHARED: ROWS.replace("inner", "other").replace("f: write", "f: wmb").replace("`races::two`; ", ""),
        },
        [
            f"{laws.SHARED}:{line}"
            for line in (
                "5: nothing covers get",
                "6: there is no com/a.rs f: wmb",
            )
        ]
        + [
            f"{laws.SHARED}: com/a.rs has B: Mutex",
            f"{laws.SHARED}: com/a.rs has g: fence: barrier",
            f"{laws.SHARED}:5: com/a.rs has get: load Acquire, store Relaxed",
            f"{laws.SHARED}: com/a.rs has inner: Mutex",
            f"{laws.SHARED}:3: com/a.rs has no other",
        ],
    ),
    (
        laws.links_lead_somewhere,
        LINKS,
        {"docs/page.md": "[a](../README.md#foot)\n[b](other.md)\n[c](#the-second-one)\n"},
        [
            "README.md:2: there is no docs/page.md#the-second-one",
            "docs/page.md:1: there is no ../README.md#foot",
            "docs/page.md:2: there is no other.md",
            "docs/page.md:3: there is no #the-second-one",
        ],
    ),
    (
        laws.no_mirror,
        {"a.md": "See https://example.com/debian/.\n"},
        {"a.sh": "curl https://my-" + "mirror/debian\n"},
        ["a.sh:1: curl https://my-" + "mirror/debian"],
    ),
]


@pytest.mark.parametrize(("law", "good", "bad", "found"), CASES, ids=[case[0].__name__ for case in CASES])
def test_judge(tmp_path, monkeypatch, law, good, bad, found):
    monkeypatch.setattr(laws, "CLONE", tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for files, wanted in ((good, []), (bad, found)):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        assert law() == wanted


def test_each_law_has_a_case():
    assert {law.__name__ for law in laws.ALL} == {case[0].__name__ for case in CASES}
