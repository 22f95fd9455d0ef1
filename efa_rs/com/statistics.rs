// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of a device since it was bound, over all sessions.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use super::health::Cause;
use crate::sys::atomic;

/// A counter that only grows. Any context may add to it.
pub(crate) struct Counter(Atomic<u64>);

impl Default for Counter {
    fn default() -> Self {
        Self(Atomic::new(0))
    }
}

impl Counter {
    #[inline]
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    #[inline]
    pub(super) fn add(&self, count: u64) {
        self.0.add(count, Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        atomic::read(&self.0)
    }
}

/// The counters. Those of commands and events have the names of the C driver's counters.
#[derive(Default)]
pub(crate) struct Statistics {
    /// Commands submitted to the device.
    pub(crate) submitted_cmds: Counter,
    /// Commands that the device completed.
    pub(crate) completed_cmds: Counter,
    /// Commands that failed for any reason.
    pub(crate) cmds_err: Counter,
    /// Commands whose completion or interrupt was not received in time.
    pub(crate) no_completion_cmds: Counter,
    /// Keep-alive events.
    pub(crate) keep_alive_rcvd: Counter,
    /// Commands that were in flight when their queue was closed.
    pub(super) abandoned_cmds: Counter,
    /// Interrupts of events that were not received.
    pub(super) lost_interrupts: Counter,
    /// Pieces of memory that were put into quarantine.
    pub(super) quarantined: Counter,
    /// Pieces of memory that were released from quarantine.
    pub(super) released: Counter,
    /// Resets of the device in use, by their cause.
    resets: [Counter; Cause::COUNT],
}

impl Statistics {
    pub(super) fn count_reset(&self, cause: Cause) {
        if let Some(counter) = self.resets.get(cause as usize) {
            counter.increment();
        }
    }

    pub(crate) fn resets(&self, cause: Cause) -> u64 {
        self.resets.get(cause as usize).map_or(0, Counter::get)
    }

    pub(crate) fn all_resets(&self) -> u64 {
        self.resets.iter().map(Counter::get).sum()
    }

    pub(super) fn in_flight(&self) -> u64 {
        // The ended commands are read first, so that they do not exceed the submitted ones.
        let ended = self.completed_cmds.get() + self.abandoned_cmds.get();
        self.submitted_cmds.get().saturating_sub(ended)
    }

    pub(super) fn in_quarantine(&self) -> u64 {
        let released = self.released.get();
        self.quarantined.get().saturating_sub(released)
    }
}
