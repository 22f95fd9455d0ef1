// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device was told, and what it did: as events that somebody keeps, and that can be done again.
//!
//! What a device does follows from how it was made, from how it is called, and from what its host answers: it has no clock, and
//! nothing of it is random. So a [`Recorder`](recorder::Recorder) gets each call with what it returns, and each answer of the host
//! and all that was done to it between them; and a [`Player`](crate::Player) calls a new device in the same way, answers for the
//! host, and compares.

pub(crate) mod call;
pub(crate) mod event;
mod host;
pub(crate) mod recorder;

pub(crate) use host::Watched;

use std::time::Duration;

/// Nanoseconds, up to 584 years.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
