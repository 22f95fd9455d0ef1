// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Waiting until something is so. A test has no other clock than this.

use std::{
    env,
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

/// Attempts that follow each other at once: most conditions hold after some microseconds.
const SPINS: u32 = 1000;

/// How long to wait between the others.
const PAUSE: Duration = Duration::from_millis(1);

/// How long anything may take: `EFA_PATIENCE` seconds, or 60. What takes longer has hung, however busy the host is.
///
/// # Panics
///
/// `EFA_PATIENCE` is no number.
pub fn patience() -> Duration {
    match env::var("EFA_PATIENCE").as_deref() {
        Err(_) | Ok("") => Duration::from_secs(60),
        Ok(seconds) => Duration::from_secs(seconds.parse().expect("EFA_PATIENCE is in seconds")),
    }
}

/// Attempts something until it succeeds, and returns what it does then.
///
/// # Panics
///
/// It does not succeed within our [patience]. The message has `what` there should be, and the last error.
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

/// Waits until something is so.
///
/// # Panics
///
/// It is not so within our [patience]. The message has `what` there should be.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()).ok_or("it is not so"));
}
