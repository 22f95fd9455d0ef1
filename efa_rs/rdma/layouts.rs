// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Whether the generated bindings are those of the kernel that the module was built for.

use crate::ffi;

/// Returns whether the generated bindings have the sizes that the C compiler gives the largest
/// structures. They differ only if the two were given different flags.
pub(crate) fn layouts_agree() -> bool {
    // SAFETY: This is a constant of the C half of this module.
    let device = unsafe { ffi::efa_sizeof_ib_device };
    // SAFETY: This is a constant of the C half of this module.
    let device_ops = unsafe { ffi::efa_sizeof_ib_device_ops };
    // SAFETY: This is a constant of the C half of this module.
    let ucontext = unsafe { ffi::efa_sizeof_ib_ucontext };

    size_of::<ffi::ib_device>() == device
        && size_of::<ffi::ib_device_ops>() == device_ops
        && size_of::<ffi::ib_ucontext>() == ucontext
}
