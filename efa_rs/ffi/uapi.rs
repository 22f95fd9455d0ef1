// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver's own uverbs methods and attributes, declared in C, as only C macros can.

use core::marker::PhantomData;

use kernel::ffi::c_void;

/// A driver's own uverbs methods and attributes, declared in C.
///
/// # Invariants
///
/// Points to a constant array of `struct uapi_definition` that ends with a `UAPI_DEF_END` entry. Its methods
/// read at most an `S` right behind the core's structure of a memory region.
#[derive(Clone, Copy)]
pub(crate) struct UapiDefinitions<S>(*const c_void, PhantomData<S>);

// SAFETY: By the type invariant the array is constant.
unsafe impl<S> Sync for UapiDefinitions<S> {}

impl<S> UapiDefinitions<S> {
    /// Wraps a C array of `struct uapi_definition`.
    ///
    /// # Safety
    ///
    /// The array must never change, and must end with a `UAPI_DEF_END` entry. Its methods must not read more
    /// than an `S` behind a memory region.
    pub(crate) const unsafe fn new(list: *const c_void) -> Self {
        // INVARIANT: The caller guarantees all of it.
        Self(list, PhantomData)
    }

    /// Returns the array of `struct uapi_definition`.
    pub(crate) const fn as_ptr(&self) -> *const c_void {
        self.0
    }
}
