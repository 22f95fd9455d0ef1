// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions that support a timeout and can be reused.
//!
//! To be replaced by [`kernel::sync::Completion`] once it has `complete`, `try_wait` and a wait
//! with a timeout.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use kernel::{
    bindings,
    prelude::*,
    time::Jiffies,
    types::Opaque, //
};

/// An event that one task waits for and another context, interrupts included, signals.
#[pin_data]
pub(crate) struct Completion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` is guarded by its own lock, so that any task may own it.
unsafe impl Send for Completion {}

// SAFETY: Every function here takes that lock for its changes.
unsafe impl Sync for Completion {}

impl Completion {
    /// Returns an initializer for a completion that was not signalled.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` points to memory for a `struct completion`.
                unsafe { bindings::init_completion(slot) }
            }),
        })
    }

    /// Prepares the completion for its next use: discards signals without a waiter. A signal at the
    /// same time may be discarded or not.
    pub(crate) fn reinit(&self) {
        // SAFETY: `self.inner` is initialized.
        let done = unsafe { &raw mut (*self.inner.get()).done };
        // SAFETY: The count is part of it. C's `reinit_completion` writes it in the same way.
        unsafe { done.write_volatile(0) }
    }

    /// Signals the completion, which wakes one waiter. May be called from interrupt handlers.
    pub(crate) fn complete(&self) {
        // SAFETY: `self.inner` is initialized, and `complete` may be called in any context.
        unsafe { bindings::complete(self.inner.get()) }
    }

    /// Waits uninterruptibly for the completion, for at most `timeout`.
    ///
    /// Returns the rest of the time if it was signalled, at least 1, and else 0.
    pub(crate) fn wait_timeout(&self, timeout: Jiffies) -> Jiffies {
        // SAFETY: `self.inner` is initialized; callers of this function may sleep.
        unsafe { bindings::wait_for_completion_timeout(self.inner.get(), timeout) }
    }
}
