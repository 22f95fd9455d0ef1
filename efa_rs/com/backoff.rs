// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The schedule of attempts to restart a failed device, and when it is given up.

use kernel::time::{
    Delta,
    Instant,
    Monotonic, //
};

/// Delays before the attempts to restart a device, in milliseconds. After the last attempt it stays
/// halted until an operator resets or rebinds it.
const WAITS_MS: [i64; 5] = [0, 1_000, 2_000, 4_000, 8_000];

/// Number of attempts before a device is given up.
pub(super) const ATTEMPTS: usize = WAITS_MS.len();

/// Minimum age in milliseconds of a session whose failure does not count as a failed attempt. It
/// exceeds the time to detect missing keep-alive events.
const SETTLED_MS: i64 = 20_000;

/// Limit on successive sessions that fail early after work for a program, and are restarted at
/// once. Later restarts are delayed, but not given up, so that programs can't disable the device.
const MAX_EARLY_FAILURES: u32 = 16;

#[derive(Default)]
pub(super) struct Backoff {
    /// Number of attempts since the device last worked.
    pub(super) attempts: usize,
    /// Number of successive sessions that worked, but failed early.
    early_failures: u32,
}

impl Backoff {
    /// Records the failure of a session that began at `since`, and whether it had worked.
    pub(super) fn session_failed(&mut self, since: Instant<Monotonic>, has_worked: bool) {
        if since.elapsed() >= Delta::from_millis(SETTLED_MS) {
            *self = Self::default();
        } else if has_worked {
            self.early_failures = self.early_failures.saturating_add(1);
            let most = if self.early_failures <= MAX_EARLY_FAILURES {
                0
            } else {
                ATTEMPTS - 1
            };
            self.attempts = self.attempts.min(most);
        }
    }

    /// Returns the time of the next attempt, or `None` if the device is given up.
    pub(super) fn next(&self) -> Option<Instant<Monotonic>> {
        let wait = WAITS_MS.get(self.attempts)?;
        Some(Instant::now() + Delta::from_millis(*wait))
    }
}
