// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Types for values that C and Rust share.

use core::{cell::UnsafeCell, marker::PhantomPinned, mem::MaybeUninit, pin::Pin};

use pin_init::PinInit;

use crate::{alloc::KBox, ffi::c_void};

/// A value that C accesses.
#[repr(transparent)]
pub struct Opaque<T>(UnsafeCell<MaybeUninit<T>>, PhantomPinned);

impl<T> Opaque<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(MaybeUninit::new(value)), PhantomPinned)
    }

    /// Returns a pointer for C.
    pub const fn get(&self) -> *mut T {
        self.0.get().cast()
    }

    /// Returns an initializer that calls a C function.
    pub fn ffi_init(init: impl FnOnce(*mut T)) -> impl PinInit<Self> {
        // SAFETY: `init` initializes the value.
        unsafe {
            pin_init::__internal::from_closure(move |slot: *mut Self| {
                init(slot.cast());
                Ok(())
            })
        }
    }

    /// Returns an initializer that calls a C function, which may fail.
    pub fn try_ffi_init<E>(init: impl FnOnce(*mut T) -> Result<(), E>) -> impl PinInit<Self, E> {
        // SAFETY: `init` initializes the value, or fails.
        unsafe { pin_init::__internal::from_closure(move |slot: *mut Self| init(slot.cast())) }
    }

    /// Converts a pointer from C to a pointer to this type.
    pub const fn cast_from(this: *const T) -> *const Self {
        this.cast()
    }
}

/// A type whose values can be passed to C as pointers.
pub trait ForeignOwnable: Sized {
    /// Converts the value to a pointer.
    fn into_foreign(self) -> *mut c_void;

    /// Converts a pointer back to the value.
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
