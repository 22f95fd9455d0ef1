// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Initialization in place, as far as the driver uses it. This lacks the checks of the real crate,
//! which the kernel's build makes.

use core::{convert::Infallible, pin::Pin};

pub use kernel_macros::{pin_data, pin_init, pinned_drop, try_pin_init};

/// An initializer of a `T` in its final place.
///
/// # Safety
///
/// An initialization must initialize the place on success, and only then.
pub unsafe trait PinInit<T: ?Sized, E = Infallible>: Sized {
    /// Initializes the place.
    ///
    /// # Safety
    ///
    /// The place must have room for a `T`, which must not move afterwards.
    unsafe fn __pinned_init(self, slot: *mut T) -> Result<(), E>;
}

// SAFETY: On success the value is written.
unsafe impl<T, E> PinInit<T, E> for Result<T, E> {
    unsafe fn __pinned_init(self, slot: *mut T) -> Result<(), E> {
        // SAFETY: The caller guarantees that there is room.
        unsafe { slot.write(self?) };
        Ok(())
    }
}

/// Initializes the value at a place.
///
/// # Safety
///
/// As with [`PinInit::__pinned_init`].
pub unsafe fn raw_try_init<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: The caller guarantees that the place has room, and does not move afterwards.
    unsafe { init.__pinned_init(slot) }
}

/// The drop of a pinned value.
pub trait PinnedDrop {
    /// Called before the fields are dropped.
    fn drop(self: Pin<&mut Self>);
}

/// Creates an initializer that calls `make` when it is used.
pub fn pin_init_scope<T, E, F, I>(make: F) -> impl PinInit<T, E>
where
    F: FnOnce() -> Result<I, E>,
    I: PinInit<T, E>,
{
    // SAFETY: The place is the caller's. The initializer initializes it on success only.
    unsafe { __internal::from_closure(move |slot| make()?.__pinned_init(slot)) }
}

/// Initializes each element.
pub fn pin_init_array_from_fn<I, const N: usize, T, E>(
    mut make: impl FnMut(usize) -> I,
) -> impl PinInit<[T; N], E>
where
    I: PinInit<T, E>,
{
    // SAFETY: Each element has its place in the array. On a failure, guards drop the earlier ones.
    unsafe {
        __internal::from_closure(move |slot: *mut [T; N]| {
            let mut guards = Vec::new();
            for index in 0..N {
                let place = slot.cast::<T>().add(index);
                make(index).__pinned_init(place)?;
                if core::mem::needs_drop::<T>() {
                    guards.push(__internal::Guard::new(place));
                }
            }
            guards.into_iter().for_each(core::mem::forget);
            Ok(())
        })
    }
}

#[allow(missing_docs, clippy::missing_safety_doc, reason = "for macros")]
#[doc(hidden)]
pub mod __internal {
    use core::marker::PhantomData;

    use super::PinInit;

    pub struct Closure<T: ?Sized, E, F>(F, PhantomData<fn(*mut T) -> E>);

    // SAFETY: The caller of `from_closure` guarantees it.
    unsafe impl<T: ?Sized, E, F: FnOnce(*mut T) -> Result<(), E>> PinInit<T, E> for Closure<T, E, F> {
        unsafe fn __pinned_init(self, slot: *mut T) -> Result<(), E> {
            (self.0)(slot)
        }
    }

    pub unsafe fn from_closure<T: ?Sized, E, F>(f: F) -> impl PinInit<T, E>
    where
        F: FnOnce(*mut T) -> Result<(), E>,
    {
        Closure(f, PhantomData)
    }

    pub fn tie<T>(slot: *mut T, _: impl FnOnce() -> T) -> *mut T {
        slot
    }

    pub struct Guard<T>(*mut T);

    impl<T> Guard<T> {
        pub unsafe fn new(place: *mut T) -> Self {
            Self(place)
        }
    }

    impl<T> Drop for Guard<T> {
        fn drop(&mut self) {
            // SAFETY: The place was initialized before. On success, the guard is forgotten.
            unsafe { self.0.drop_in_place() }
        }
    }
}
