// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Types that are bytes.

/// Types for which any bytes are valid.
///
/// # Safety
///
/// Any bytes must be valid for the type, which has no interior mutability.
pub unsafe trait FromBytes {}

/// Types all of whose bytes are initialized.
///
/// # Safety
///
/// The type must have no padding, and no interior mutability.
pub unsafe trait AsBytes {
    /// Returns the bytes.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: By the requirement of the trait, all bytes are initialized.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), size_of_val(self)) }
    }
}

// SAFETY: Bytes are initialized.
unsafe impl AsBytes for [u8] {}

// SAFETY: Bytes are initialized.
unsafe impl<const N: usize> AsBytes for [u8; N] {}
