// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Conversion of time spans to jiffies.
//!
//! To be replaced by `kernel::time::Delta::as_jiffies` or the like.

use kernel::time::{
    msecs_to_jiffies,
    Delta,
    Jiffies, //
};

/// Returns `span` in jiffies, rounded up; spans over 49 days count as 49 days, negative ones as 0.
pub(crate) fn to_jiffies(span: Delta) -> Jiffies {
    let millis = span.as_micros_ceil().max(0).unsigned_abs().div_ceil(1000);

    msecs_to_jiffies(millis.try_into().unwrap_or(u32::MAX))
}
