// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Initialization in place, as far as the driver uses it. None of the checks of the real crate is here: the kernel's build
//! makes them.

use core::{convert::Infallible, pin::Pin};

pub use kernel_macros::{pin_data, pin_init, pinned_drop, try_pin_init};

/// What initializes a `T` where it stays.
///
/// # Safety
///
/// On success the place is initialized, else not.
pub unsafe trait PinInit<T: ?Sized, E = Infallible>: Sized {
    /// Initializes it.
    ///
    /// # Safety
    ///
    /// The place has room, and does not move afterwards.
    unsafe fn __pinned_init(self, slot: *mut T) -> Result<(), E>;
}

// SAFETY: The value is written if there is one.
unsafe impl<T, E> PinInit<T, E> for Result<T, E> {
    unsafe fn __pinned_init(self, slot: *mut T) -> Result<(), E> {
        // SAFETY: The caller guarantees that there is room.
        unsafe { slot.write(self?) };
        Ok(())
    }
}

/// Initializes what is at a place.
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

/// Makes an initializer when it is needed.
pub fn pin_init_scope<T, E, F, I>(make: F) -> impl PinInit<T, E>
where
    F: FnOnce() -> Result<I, E>,
    I: PinInit<T, E>,
{
    // SAFETY: The place is the caller's, and is initialized by an initializer, and so on success only.
    unsafe { __internal::from_closure(move |slot| make()?.__pinned_init(slot)) }
}

/// Initializes each element.
pub fn pin_init_array_from_fn<I, const N: usize, T, E>(
    mut make: impl FnMut(usize) -> I,
) -> impl PinInit<[T; N], E>
where
    I: PinInit<T, E>,
{
    // SAFETY: Each element has its place in the array; if one fails, guards drop those before.
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
            // SAFETY: The place was initialized when this was made; unless the rest has failed, this is forgotten.
            unsafe { self.0.drop_in_place() }
        }
    }
}
