// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of a program, which is in this process.

use crate::{
    error::{code::EFAULT, Result},
    ffi::c_void,
};

/// A pointer to memory of a program.
#[derive(Clone, Copy)]
pub struct UserPtr(*mut c_void);

impl UserPtr {
    /// Wraps a pointer that a program has passed.
    pub fn from_ptr(pointer: *mut c_void) -> Self {
        Self(pointer)
    }
}

/// Memory of a program. The shim trusts its length.
pub struct UserSlice(UserPtr, usize);

impl UserSlice {
    /// Describes `length` bytes at `pointer`.
    pub fn new(pointer: UserPtr, length: usize) -> Self {
        Self(pointer, length)
    }

    /// Returns a reader of all bytes.
    pub fn reader(self) -> UserSliceReader {
        UserSliceReader(self)
    }
}

/// A reader of a program's memory, from its start on.
pub struct UserSliceReader(UserSlice);

impl UserSliceReader {
    /// Returns the number of bytes that are left.
    pub fn len(&self) -> usize {
        self.0 .1
    }

    /// Returns whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the next bytes. May sleep.
    ///
    /// # Errors
    ///
    /// - [`EFAULT`] if fewer bytes are left.
    pub fn read_slice(&mut self, bytes: &mut [u8]) -> Result {
        let UserSlice(UserPtr(pointer), length) = &mut self.0;
        if bytes.len() > *length || (pointer.is_null() && !bytes.is_empty()) {
            return Err(EFAULT);
        }
        sim::might_sleep("memory of a program");
        let (next, left) = (
            pointer.wrapping_byte_add(bytes.len()),
            *length - bytes.len(),
        );
        // SAFETY: The program has these bytes at the pointer.
        unsafe { core::ptr::copy_nonoverlapping(pointer.cast(), bytes.as_mut_ptr(), bytes.len()) };
        (*pointer, *length) = (next, left);
        Ok(())
    }
}
