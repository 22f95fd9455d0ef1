// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of events.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// A count that only grows; any context may add to it.
pub(crate) struct Counter(Atomic<u64>);

impl Default for Counter {
    fn default() -> Self {
        Self(Atomic::new(0))
    }
}

impl Counter {
    /// Adds one.
    #[inline]
    pub(crate) fn increment(&self) {
        self.0.add(1, Relaxed);
    }

    /// Returns the count.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
