// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects that the core allocates and a provider adds data to.

use core::mem::MaybeUninit;

use kernel::prelude::*;

use super::provider::Provider;
use crate::ffi;

/// A structure of the core that stands for an object of a device.
pub(super) trait CoreObject: Sized + 'static {
    /// The data of the provider `P`.
    type Data<'a, P: Provider>;

    /// The layer's own data.
    type Extra<'a, P: Provider>;

    /// Returns the device.
    ///
    /// # Safety
    ///
    /// `this` must be valid.
    unsafe fn device(this: *mut Self) -> *mut ffi::ib_device;
}

/// Implements [`CoreObject`] for a structure of the core, with the data behind it. Implements `$kind`, the
/// trait of such objects, for providers that have none.
macro_rules! core_object {
    ($core:ident, $kind:ident, $data:ty, $extra:ty $(; $($absent:tt)*)?) => {
        #[vtable]
        impl<'a, P: Provider> $kind<'a, P> for $crate::rdma::provider::Absent {
            $($($absent)*)?
        }

        impl $crate::rdma::object::CoreObject for $crate::ffi::$core {
            type Data<'a, P: Provider> = $data;
            type Extra<'a, P: Provider> = $extra;

            unsafe fn device(this: *mut Self) -> *mut $crate::ffi::ib_device {
                // SAFETY: The caller guarantees that the object is valid.
                unsafe { (*this).device }
            }
        }
    };
}
pub(super) use core_object;

/// An object of the provider `P` that begins with the structure `C`.
pub(super) type ObjectOf<'a, P, C> =
    Object<C, <C as CoreObject>::Extra<'a, P>, <C as CoreObject>::Data<'a, P>>;

/// The core's object `C` and, behind it, the layer's own data `E`, and the provider's data `T`.
///
/// The core allocates all of it, zeroed. The creating verb initializes the data, and the destroying verb
/// drops it.
#[repr(C)]
pub(super) struct Object<C, E, T> {
    core: C,
    // Right behind `core`, where a driver's own methods, in C, read that of a memory region.
    extra: MaybeUninit<E>,
    data: MaybeUninit<T>,
}

impl<C, E, T> Object<C, E, T> {
    /// Size in bytes, which the core has to allocate.
    pub(super) const SIZE: usize = {
        // `kzalloc` guarantees this alignment on all architectures.
        assert!(align_of::<Self>() <= 8);
        size_of::<Self>()
    };

    /// Initializes the provider's data, and returns it. The layer's own data is [set](Self::set_extra)
    /// afterwards, unless it is `()`.
    ///
    /// # Errors
    ///
    /// Those of `data`, which then is not initialized.
    ///
    /// # Safety
    ///
    /// `core` must point to an object of [`Self::SIZE`] bytes that does not move, whose data is not
    /// initialized, and that nothing else uses. The data must not be dropped for `'o`.
    pub(super) unsafe fn init<'o>(core: *mut C, data: impl PinInit<T, Error>) -> Result<&'o T> {
        // SAFETY: The caller guarantees that the object has this type.
        let slot = unsafe { &raw mut (*core.cast::<Self>()).data };
        // SAFETY: The caller guarantees that the slot is not in use, and does not move.
        unsafe { pin_init::raw_try_init(slot.cast::<T>(), data) }?;
        // SAFETY: The data is initialized now. The caller guarantees that it is not dropped for `'o`.
        Ok(unsafe { Self::data(core) })
    }

    /// Sets the layer's own data.
    ///
    /// # Safety
    ///
    /// `core` must point to an object without this data, which nothing else uses.
    pub(super) unsafe fn set_extra(core: *mut C, extra: E) {
        // SAFETY: The caller guarantees that the object has this type, and is not in use.
        unsafe { (*core.cast::<Self>()).extra = MaybeUninit::new(extra) };
    }

    /// Returns the provider's data.
    ///
    /// # Safety
    ///
    /// `core` must point to an object whose data is initialized, and is not dropped for `'o`.
    pub(super) unsafe fn data<'o>(core: *mut C) -> &'o T {
        // SAFETY: The caller guarantees that the object has this type, and is valid for `'o`.
        let data = unsafe { &(*core.cast::<Self>()).data };
        // SAFETY: The caller guarantees that the data is initialized.
        unsafe { data.assume_init_ref() }
    }

    /// Returns the layer's own data.
    ///
    /// # Safety
    ///
    /// `core` must point to an object whose data is initialized, and is not dropped for `'o`.
    pub(super) unsafe fn extra<'o>(core: *mut C) -> &'o E {
        // SAFETY: The caller guarantees that the object has this type, and is valid for `'o`.
        let extra = unsafe { &(*core.cast::<Self>()).extra };
        // SAFETY: The caller guarantees that the data is initialized.
        unsafe { extra.assume_init_ref() }
    }

    /// Drops the provider's data, and then the layer's own.
    ///
    /// # Safety
    ///
    /// `core` must point to an object whose data is initialized, is not in use, and is not used
    /// afterwards.
    pub(super) unsafe fn drop_data(core: *mut C) {
        // SAFETY: The caller guarantees that the object has this type, and that its data is not in use.
        let data = unsafe { &mut (*core.cast::<Self>()).data };
        // SAFETY: The caller guarantees that the data is initialized, and that this is its last use.
        unsafe { data.assume_init_drop() };
        // SAFETY: The caller guarantees that the object has this type, and that its data is not in use.
        let extra = unsafe { &mut (*core.cast::<Self>()).extra };
        // SAFETY: The caller guarantees that the data is initialized, and that this is its last use.
        unsafe { extra.assume_init_drop() }
    }
}
