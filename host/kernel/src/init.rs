// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Allocations that are initialized in place.

use core::pin::Pin;

use pin_init::PinInit;

use crate::{
    alloc::{flags::Flags, KBox},
    error::{Error, Result},
};

/// Allocation with initialization in place.
pub trait InPlaceInit<T>: Sized {
    /// The owner of the value.
    type Pinned;

    /// Allocates memory, and initializes it.
    ///
    /// # Errors
    ///
    /// Errors of the initializer, and `ENOMEM`.
    fn pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self::Pinned>
    where
        Error: From<E>;
}

impl<T> InPlaceInit<T> for KBox<T> {
    type Pinned = Pin<Self>;

    fn pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Pin<Self>>
    where
        Error: From<E>,
    {
        flags.allow()?;
        let mut place = Box::<T>::new_uninit();
        // SAFETY: The box has room for a `T`, which is initialized after that.
        unsafe {
            init.__pinned_init(place.as_mut_ptr())?;
            Ok(Pin::new_unchecked(Self::from_box(place.assume_init())))
        }
    }
}
