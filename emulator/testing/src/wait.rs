// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Waits for conditions, with a timeout. Tests use no other clock.

use std::{
    env,
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

/// Number of attempts without a pause, as most conditions hold after some microseconds.
const SPINS: u32 = 1000;

/// Pause between further attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// Timeout of all waits: `EFA_PATIENCE` seconds, or 60. An operation that takes longer hangs, even on a busy host.
///
/// # Panics
///
/// `EFA_PATIENCE` is not a number.
pub fn patience() -> Duration {
    match env::var("EFA_PATIENCE").as_deref() {
        Err(_) | Ok("") => Duration::from_secs(60),
        Ok(seconds) => Duration::from_secs(seconds.parse().expect("EFA_PATIENCE is in seconds")),
    }
}

/// Repeats an attempt until it succeeds; returns its result.
///
/// # Panics
///
/// It does not succeed within our [patience]. The message has `what`, and the last error.
pub fn wait_for<T, E: Debug>(what: &str, mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let mut attempts = 0;
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(result) => return result,
            Err(error) => assert!(start.elapsed() < patience(), "no {what}: {error:?}"),
        }
        attempts += 1;
        if attempts < SPINS {
            thread::yield_now();
        } else {
            thread::sleep(PAUSE);
        }
    }
}

/// Waits until a condition holds.
///
/// # Panics
///
/// It does not hold within our [patience]. The message has `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()).ok_or("condition is false"));
}
