// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The number of messages or calls of a command, and their duration.

use kernel::{
    fmt,
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Results of a command, formatted as its answer.
pub(crate) struct Tally {
    count: u64,
    bytes: u64,
    done: u64,
    start: Instant<Monotonic>,
    elapsed: Delta,
    waited: Delta,
}

impl Tally {
    /// Starts a tally of `count` messages or calls, of `bytes` bytes each.
    pub(crate) fn new(count: u64, bytes: usize) -> Self {
        Self {
            count,
            // CAST: At most twice `REGION_SIZE`.
            bytes: count.saturating_mul(bytes as u64),
            done: 0,
            start: Instant::now(),
            elapsed: Delta::ZERO,
            waited: Delta::ZERO,
        }
    }

    /// Counts a message or call that began at `since`.
    pub(crate) fn add(&mut self, since: Instant<Monotonic>) {
        self.done += 1;
        self.waited += since.elapsed();
    }

    /// Records the end of the command.
    pub(crate) fn finish(mut self) -> Self {
        self.elapsed = self.start.elapsed();
        self
    }

    /// Returns whether all messages or calls were counted.
    pub(crate) fn is_complete(&self) -> bool {
        self.done == self.count
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latency = self.waited.as_nanos() / self.count.max(1).min(i64::MAX as u64) as i64;
        write!(
            f,
            "calls {} bytes {} ns {} latency_ns {latency}",
            self.count,
            self.bytes,
            self.elapsed.as_nanos()
        )
    }
}
