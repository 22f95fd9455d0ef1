// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages, with functions that keep their code small.
//!
//! [`failed`] is to be replaced by a `dev_err_probe` in the kernel crate.

use kernel::{
    device::Device,
    fmt,
    prelude::*, //
};

use super::ratelimit::RateLimit;

/// Logs a failure and its error.
// One copy: an inlined message takes more code than most operations that can fail.
#[cold]
#[inline(never)]
pub(crate) fn failed(dev: &Device, what: &str, error: &Error) {
    dev_err!(dev, "{} ({:?})\n", what, error);
}

/// Messages about a device that a program or the device can cause at will. Each kind has its own
/// rate limit, so that frequent messages do not suppress other kinds.
#[pin_data]
pub(crate) struct Limited<'a> {
    dev: &'a Device,
    #[pin]
    limit: RateLimit,
}

impl<'a> Limited<'a> {
    /// Returns an initializer for messages about `dev`.
    pub(crate) fn new(dev: &'a Device) -> impl PinInit<Self> + use<'a> {
        pin_init!(Self {
            dev,
            limit <- RateLimit::new(),
        })
    }

    /// Logs an error, unless the rate limit is exceeded.
    #[cold]
    #[inline(never)]
    pub(crate) fn error(&self, message: fmt::Arguments<'_>) {
        if self.limit.allows() {
            dev_err!(self.dev, "{}\n", message);
        }
    }

    /// Logs a warning, unless the rate limit is exceeded.
    #[cold]
    #[inline(never)]
    pub(crate) fn warning(&self, message: fmt::Arguments<'_>) {
        if self.limit.allows() {
            dev_warn!(self.dev, "{}\n", message);
        }
    }
}

/// A number that messages show as hexadecimal.
// In place of `{:#x}`, which takes a table of 56 bytes for each argument of a message.
pub(crate) struct Hex(pub(crate) u32);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
