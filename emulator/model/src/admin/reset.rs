// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The handshake of a reset: the driver starts it, waits until it is in progress, ends it, and waits until it is finished.

use std::{collections::VecDeque, time::Duration};

/// Limit on the number of reset reasons that are kept.
const MAX_REASONS: usize = 1024;

/// Phase of the reset handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reset {
    /// No reset is in progress.
    #[default]
    None,
    /// The driver has started a reset. The device reports it as in progress from this time on, or never if `None`.
    Started(Option<Duration>),
    /// The driver has ended the reset. The device reports it as finished from this time on, or never if `None`.
    Ended(Option<Duration>),
}

impl Reset {
    /// Whether the driver has started a reset and not ended it.
    pub(crate) fn is_started(self) -> bool {
        matches!(self, Self::Started(_))
    }

    /// Whether the device reports a reset in progress.
    pub(crate) fn in_progress(self, now: Duration) -> bool {
        match self {
            Self::None => false,
            Self::Started(from) => from.is_some_and(|from| from <= now),
            Self::Ended(until) => until.is_none_or(|until| now < until),
        }
    }

    /// Whether the device reports a finished reset.
    pub(crate) fn is_finished(self, now: Duration) -> bool {
        matches!(self, Self::Ended(_)) && !self.in_progress(now)
    }
}

/// The current reset, and a history of earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    pub(crate) current: Reset,
    /// Whether the current reset never ends.
    pub(crate) never_ends: bool,
    /// Reasons of the last resets, oldest first.
    pub(crate) reasons: VecDeque<String>,
    /// Total number of resets of the PCI function.
    pub(crate) of_function: u64,
}

impl Resets {
    /// Records the reason of a reset, and drops the oldest if there are too many.
    pub(crate) fn note(&mut self, reason: String) {
        if self.reasons.len() == MAX_REASONS {
            self.reasons.pop_front();
        }
        self.reasons.push_back(reason);
    }
}
