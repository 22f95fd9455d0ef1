// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! C strings.

pub use core::ffi::CStr;
use core::ops::Deref;

use crate::{alloc::flags::GFP_KERNEL, error::Result, ffi::c_char};

/// Methods that the kernel adds to `CStr`.
pub trait CStrExt {
    /// Converts a pointer from C to a reference.
    ///
    /// # Safety
    ///
    /// The string must end with zero, and stay valid for `'a`.
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

/// An allocated C string.
pub struct CString(std::ffi::CString);

impl CString {
    /// Formats a string.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory, `EINVAL` if the text contains a zero byte.
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
