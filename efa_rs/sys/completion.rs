// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions that can be waited for with a bound, and used again.
//!
//! To be replaced by [`kernel::sync::Completion`] once it has `complete`, `reinit` and a wait with
//! a timeout.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use kernel::{
    bindings,
    prelude::*,
    time::Delta,
    types::Opaque, //
};

use super::time::to_jiffies;

/// A one-shot event that one task waits for and another context, interrupts included, signals.
#[pin_data]
pub(crate) struct Completion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` may be used from any context and is guarded by its own lock.
unsafe impl Send for Completion {}

// SAFETY: As above.
unsafe impl Sync for Completion {}

impl Completion {
    /// Returns an initializer for a completion that has not happened.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` points to memory for a `struct completion`.
                unsafe { bindings::init_completion(slot) }
            }),
        })
    }

    /// Makes the completion ready for its next use. Nobody may be waiting for it.
    pub(crate) fn reinit(&self) {
        // SAFETY: `self.inner` is an initialized completion, and nobody waits for it: this is what
        // `reinit_completion` does.
        unsafe { (*self.inner.get()).done = 0 }
    }

    /// Wakes one waiter up. May be called from interrupt handlers.
    pub(crate) fn complete(&self) {
        // SAFETY: `self.inner` is an initialized completion.
        unsafe { bindings::complete(self.inner.get()) }
    }

    /// Waits, uninterruptibly, for the completion, for at most `timeout`.
    ///
    /// Returns whether it happened.
    pub(crate) fn wait_timeout(&self, timeout: Delta) -> bool {
        // SAFETY: `self.inner` is an initialized completion.
        unsafe { bindings::wait_for_completion_timeout(self.inner.get(), to_jiffies(timeout)) != 0 }
    }
}
