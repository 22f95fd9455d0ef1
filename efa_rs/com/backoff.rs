// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! When a device that has failed is brought back, and when it is given up.

use kernel::time::{
    Delta,
    Instant,
    Monotonic, //
};

/// How long to wait before each attempt to bring a device back, in milliseconds. After the last one it
/// stays halted until it is reset or bound by hand.
const WAITS_MS: [i64; 5] = [0, 1_000, 2_000, 4_000, 8_000];

/// Attempts before a device is given up.
pub(super) const ATTEMPTS: usize = WAITS_MS.len();

/// A session that fails earlier than this after its start, in milliseconds, counts as a failed attempt. More
/// than it takes to notice that keep-alives have stopped.
const SETTLED_MS: i64 = 20_000;

/// So many sessions in a row may fail as early although the device has done something for a program. Later ones are
/// backed off, and the device is not given up: a program would be able to make it unusable.
const MAX_EARLY_FAILURES: u32 = 16;

/// Attempts to bring a device back.
#[derive(Default)]
pub(super) struct Backoff {
    /// Attempts since the device last worked.
    attempts: usize,
    /// Sessions in a row that have worked, and failed early.
    early_failures: u32,
}

impl Backoff {
    /// Takes the end of a session that began at `since`, and has, or has not, worked for a program.
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

    /// Returns when to try again, or `None` if that is enough.
    pub(super) fn next(&self) -> Option<Instant<Monotonic>> {
        let wait = WAITS_MS.get(self.attempts)?;
        Some(Instant::now() + Delta::from_millis(*wait))
    }

    /// Counts an attempt, and returns how many there were.
    pub(super) fn count_attempt(&mut self) -> usize {
        self.attempts += 1;
        self.attempts
    }

    /// Returns how many attempts there were since the device last worked.
    pub(super) fn attempts(&self) -> usize {
        self.attempts
    }
}
