// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A spinlock for data shared with interrupt handlers.
//!
//! To be replaced by `kernel::sync::SpinLockIrq` once it is upstream.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{
        Deref,
        DerefMut, //
    },
};

use kernel::{
    bindings,
    prelude::*,
    sync::LockClassKey,
    types::Opaque, //
};

use crate::ffi;

/// Data behind a spinlock that is held with local interrupts disabled.
#[pin_data]
pub(crate) struct IrqLock<T> {
    #[pin]
    lock: Opaque<bindings::spinlock_t>,
    data: UnsafeCell<T>,
}

// SAFETY: The lock hands its data to one context at a time, which needs no more than `T: Send`.
unsafe impl<T: Send> Send for IrqLock<T> {}

// SAFETY: As above.
unsafe impl<T: Send> Sync for IrqLock<T> {}

impl<T> IrqLock<T> {
    /// Returns an initializer; [`new_irq_lock!`] supplies `name` and `key`.
    pub(crate) fn new(
        data: T,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            lock <- Opaque::ffi_init(move |slot: *mut bindings::spinlock_t| {
                // SAFETY: `slot` points to memory for a `spinlock_t`; name and key are static.
                unsafe { bindings::__spin_lock_init(slot, name.as_char_ptr(), key.as_ptr()) }
            }),
            data: UnsafeCell::new(data),
        })
    }

    /// Takes the lock and disables local interrupts.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // SAFETY: `self.lock` is an initialized spinlock.
        let flags = unsafe { ffi::efa_spin_lock_irqsave(self.lock.get()) };

        Guard {
            lock: self,
            flags,
            not_send: PhantomData,
        }
    }
}

/// The data of an [`IrqLock`] that is held; released when dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a IrqLock<T>,
    flags: usize,
    // Interrupts must be restored on the CPU that disabled them.
    not_send: PhantomData<*mut ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: The lock is held.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: The lock is held.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: The lock is held, and `flags` are what taking it returned.
        unsafe { ffi::efa_spin_unlock_irqrestore(self.lock.lock.get(), self.flags) }
    }
}

/// Creates an initializer for an [`IrqLock`] with a lockdep class of its own.
macro_rules! new_irq_lock {
    ($data:expr, $name:literal) => {
        $crate::sys::irq_lock::IrqLock::new(
            $data,
            kernel::c_str!($name),
            kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_irq_lock;
