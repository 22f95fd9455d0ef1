// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Facts about the running system.
//!
//! To be replaced by a `utsname` abstraction and [`kernel::cpu`] once they offer this.

use kernel::str::{
    CStr,
    CStrExt, //
};

use crate::ffi;

/// Returns the kernel's release, as `uname -r` prints it outside of containers.
pub(crate) fn release() -> &'static CStr {
    // SAFETY: There is no precondition, as the initial namespace always exists.
    let release = unsafe { ffi::efa_init_utsname(false) };
    // SAFETY: The release of the initial namespace ends with a zero byte, and never changes.
    unsafe { CStr::from_char_ptr(release) }
}

/// Returns the kernel's version, as `uname -v` prints it outside of containers.
pub(crate) fn version() -> &'static CStr {
    // SAFETY: There is no precondition, as the initial namespace always exists.
    let version = unsafe { ffi::efa_init_utsname(true) };
    // SAFETY: The version of the initial namespace ends with a zero byte, and never changes.
    unsafe { CStr::from_char_ptr(version) }
}

/// Returns `LINUX_VERSION_CODE` of the kernel that the module was built for.
pub(crate) fn version_code() -> u32 {
    ffi::LINUX_VERSION_CODE
}

/// Returns the number of CPUs that are online at this moment.
pub(crate) fn online_cpus() -> u32 {
    // SAFETY: There is no precondition.
    unsafe { ffi::efa_num_online_cpus() }
}
