// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages, with functions that keep their code small.
//!
//! To be replaced by a `dev_err_probe`, and by rate-limited variants of `dev_err!` and similar
//! macros, in the kernel crate.
//!
//! C header: [`include/linux/ratelimit.h`](srctree/include/linux/ratelimit.h)

use kernel::{
    bindings,
    device::Device,
    fmt,
    prelude::*,
    types::Opaque, //
};

use crate::ffi;

/// Logs a failure and its error.
// One copy: an inlined message takes more code than most operations that can fail.
#[cold]
#[inline(never)]
pub(crate) fn failed(dev: &Device, what: &str, error: &Error) {
    dev_err!(dev, "{} ({:?})\n", what, error);
}

/// Messages about a device that a program or the device can cause at will: ten in five seconds.
/// Each kind has its own limit, so that frequent messages do not suppress other kinds.
#[pin_data]
pub(crate) struct Limited<'a> {
    dev: &'a Device,
    #[pin]
    limit: Opaque<bindings::ratelimit_state>,
}

// SAFETY: A `struct ratelimit_state` may be used from any context and is guarded by its own lock.
unsafe impl Send for Limited<'_> {}

// SAFETY: The only function that uses the limit takes that lock.
unsafe impl Sync for Limited<'_> {}

impl<'a> Limited<'a> {
    /// Returns an initializer for messages about `dev`.
    pub(crate) fn new(dev: &'a Device) -> impl PinInit<Self> + use<'a> {
        pin_init!(Self {
            dev,
            limit <- Opaque::ffi_init(|slot: *mut bindings::ratelimit_state| {
                // SAFETY: `slot` points to memory for a `struct ratelimit_state`.
                unsafe { ffi::efa_ratelimit_init(slot) }
            }),
        })
    }

    /// Returns whether a message may be printed now. The kernel logs how many were suppressed.
    fn allows(&self) -> bool {
        // SAFETY: `self.limit` is initialized; the name is static.
        unsafe { bindings::___ratelimit(self.limit.get(), c"efa".as_char_ptr()) != 0 }
    }

    /// Logs an error, unless the rate limit is exceeded.
    #[cold]
    #[inline(never)]
    pub(crate) fn error(&self, message: fmt::Arguments<'_>) {
        if self.allows() {
            dev_err!(self.dev, "{}\n", message);
        }
    }

    /// Logs a warning, unless the rate limit is exceeded.
    #[cold]
    #[inline(never)]
    pub(crate) fn warning(&self, message: fmt::Arguments<'_>) {
        if self.allows() {
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
