// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Files in sysfs.

use super::device;
use crate::ffi::{c_char, c_int};

pub struct attribute {
    pub name: *const c_char,
    pub mode: u16,
}

pub union attribute_group__bindgen_ty_2 {
    pub attrs: *mut *mut attribute,
}

pub struct attribute_group {
    pub name: *const c_char,
    pub __bindgen_anon_2: attribute_group__bindgen_ty_2,
}

type Show = unsafe extern "C" fn(*mut device, *mut device_attribute, *mut c_char) -> isize;

#[derive(Clone, Copy)]
pub union device_attribute__bindgen_ty_1 {
    pub show: Option<Show>,
}

pub struct device_attribute {
    pub attr: attribute,
    pub __bindgen_anon_1: device_attribute__bindgen_ty_1,
}

// SAFETY: These are constant.
unsafe impl Sync for attribute_group {}
// SAFETY: These are constant.
unsafe impl Sync for device_attribute {}

/// Supports the format `"%s\n"` only.
pub unsafe fn sysfs_emit(buffer: *mut c_char, _: *const c_char, text: *const c_char) -> c_int {
    // SAFETY: The buffer is a page, and the text ends with zero.
    unsafe {
        let text = core::ffi::CStr::from_ptr(text.cast()).to_bytes();
        core::ptr::copy_nonoverlapping(text.as_ptr(), buffer, text.len());
        buffer.add(text.len()).write(b'\n');
        text.len() as c_int + 1
    }
}
