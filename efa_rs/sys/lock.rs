// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Spinlocks that interrupt handlers take as well.
//!
//! To be replaced by [`kernel::sync::SpinLockIrq`] once it takes as few instructions. That lock
//! counts nested sections, and calls a C function to lock, to assert that it is locked, and to
//! unlock. A value is accessed by a closure here, so that nested sections end in reverse order. So
//! each section can restore the state of interrupts by itself.

use core::{
    cell::UnsafeCell,
    pin::Pin, //
};

use kernel::{
    bindings,
    ffi::c_ulong,
    prelude::*,
    sync::LockClassKey,
    types::Opaque, //
};

/// A value and the spinlock that guards it. Interrupts are disabled while it is locked.
#[pin_data]
pub(crate) struct IrqLock<T> {
    #[pin]
    lock: Opaque<bindings::spinlock_t>,
    value: UnsafeCell<T>,
}

// SAFETY: The lock belongs to no task, and the value can be sent.
unsafe impl<T: Send> Send for IrqLock<T> {}

// SAFETY: One task at a time has access to the value.
unsafe impl<T: Send> Sync for IrqLock<T> {}

impl<T> IrqLock<T> {
    /// Returns an initializer; see [`new_irq_lock`].
    pub(crate) fn new(
        value: T,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            lock <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` points to memory for a spinlock. Name and key are static.
                unsafe { bindings::__spin_lock_init(slot, name.as_char_ptr(), key.as_ptr()) }
            }),
            value: UnsafeCell::new(value),
        })
    }

    /// Calls `access` with the value, while it is locked.
    #[inline(always)]
    pub(crate) fn with<R>(&self, access: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: The lock is initialized, and is released below.
        let flags = unsafe { acquire(self.lock.get()) };
        // SAFETY: No other task accesses the value before the lock is released.
        let result = access(unsafe { &mut *self.value.get() });
        // SAFETY: The lock was acquired with these flags, and the value is not used any more.
        unsafe { release(self.lock.get(), flags) };
        result
    }
}

/// Returns an initializer of an [`IrqLock`] with a value and, for lockdep, a name.
macro_rules! new_irq_lock {
    ($value:expr, $name:literal $(,)?) => {
        $crate::sys::lock::IrqLock::new($value, $name, ::kernel::static_lock_class!())
    };
}
pub(crate) use new_irq_lock;

/// Disables interrupts and acquires a lock. Returns the previous state of interrupts.
///
/// # Safety
///
/// `lock` must be initialized. [`release`] must be called, and in reverse order of nested calls.
#[cfg(not(any(CONFIG_PREEMPT_RT, CONFIG_INLINE_SPIN_LOCK_IRQSAVE)))]
#[inline(always)]
unsafe fn acquire(lock: *mut bindings::spinlock_t) -> c_ulong {
    // SAFETY: The caller guarantees that the lock is initialized. It begins with a raw one.
    unsafe { bindings::_raw_spin_lock_irqsave(lock.cast()) }
}

/// Releases a lock, and restores the state of interrupts.
///
/// # Safety
///
/// [`acquire`] must have returned `flags` for this lock.
#[cfg(not(any(CONFIG_PREEMPT_RT, CONFIG_INLINE_SPIN_LOCK_IRQSAVE)))]
#[inline(always)]
unsafe fn release(lock: *mut bindings::spinlock_t, flags: c_ulong) {
    // SAFETY: The caller guarantees that the lock is held, with these flags.
    unsafe { bindings::_raw_spin_unlock_irqrestore(lock.cast(), flags) }
}

/// Disables interrupts and acquires a lock.
///
/// # Safety
///
/// `lock` must be initialized. [`release`] must be called.
#[cfg(any(CONFIG_PREEMPT_RT, CONFIG_INLINE_SPIN_LOCK_IRQSAVE))]
unsafe fn acquire(lock: *mut bindings::spinlock_t) -> c_ulong {
    // SAFETY: The caller guarantees that the lock is initialized.
    unsafe { bindings::spin_lock_irq_disable(lock) };
    0
}

/// Releases a lock.
///
/// # Safety
///
/// [`acquire`] must have been called.
#[cfg(any(CONFIG_PREEMPT_RT, CONFIG_INLINE_SPIN_LOCK_IRQSAVE))]
unsafe fn release(lock: *mut bindings::spinlock_t, _flags: c_ulong) {
    // SAFETY: The caller guarantees that the lock is held.
    unsafe { bindings::spin_unlock_irq_enable(lock) }
}
