# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The making of patches for Linux from efa_rs/: they apply, and have the tree's names. The suite upstream builds them."""

import re
import sys

import pytest
from conftest import CLONE
from guests import result

sys.path.insert(0, str(CLONE / "upstream"))

import rewrite
import series

MINUTES = 1
TIER = "check"
NEEDS = ["linux-originals"]
# What has another name in the tree.
OURS = re.compile(r"\bpub\(crate\)|\bffi::(?!c_\w+|self|\{|CStr)\w|\bcrate::sys\b|\bcfg\(.*(?:kverbs|rdma_client|in_tree)|\befa_\w+\(")
FILE = """//! A file.

use kernel::{
    bindings,
    ffi::c_int,
};

use super::qp::Qp;
use crate::{
    ffi,
    sys::attach::Attached,
};

/// See [`kernel::irq`].
pub(crate) fn number(raw: ffi::ib_qp) -> c_int {
    ffi::efa_put_net(raw)
}
"""
IN_TREE = """//! A file.

use crate::{
    bindings,
    device::attach::Attached,
    ffi::c_int, //
};

use super::qp::Qp;

/// See [`kernel::irq`].
pub fn number(raw: bindings::ib_qp) -> c_int {
    bindings::put_net(raw)
}
"""
PARTS = """use super::{
    mr::MemoryRegion,
    qp, //
};

trait Provider {
    /// Memory regions.
    type Mr<'a>: MemoryRegion<'a, Self>;

    /// Polls.
    #[cfg(kverbs)]
    fn poll(&self) {}
}

fn add() -> Slots {
    // SAFETY: It is valid.
    unsafe { qp::add() };
    Slots {
        text: "enabled",
        enabled: qp::get(),
    }
}
"""


def test_file_gets_the_names_of_the_tree():
    assert rewrite.source(FILE) == IN_TREE
    assert rewrite.reduced(FILE, set(), set(), set()) == (FILE, set())
    helper = rewrite.helpers("void efa_put_net(struct net *net)\n{\n\tput_net(net);\n}\n", {"efa_put_net"}, ["net/net.h"])
    assert "__rust_helper void rust_helper_put_net(struct net *net)\n" in helper
    filled = rewrite.wrapped("    /// " + "word " * 30 + "\n    fn f();")
    assert max(map(len, filled.splitlines())) <= rewrite.WIDTH and filled.endswith("\n    fn f();")


@pytest.mark.parametrize("on", [set(), {"kverbs"}])
def test_items_of_later_patches_are_left_out(on):
    text, kinds = rewrite.reduced(PARTS, {"mr", "qp"}, {"enabled"}, on)
    assert kinds == {"Mr"}
    poll = "    /// Polls.\n    fn poll(&self) {}\n" if on else ""
    assert (
        re.sub(r"\n\n+", "\n", text).strip()
        == f'trait Provider {{\n{poll}}}\nfn add() -> Slots {{\n    Slots {{\n        text: "enabled",\n    }}\n}}'
    )


def test_patches():
    found = series.patches(result("linux-originals"))
    assert len({patch.name for patch in found}) == sum(len(table["patch"]) for table in series.TABLE["series"])
    for table in series.TABLE["series"]:
        added = sum(patch.added for patch in found if patch.series == table["name"])
        assert 0 < added <= table.get("max_lines", added), table["name"]
    in_crate = {path: text for path, text in found[-1].state.items() if path.startswith("rust/kernel/rdma")}
    left = [f"{path}: {line}" for path, text in in_crate.items() for line in text.splitlines() if OURS.search(line.partition("//")[0])]
    assert len(in_crate) > 40 and left == []
    messages = [(path.name, line) for path in series.FOLDER.glob("*.msg") for line in path.read_text().splitlines()]
    assert [line for line in messages if len(line[1]) > 75] == []
