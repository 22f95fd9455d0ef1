// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Conversion of time spans to jiffies.
//!
//! To be replaced by `kernel::time::Delta::as_jiffies` or the like; the kernel crate converts
//! milliseconds only.

use kernel::time::{
    Delta,
    Jiffies, //
};

use crate::ffi;

/// Returns `span` in jiffies, rounded up; spans over 71 minutes count as 71 minutes, negative ones
/// as none.
pub(crate) fn to_jiffies(span: Delta) -> Jiffies {
    let micros = u32::try_from(span.as_micros_ceil().max(0)).unwrap_or(u32::MAX);

    // SAFETY: The conversion has no precondition.
    unsafe { ffi::efa_usecs_to_jiffies(micros) }
}
