// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of events, and of what there is at the moment.

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

/// How many of something there are at the moment.
pub(crate) struct Gauge(Atomic<i64>);

impl Default for Gauge {
    fn default() -> Self {
        Self(Atomic::new(0))
    }
}

impl Gauge {
    /// Adds as many as are new, or takes away those that are gone.
    #[inline]
    pub(super) fn change(&self, by: i64) {
        self.0.add(by, Relaxed);
    }

    /// Returns how many there are.
    pub(super) fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}
