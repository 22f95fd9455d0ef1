# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Conversion of a file of efa_rs/ for Linux's tree."""

import re
import unittest

import support
from efa_tools import in_tree

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

CONDITIONS = """trait Queue {
    /// Polls.
    #[cfg(kverbs)]
    fn poll(&self) -> Result<(), Error> {
        Ok(())
    }

    #[cfg(not(kverbs))]
    const KERNEL: bool = false;

    fn create(&self);
}
"""


PARTS = """use kernel::prelude::*;
use kernel::{
    ffi::c_int,
    fmt, //
};

use super::{
    device::Device,
    mr::MemoryRegion,
    qp, //
};

/// ```
/// impl Provider for Null {
///     type Pd<'a> = Absent;
///     type Mr<'a> = Absent;
/// }
/// ```
trait Provider {
    type Pd<'a>;

    /// Memory regions.
    type Mr<'a>: MemoryRegion<'a, Self>;

    /// Logs.
    fn enabled(&self, text: fmt::Arguments<'_>) {}
}

fn add(device: &Device) -> c_int {
    if P::HAS_ENABLED {
        device.enabled = true;
    }
    // SAFETY: It is valid.
    unsafe { qp::add(device) };
    Slots {
        // Not enabled.
        text: "enabled",
        enabled: qp::get(),
    }
}
"""

REDUCED = """use kernel::prelude::*;
use kernel::ffi::c_int;

use super::device::Device;

/// ```
/// impl Provider for Null {
///     type Pd<'a> = Absent;
/// }
/// ```
trait Provider {
    type Pd<'a>;

}

fn add(device: &Device) -> c_int {
    Slots {
        // Not enabled.
        text: "enabled",
    }
}
"""


class InTree(unittest.TestCase):
    def test_imports_names_and_visibility_are_those_of_the_tree(self):
        self.assertEqual(in_tree.source(FILE), IN_TREE)

    def test_a_condition_that_does_not_hold_takes_its_item_out(self):
        found = in_tree.resolved(CONDITIONS, set())
        self.assertEqual(found, "trait Queue {\n    const KERNEL: bool = false;\n\n    fn create(&self);\n}\n")

    def test_a_condition_that_holds_leaves_its_item(self):
        found = in_tree.resolved(CONDITIONS, {"kverbs"})
        self.assertIn("    fn poll", found)
        self.assertNotIn("cfg", found)
        self.assertNotIn("KERNEL", found)

    def test_what_needs_a_module_or_a_name_that_is_not_there_is_left_out(self):
        modules, names = {"mr", "qp"}, {"enabled"}
        kinds = in_tree.reduced(PARTS, modules, names, set())[1]
        self.assertEqual(kinds, {"Mr"})
        text, _ = in_tree.reduced(PARTS, modules, names | kinds, set())
        self.assertEqual(re.sub(r"\n\n+", "\n\n", text), REDUCED)

    def test_a_file_that_needs_nothing_else_is_unchanged(self):
        self.assertEqual(in_tree.reduced(FILE, set(), set(), set()), (FILE, set()))

    def test_a_condition_on_a_parameter_is_resolved(self):
        text = "fn f(\n    #[cfg(in_tree)] name: &CStr,\n    #[cfg(not(in_tree))] home: Home,\n) {\n}\n"
        self.assertEqual(in_tree.resolved(text, set()), "fn f(\nname: &CStr,\n) {\n}\n")

    def test_only_the_modules_of_a_patch_are_declared_and_exported(self):
        text = "//! About.\n\nmod ah;\nmod qp;\n\npub(crate) use self::{\n    ah::Ah,\n    qp::Qp, //\n};\n"
        found = in_tree.module(text, {"qp": "pub(crate) enum State {}\n"}, ["qp"])
        self.assertNotIn("ah", found)
        self.assertIn("mod qp;\n", found)
        self.assertIn("pub use self::qp::{\n    Qp,\n    State, //\n};\n", found)

    def test_helpers_get_the_names_of_what_they_call(self):
        text = "void efa_put_net(struct net *net)\n{\n\tput_net(net);\n}\n"
        self.assertIn("__rust_helper void rust_helper_put_net(struct net *net)\n", in_tree.helpers(text, {"efa_put_net"}, ["net/net.h"]))

    def test_too_long_comments_are_filled_anew(self):
        found = in_tree.wrapped("    /// " + "word " * 30 + "\n    fn f();")
        self.assertTrue(all(len(line) <= in_tree.WIDTH for line in found.splitlines()))
        self.assertTrue(found.endswith("\n    fn f();"))


class Messages(unittest.TestCase):
    """Commit messages of the patches for Linux."""

    def test_checkpatch_finds_no_line_too_long(self):
        messages = list((support.CLONE / "upstream").glob("*.msg"))
        long = [f"{path.name}: {line}" for path in messages for line in path.read_text().splitlines() if len(line) > 75]
        self.assertGreater(len(messages), 0)
        self.assertEqual(long, [])


if __name__ == "__main__":
    unittest.main()
