// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages about failures that have an error code.
//!
//! To be replaced by a `dev_err_probe` in the kernel crate.

use kernel::{
    device::Device,
    prelude::*, //
};

/// Logs that something could not be done, and the error.
// One copy: a message in place takes more code than most of what can fail.
#[cold]
#[inline(never)]
pub(crate) fn failed(dev: &Device, what: &str, error: &Error) {
    dev_err!(dev, "{} ({:?})\n", what, error);
}
