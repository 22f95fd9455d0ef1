// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Whether the generated bindings are those of the kernel that the module was built for.

use crate::ffi;

/// Returns whether the generated bindings have the sizes that the C compiler gives the largest
/// structures. They differ only if the two were given different flags.
pub(crate) fn layouts_agree() -> bool {
    // SAFETY: These are constants of the C half of this module.
    unsafe {
        size_of::<ffi::ib_device>() == ffi::efa_sizeof_ib_device
            && size_of::<ffi::ib_device_ops>() == ffi::efa_sizeof_ib_device_ops
            && size_of::<ffi::ib_ucontext>() == ffi::efa_sizeof_ib_ucontext
    }
}
