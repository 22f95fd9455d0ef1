// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A file of each bound device in sysfs, with a constant text. The kernel crate has no such files.

use core::{
    marker::PhantomData,
    ptr::{
        null,
        null_mut, //
    },
};

use kernel::{
    bindings,
    ffi::c_char,
    prelude::*, //
};

/// A file with a line of text.
pub(crate) trait File: 'static {
    /// Name of the file.
    const NAME: &'static CStr;

    /// The line of text, without the newline.
    const TEXT: &'static CStr;
}

/// The table of files that a driver passes to the driver core.
pub(super) struct Groups<F: File>(PhantomData<F>);

impl<F: File> Groups<F> {
    /// The list of groups of files, which ends with null.
    pub(super) const TABLE: &'static [*const bindings::attribute_group; 2] = &[Self::GROUP, null()];

    const GROUP: &'static bindings::attribute_group = &bindings::attribute_group {
        __bindgen_anon_2: bindings::attribute_group__bindgen_ty_2 {
            attrs: Self::FILES.as_ptr().cast_mut(),
        },
        // SAFETY: In a group of files, null stands for an absent member.
        ..unsafe { core::mem::zeroed() }
    };

    const FILES: &'static [*mut bindings::attribute; 2] =
        &[(&raw const Self::FILE.attr).cast_mut(), null_mut()];

    /// Starts from zeroes, as a kernel with lockdep has more fields.
    const FILE: &'static bindings::device_attribute = &{
        // SAFETY: Null stands for an absent function or key.
        let mut file: bindings::device_attribute = unsafe { core::mem::zeroed() };
        file.attr.name = F::NAME.to_bytes_with_nul().as_ptr();
        file.attr.mode = 0o444;
        file.__bindgen_anon_1.show = Some(Self::show);
        file
    };

    /// Writes the line of text into `buffer`.
    ///
    /// # Safety
    ///
    /// `buffer` must point to the start of a page without other users.
    unsafe extern "C" fn show(
        _device: *mut bindings::device,
        _attribute: *mut bindings::device_attribute,
        buffer: *mut c_char,
    ) -> isize {
        // SAFETY: The caller guarantees a page, as the function expects. The format has one text,
        // which is static.
        let length =
            unsafe { bindings::sysfs_emit(buffer, c"%s\n".as_char_ptr(), F::TEXT.as_char_ptr()) };
        // CAST: At most a page.
        length as isize
    }
}
