// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Spinlocks that interrupt handlers take as well.
//!
//! To be replaced by [`kernel::sync::SpinLockIrq`] once it takes as few instructions: it counts nested
//! sections, and calls C functions. A closure accesses the value here, so that nested sections end
//! in reverse order, and each can restore the state of interrupts by itself.

use core::{
    cell::UnsafeCell,
    pin::Pin, //
};

use kernel::{
    bindings,
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
        let lock = self.lock.get();
        // SAFETY: The lock is initialized, and is released below. It begins with a raw one.
        #[cfg(not(any(CONFIG_PREEMPT_RT, CONFIG_INLINE_SPIN_LOCK_IRQSAVE)))]
        let flags = unsafe { bindings::_raw_spin_lock_irqsave(lock.cast()) };
        // SAFETY: The lock is initialized, and is released below.
        #[cfg(any(CONFIG_PREEMPT_RT, CONFIG_INLINE_SPIN_LOCK_IRQSAVE))]
        unsafe {
            bindings::spin_lock_irq_disable(lock)
        };
        // SAFETY: No other task accesses the value before the lock is released.
        let result = access(unsafe { &mut *self.value.get() });
        // SAFETY: The lock was acquired with these flags, and the value is not used any more.
        #[cfg(not(any(CONFIG_PREEMPT_RT, CONFIG_INLINE_SPIN_LOCK_IRQSAVE)))]
        unsafe {
            bindings::_raw_spin_unlock_irqrestore(lock.cast(), flags)
        };
        // SAFETY: The lock was acquired above, and the value is not used any more.
        #[cfg(any(CONFIG_PREEMPT_RT, CONFIG_INLINE_SPIN_LOCK_IRQSAVE))]
        unsafe {
            bindings::spin_unlock_irq_enable(lock)
        };
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
