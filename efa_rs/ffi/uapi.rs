// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Methods of the RDMA core's objects that a driver declares in C, where the macros for them are.

use kernel::ffi::c_void;

/// Methods of the RDMA core's objects that a driver declares in C.
///
/// # Invariants
///
/// The list is one of `struct uapi_definition`. It is constant, and ends with the entry that says so.
#[derive(Clone, Copy)]
pub(crate) struct UapiDefinitions(*const c_void);

// SAFETY: By the type invariant the definitions are constant.
unsafe impl Sync for UapiDefinitions {}

impl UapiDefinitions {
    /// Takes a list of `struct uapi_definition` of C.
    ///
    /// # Safety
    ///
    /// The list must never change, and end with the entry that says so.
    pub(crate) const unsafe fn new(list: *const c_void) -> Self {
        // INVARIANT: The caller guarantees it.
        Self(list)
    }

    /// Returns the list, of `struct uapi_definition`.
    pub(crate) const fn as_ptr(self) -> *const c_void {
        self.0
    }
}
