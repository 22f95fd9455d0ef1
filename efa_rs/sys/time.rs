// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Conversion of time spans to jiffies and back.
//!
//! To be replaced by `kernel::time::Delta::as_jiffies` and the like.

use kernel::{
    bindings,
    time::{
        msecs_to_jiffies,
        Delta,
        Jiffies, //
    },
};

/// Returns `span` in jiffies, rounded up; spans over 49 days count as 49 days, negative ones as 0.
pub(crate) fn to_jiffies(span: Delta) -> Jiffies {
    let millis = span.as_micros_ceil().max(0).unsigned_abs().div_ceil(1000);

    msecs_to_jiffies(millis.try_into().unwrap_or(u32::MAX))
}

/// Returns a number of jiffies as a span, rounded down to milliseconds.
pub(crate) fn from_jiffies(jiffies: Jiffies) -> Delta {
    // SAFETY: There is no precondition.
    let millis = unsafe { bindings::jiffies64_to_msecs(jiffies as u64) };
    Delta::from_millis(millis.try_into().unwrap_or(i64::MAX))
}
