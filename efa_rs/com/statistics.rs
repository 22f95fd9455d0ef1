// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What is counted of a device from its binding on, over all its sessions.

use super::{
    counter::{
        Counter,
        Gauge, //
    },
    health::Cause,
    latency::Latencies, //
};

/// Counts; those of commands and events have the names of the C driver's counters.
#[derive(Default)]
pub(crate) struct Statistics {
    /// Commands given to the device.
    pub(crate) submitted_cmds: Counter,
    /// Commands that the device completed.
    pub(crate) completed_cmds: Counter,
    /// Commands that failed for whatever reason.
    pub(crate) cmds_err: Counter,
    /// Commands whose completion or whose interrupt did not come in time.
    pub(crate) no_completion_cmds: Counter,
    /// Keep-alive events.
    pub(crate) keep_alive_rcvd: Counter,
    /// Commands that the device has not completed.
    pub(super) in_flight: Gauge,
    /// Pieces of memory in quarantine.
    pub(super) quarantined: Gauge,
    /// How long commands took.
    pub(super) latencies: Latencies,
    /// Resets of the device in use, by the place of their cause in [`Cause::ALL`].
    resets: [Counter; Cause::ALL.len()],
}

impl Statistics {
    /// Counts a reset of the device in use.
    pub(super) fn count_reset(&self, cause: Cause) {
        if let Some(counter) = self.resets.get(cause as usize) {
            counter.increment();
        }
    }

    /// Returns how many resets there were for this cause.
    pub(crate) fn resets(&self, cause: Cause) -> u64 {
        self.resets.get(cause as usize).map_or(0, Counter::get)
    }

    /// Returns how many resets there were.
    pub(crate) fn all_resets(&self) -> u64 {
        self.resets.iter().map(Counter::get).sum()
    }
}
