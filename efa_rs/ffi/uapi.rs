// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver's own uverbs methods and attributes, declared in C, as only C macros can.

use kernel::ffi::c_void;

/// A driver's own uverbs methods and attributes, declared in C.
///
/// # Invariants
///
/// Points to a constant array of `struct uapi_definition` that ends with a `UAPI_DEF_END` entry.
#[derive(Clone, Copy)]
pub(crate) struct UapiDefinitions(*const c_void);

// SAFETY: By the type invariant the array is constant.
unsafe impl Sync for UapiDefinitions {}

impl UapiDefinitions {
    /// Wraps a C array of `struct uapi_definition`.
    ///
    /// # Safety
    ///
    /// The array must never change, and must end with a `UAPI_DEF_END` entry.
    pub(crate) const unsafe fn new(list: *const c_void) -> Self {
        // INVARIANT: The caller guarantees that the array is constant, and how it ends.
        Self(list)
    }

    /// Returns the array of `struct uapi_definition`.
    pub(crate) const fn as_ptr(self) -> *const c_void {
        self.0
    }
}
