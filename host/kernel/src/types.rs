// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What C and Rust pass to each other.

use core::{cell::UnsafeCell, marker::PhantomPinned, mem::MaybeUninit, pin::Pin};

use pin_init::PinInit;

use crate::{alloc::KBox, ffi::c_void};

/// What belongs to C.
#[repr(transparent)]
pub struct Opaque<T>(UnsafeCell<MaybeUninit<T>>, PhantomPinned);

impl<T> Opaque<T> {
    /// Takes a value.
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(MaybeUninit::new(value)), PhantomPinned)
    }

    /// Returns the pointer for C.
    pub const fn get(&self) -> *mut T {
        self.0.get().cast()
    }

    /// Returns an initializer that is a function of C.
    pub fn ffi_init(init: impl FnOnce(*mut T)) -> impl PinInit<Self> {
        // SAFETY: C has initialized it.
        unsafe {
            pin_init::__internal::from_closure(move |slot: *mut Self| {
                init(slot.cast());
                Ok(())
            })
        }
    }

    /// Returns an initializer that C may refuse.
    pub fn try_ffi_init<E>(init: impl FnOnce(*mut T) -> Result<(), E>) -> impl PinInit<Self, E> {
        // SAFETY: C has initialized it, or has refused.
        unsafe { pin_init::__internal::from_closure(move |slot: *mut Self| init(slot.cast())) }
    }

    /// Makes a pointer to this of one of C.
    pub const fn cast_from(this: *const T) -> *const Self {
        this.cast()
    }
}

/// What can be given to C as a pointer.
pub trait ForeignOwnable: Sized {
    /// Gives the value up as a pointer.
    fn into_foreign(self) -> *mut c_void;

    /// Takes the value back.
    ///
    /// # Safety
    ///
    /// [`ForeignOwnable::into_foreign`] must have returned the pointer, which is used once.
    unsafe fn from_foreign(pointer: *mut c_void) -> Self;
}

impl<T> ForeignOwnable for Pin<KBox<T>> {
    fn into_foreign(self) -> *mut c_void {
        KBox::into_pointer(self).cast()
    }

    unsafe fn from_foreign(pointer: *mut c_void) -> Self {
        // SAFETY: The caller guarantees it.
        unsafe { KBox::from_pointer(pointer.cast()) }
    }
}
