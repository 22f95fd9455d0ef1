// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Data that a provider's userspace library exchanges with a verb.

use core::{
    marker::PhantomData,
    mem::MaybeUninit, //
};

use kernel::{
    error::to_result,
    prelude::*,
    transmute::{
        AsBytes,
        FromBytes, //
    }, //
};

use crate::ffi;

/// Input from and output to the provider's userspace library.
///
/// # Invariants
///
/// `raw` is null, for a caller within the kernel, or points to an `ib_udata` that is valid for
/// `'a`.
pub(crate) struct Udata<'a> {
    raw: *mut ffi::ib_udata,
    lifetime: PhantomData<&'a ffi::ib_udata>,
}

impl Udata<'_> {
    /// Wraps the core's structure.
    ///
    /// # Safety
    ///
    /// `raw` must be null or valid for the lifetime of the returned value.
    pub(super) unsafe fn from_raw(raw: *mut ffi::ib_udata) -> Self {
        // INVARIANT: The caller guarantees it.
        Self {
            raw,
            lifetime: PhantomData,
        }
    }

    /// Wraps the `ib_udata` in the attributes of a method.
    ///
    /// # Safety
    ///
    /// `attrs` must be valid for the lifetime of the returned value.
    pub(super) unsafe fn of(attrs: *mut ffi::uverbs_attr_bundle) -> Self {
        // SAFETY: The caller guarantees that the attributes are valid.
        let parts = unsafe { &mut (*attrs).__bindgen_anon_1 };
        // SAFETY: This is the variant that the core uses.
        let raw = unsafe { &raw mut parts.__bindgen_anon_1.driver_udata };
        // SAFETY: The structure is part of the attributes, so it is valid as long as they are.
        unsafe { Self::from_raw(raw) }
    }

    /// Returns whether the caller is within the kernel.
    #[cfg(kverbs)]
    pub(super) fn is_kernel(&self) -> bool {
        self.raw.is_null()
    }

    /// Returns the core's structure, or null.
    pub(super) fn as_raw(&self) -> *mut ffi::ib_udata {
        self.raw
    }

    /// Returns the input, with zeroes for bytes that are missing.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there are fewer than `minimum` bytes.
    /// - `EOPNOTSUPP` if there are more than a `T` has, and not all of those are zero.
    /// - [`EFAULT`] if they can't be read.
    pub(crate) fn input<T: FromBytes>(&self, minimum: usize) -> Result<T> {
        let mut input = MaybeUninit::<T>::zeroed();
        let (place, size) = (input.as_mut_ptr().cast(), size_of::<T>());
        if self.raw.is_null() {
            return Err(EINVAL);
        }

        // SAFETY: By the type invariant, `raw` is valid; no more than a `T` is written.
        to_result(unsafe { ffi::_ib_copy_validate_udata_in(self.raw, place, size, minimum) })?;
        // SAFETY: Zeroes, and any bytes that were written, are a valid `T`.
        Ok(unsafe { input.assume_init() })
    }

    /// Fails if there is input other than zeroes.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if there is input.
    /// - [`EFAULT`] if it can't be read.
    pub(crate) fn expect_no_input(&self) -> Result {
        // SAFETY: By the type invariant, `raw` is null or valid.
        if self.raw.is_null() || unsafe { (*self.raw).inlen == 0 } {
            return Ok(());
        }

        // SAFETY: By the type invariant, and as it is not null, `raw` is valid; nothing is written, as
        // nothing is expected.
        to_result(unsafe { ffi::_ib_copy_validate_udata_in(self.raw, core::ptr::null_mut(), 0, 0) })
    }

    /// Fails if there is input other than zeroes. Zeroes the output.
    ///
    /// For verbs without input or output of the userspace library.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if there is input.
    /// - [`EFAULT`] if the input can't be read, or the output can't be written.
    pub(crate) fn expect_no_io(&self) -> Result {
        self.expect_no_input()?;
        self.respond::<[u8]>(&[])
    }

    /// Writes the output, truncated or padded with zeroes to the size of the caller's buffer.
    ///
    /// # Errors
    ///
    /// - [`EFAULT`] if it can't be written.
    pub(crate) fn respond<T: AsBytes + ?Sized>(&self, output: &T) -> Result {
        // SAFETY: By the type invariant, `raw` is null or valid.
        if self.raw.is_null() || unsafe { (*self.raw).outlen == 0 } {
            return Ok(());
        }

        let bytes = output.as_bytes();
        // SAFETY: By the type invariant, `raw` is valid; `bytes` is of the length given.
        to_result(unsafe { ffi::_ib_respond_udata(self.raw, bytes.as_ptr().cast(), bytes.len()) })
    }
}
