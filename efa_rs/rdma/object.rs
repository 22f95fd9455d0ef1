// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects that the core allocates and a provider adds data to.

use core::mem::MaybeUninit;

/// The core's object `C` and, behind it, the provider's data `T`.
///
/// The core allocates the whole, zeroed. `T` is initialized while the verb that creates the object
/// runs, and dropped by the one that destroys it.
#[repr(C)]
pub(super) struct Object<C, T> {
    core: C,
    data: MaybeUninit<T>,
}

impl<C, T> Object<C, T> {
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
    /// `core` must point to an object of [`Self::SIZE`] bytes whose data is not initialized, and
    /// that nobody else uses.
    pub(super) unsafe fn init(core: *mut C, data: T) {
        // SAFETY: The caller guarantees that the object has room for the data.
        unsafe { (*core.cast::<Self>()).data.write(data) };
    }

    /// Returns the provider's data.
    ///
    /// # Safety
    ///
    /// `core` must point to an object whose data was initialized, and is not taken out or moved for
    /// `'a`.
    pub(super) unsafe fn data<'a>(core: *mut C) -> &'a T {
        // SAFETY: The caller guarantees that the data is there.
        unsafe { (*core.cast::<Self>()).data.assume_init_ref() }
    }

    /// Takes the provider's data out.
    ///
    /// # Safety
    ///
    /// `core` must point to an object whose data was initialized, is not in use, and won't be used
    /// any more.
    pub(super) unsafe fn take(core: *mut C) -> T {
        // SAFETY: The caller guarantees that the data is there and that this is its last use.
        unsafe { (*core.cast::<Self>()).data.assume_init_read() }
    }
}
