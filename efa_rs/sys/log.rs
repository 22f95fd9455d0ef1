// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages: what keeps their code small.
//!
//! [`failed`] is to be replaced by a `dev_err_probe` in the kernel crate.

use kernel::{
    device::Device,
    fmt,
    prelude::*, //
};

/// Logs that something could not be done, and the error.
// One copy: a message in place takes more code than most of what can fail.
#[cold]
#[inline(never)]
pub(crate) fn failed(dev: &Device, what: &str, error: &Error) {
    dev_err!(dev, "{} ({:?})\n", what, error);
}

/// A number that messages show as hexadecimal.
// In place of `{:#x}`, which takes a table of 56 bytes for each argument of a message.
pub(crate) struct Hex(pub(crate) u32);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
