// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Strings of C.

pub use core::ffi::CStr;
use core::ops::Deref;

use crate::{alloc::flags::GFP_KERNEL, error::Result, ffi::c_char};

/// What the kernel adds to `CStr`.
pub trait CStrExt {
    /// Takes a pointer.
    ///
    /// # Safety
    ///
    /// The string must end with zero, and stay.
    unsafe fn from_char_ptr<'a>(pointer: *const c_char) -> &'a Self;

    /// Returns the pointer.
    fn as_char_ptr(&self) -> *const c_char;
}

impl CStrExt for CStr {
    unsafe fn from_char_ptr<'a>(pointer: *const c_char) -> &'a Self {
        // SAFETY: The caller guarantees it.
        unsafe { Self::from_ptr(pointer.cast()) }
    }

    fn as_char_ptr(&self) -> *const c_char {
        self.as_ptr().cast()
    }
}

/// A string of C that is allocated.
pub struct CString(std::ffi::CString);

impl CString {
    /// Formats a string.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory, `EINVAL` if it has a zero.
    pub fn try_from_fmt(arguments: core::fmt::Arguments<'_>) -> Result<Self> {
        GFP_KERNEL.allow()?;
        let text = std::ffi::CString::new(arguments.to_string());
        text.map(Self).map_err(|_| crate::error::code::EINVAL)
    }
}

impl Deref for CString {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        &self.0
    }
}
