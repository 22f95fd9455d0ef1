// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The handshake of a reset: the driver starts it, waits until it is in progress, ends it, and waits
//! until it is not in progress any more.

use std::{collections::VecDeque, time::Duration};

/// How many resets are remembered.
const MAX_REASONS: usize = 1024;

/// Where a reset is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reset {
    /// There is none.
    #[default]
    None,
    /// The driver has started it. The device says so from this time on, or never.
    Started(Option<Duration>),
    /// The driver has ended it. The device says so from this time on, or never.
    Ended(Option<Duration>),
}

impl Reset {
    /// Whether the driver has started it and not ended it.
    pub(crate) fn is_started(self) -> bool {
        matches!(self, Self::Started(_))
    }

    /// Whether the device says that it is in progress.
    pub(crate) fn in_progress(self, now: Duration) -> bool {
        match self {
            Self::None => false,
            Self::Started(from) => from.is_some_and(|from| from <= now),
            Self::Ended(until) => until.is_none_or(|until| now < until),
        }
    }

    /// Whether the device says that one has finished.
    pub(crate) fn is_finished(self, now: Duration) -> bool {
        matches!(self, Self::Ended(_)) && !self.in_progress(now)
    }
}

/// The reset that may be under way, and those that there were.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    pub(crate) current: Reset,
    /// Whether the one under way never ends.
    pub(crate) never_ends: bool,
    /// Reasons of the last ones, oldest first.
    pub(crate) reasons: VecDeque<String>,
    /// Those of the PCI function, ever.
    pub(crate) of_function: u64,
}

impl Resets {
    /// Takes note of one.
    pub(crate) fn note(&mut self, reason: String) {
        if self.reasons.len() == MAX_REASONS {
            self.reasons.pop_front();
        }
        self.reasons.push_back(reason);
    }
}
