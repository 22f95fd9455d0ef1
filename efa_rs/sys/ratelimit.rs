// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rate limits for messages that a program or a device could provoke at will.
//!
//! To be replaced by rate-limited variants of `dev_err!` and its like in the kernel crate.

use crate::ffi;

/// Returns whether one more message may be printed now.
pub(crate) fn allowed() -> bool {
    // SAFETY: The function has no precondition; its state has a lock of its own.
    unsafe { ffi::efa_ratelimit() != 0 }
}

/// Like [`kernel::dev_err!`], at most ten times in five seconds.
macro_rules! dev_err_ratelimited {
    ($($arg:tt)*) => {
        if $crate::sys::ratelimit::allowed() {
            kernel::dev_err!($($arg)*);
        }
    };
}
pub(crate) use dev_err_ratelimited;
