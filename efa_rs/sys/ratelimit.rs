// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rate limits for messages that a program or a device can cause at will.
//!
//! To be replaced by rate-limited variants of `dev_err!` and similar macros in the kernel crate.
//!
//! C header: [`include/linux/ratelimit.h`](srctree/include/linux/ratelimit.h)

use kernel::{
    bindings,
    prelude::*,
    types::Opaque, //
};

use crate::ffi;

/// A limit of ten messages in five seconds.
#[pin_data]
pub(crate) struct RateLimit {
    #[pin]
    inner: Opaque<bindings::ratelimit_state>,
}

// SAFETY: A `struct ratelimit_state` may be used from any context and is guarded by its own lock.
unsafe impl Send for RateLimit {}

// SAFETY: The only function here takes that lock.
unsafe impl Sync for RateLimit {}

impl RateLimit {
    /// Returns an initializer for an unused limit.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::ratelimit_state| {
                // SAFETY: `slot` points to memory for a `struct ratelimit_state`.
                unsafe { ffi::efa_ratelimit_init(slot) }
            }),
        })
    }

    /// Returns whether a message may be printed now. The kernel logs how many were suppressed.
    pub(crate) fn allows(&self) -> bool {
        // SAFETY: `self.inner` is initialized; the name is static.
        unsafe { bindings::___ratelimit(self.inner.get(), c"efa".as_char_ptr()) != 0 }
    }
}
