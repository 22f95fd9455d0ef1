// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counting semaphores.
//!
//! The kernel crate has none; no upstream work on them is known.
//!
//! C header: [`include/linux/semaphore.h`](srctree/include/linux/semaphore.h)

use kernel::{
    bindings,
    prelude::*,
    time::Jiffies,
    types::Opaque, //
};

use crate::ffi;

/// A count of free places, with tasks that wait for one.
#[pin_data]
pub(crate) struct Semaphore {
    #[pin]
    inner: Opaque<bindings::semaphore>,
}

// SAFETY: A `struct semaphore` is guarded by its own lock.
unsafe impl Send for Semaphore {}

// SAFETY: All functions here take that lock.
unsafe impl Sync for Semaphore {}

impl Semaphore {
    /// Returns an initializer for a semaphore with `count` free places.
    pub(crate) fn new(count: u16) -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(move |slot: *mut bindings::semaphore| {
                // SAFETY: `slot` points to memory for a `struct semaphore`.
                unsafe { ffi::efa_sema_init(slot, i32::from(count)) }
            }),
        })
    }

    /// Acquires a place if one is free, and returns whether it did. [`Self::release`] frees it.
    pub(crate) fn try_acquire(&self) -> bool {
        // SAFETY: `self.inner` is an initialized semaphore.
        unsafe { bindings::down_trylock(self.inner.get()) == 0 }
    }

    /// Acquires a place, waiting for at most `timeout`. [`Self::release`] frees it.
    ///
    /// # Errors
    ///
    /// - [`ETIME`] if none became free.
    pub(crate) fn acquire_timeout(&self, timeout: Jiffies) -> Result {
        // Too long a timeout becomes the maximum.
        let jiffies = timeout.try_into().unwrap_or(kernel::ffi::c_long::MAX);

        // SAFETY: `self.inner` is an initialized semaphore.
        kernel::error::to_result(unsafe { bindings::down_timeout(self.inner.get(), jiffies) })
    }

    /// Frees a place, and wakes the next waiter.
    pub(crate) fn release(&self) {
        // SAFETY: `self.inner` is an initialized semaphore.
        unsafe { bindings::up(self.inner.get()) }
    }
}
