// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How much a connection may have in flight.
//!
//! A connection keeps so little in flight that queues in the network stay short: it lets its window grow while round trips
//! take little longer than they ever took, and shrink when they take longer or packets are lost. So those who share a link
//! get about the same, and none has to be told.

use std::time::Duration;

/// Packets that a new connection may have in flight.
const INITIAL: f64 = 4.0;

/// Most packets that a connection may have in flight.
pub(crate) const MOST: f64 = 256.0;

/// How much of the window is left when a round trip takes very long.
const LEAST_PART: f64 = 0.7;

/// Time that packets may wait in queues besides the shortest round trip.
const QUEUEING: Duration = Duration::from_micros(20);

/// Least time to wait for an acknowledgement. Shorter ones than a scheduler's would only measure the host.
const MIN_TIMEOUT: Duration = Duration::from_millis(2);

/// How long to wait before the first round trip was measured.
const INITIAL_TIMEOUT: Duration = Duration::from_millis(20);

/// The window of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    size: f64,
    /// Whether the network has not been full yet, so that it grows fast.
    starting: bool,
    shortest: Option<Duration>,
    smoothed: Option<Duration>,
    /// When it last became smaller.
    shrunk: Duration,
}

impl Window {
    pub(crate) fn new() -> Self {
        Self {
            size: INITIAL,
            starting: true,
            shortest: None,
            smoothed: None,
            shrunk: Duration::ZERO,
        }
    }

    /// Packets that may be in flight.
    pub(crate) fn packets(&self) -> usize {
        // CAST: it is between 1 and `MOST`.
        self.size as usize
    }

    /// How long to wait for an acknowledgement.
    pub(crate) fn timeout(&self) -> Duration {
        self.smoothed
            .map_or(INITIAL_TIMEOUT, |smoothed| (smoothed * 4).max(MIN_TIMEOUT))
    }

    /// A packet was acknowledged after a round trip of this time.
    pub(crate) fn acknowledged(&mut self, now: Duration, round_trip: Duration) {
        let shortest = self
            .shortest
            .map_or(round_trip, |least| least.min(round_trip));
        self.shortest = Some(shortest);
        let smoothed = self
            .smoothed
            .map_or(round_trip, |smoothed| (smoothed * 7 + round_trip) / 8);
        self.smoothed = Some(smoothed);
        let target = shortest + shortest / 2 + QUEUEING;
        if round_trip <= target {
            let step = if self.starting { 1.0 } else { 1.0 / self.size };
            self.size = (self.size + step).min(MOST);
        } else {
            let excess = (round_trip - target).as_secs_f64() / round_trip.as_secs_f64();
            self.shrink(now, 1.0 - 0.8 * excess);
        }
    }

    /// A packet was lost.
    pub(crate) fn lost(&mut self, now: Duration) {
        self.shrink(now, LEAST_PART);
    }

    /// Becomes smaller, but only once in a round trip.
    fn shrink(&mut self, now: Duration, part: f64) {
        self.starting = false;
        if now.saturating_sub(self.shrunk) < self.smoothed.unwrap_or_default() {
            return;
        }
        self.shrunk = now;
        self.size = (self.size * part.max(LEAST_PART)).max(1.0);
    }
}
