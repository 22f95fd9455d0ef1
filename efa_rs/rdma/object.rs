// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects that the core allocates and a provider adds data to.

use core::mem::MaybeUninit;

use kernel::prelude::*;

/// The core's object `C` and, behind it, what this layer keeps of it, `K`, and the provider's data
/// `T`.
///
/// The core allocates the whole, zeroed. `T` is initialized while the verb that creates the object
/// runs, and dropped by the one that destroys it. `K` is initialized with it. Where it needs no drop,
/// it stays as it is until the core frees the object, which so can be told of until then.
#[repr(C)]
pub(super) struct Object<C, K, T> {
    core: C,
    kept: MaybeUninit<K>,
    data: MaybeUninit<T>,
}

impl<C, K, T> Object<C, K, T> {
    /// How many bytes the core has to allocate.
    pub(super) const SIZE: usize = {
        // What `kzalloc` guarantees on all architectures.
        assert!(align_of::<Self>() <= 8);
        size_of::<Self>()
    };

    /// Initializes the provider's data.
    ///
    /// # Safety
    ///
    /// `core` must point to an object of [`Self::SIZE`] bytes that does not move, whose data is not
    /// initialized, and that nobody else uses.
    pub(super) unsafe fn init(core: *mut C, data: impl PinInit<T, Error>) -> Result {
        // SAFETY: The caller guarantees that there is room for the data, which does not move.
        unsafe {
            let slot = (&raw mut (*core.cast::<Self>()).data).cast::<T>();
            pin_init::raw_try_init(slot, data)
        }
    }

    /// Sets what is kept.
    ///
    /// # Safety
    ///
    /// `core` must point to an object of [`Self::SIZE`] bytes that nobody else uses.
    pub(super) unsafe fn keep(core: *mut C, kept: K) {
        // SAFETY: The caller guarantees that the object has room for it.
        unsafe { (&raw mut (*core.cast::<Self>()).kept).write(MaybeUninit::new(kept)) };
    }

    /// Returns what is kept.
    ///
    /// # Safety
    ///
    /// `core` must point to an object for which [`Self::keep`] was called.
    pub(super) unsafe fn kept<'o>(core: *mut C) -> &'o K
    where
        K: 'o,
    {
        // SAFETY: The caller guarantees that it was initialized; it does not change.
        unsafe { (*core.cast::<Self>()).kept.assume_init_ref() }
    }

    /// Takes what is kept.
    ///
    /// # Safety
    ///
    /// `core` must point to an object for which [`Self::keep`] was called, and whose `kept` is not used
    /// any more.
    pub(super) unsafe fn take_kept(core: *mut C) -> K {
        // SAFETY: The caller guarantees that it was initialized, and that this is its last use.
        unsafe { (*core.cast::<Self>()).kept.assume_init_read() }
    }

    /// Returns the provider's data.
    ///
    /// # Safety
    ///
    /// `core` must point to an object whose data was initialized, and is not dropped for `'o`.
    pub(super) unsafe fn data<'o>(core: *mut C) -> &'o T
    where
        T: 'o,
    {
        // SAFETY: The caller guarantees that the data is there.
        unsafe { (*core.cast::<Self>()).data.assume_init_ref() }
    }

    /// Drops the provider's data.
    ///
    /// # Safety
    ///
    /// `core` must point to an object whose data was initialized, is not in use, and won't be used
    /// any more.
    pub(super) unsafe fn drop_data(core: *mut C) {
        // SAFETY: The caller guarantees that the data is there and that this is its last use.
        unsafe { (*core.cast::<Self>()).data.assume_init_drop() }
    }
}
