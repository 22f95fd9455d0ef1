// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The order in which devices are registered again.
//!
//! `ib_uverbs` gives a device file the lowest free number when its device is registered, and frees
//! the number when it is unregistered. Containers keep the number. So devices that return from a
//! reset at the same time are registered in the order of their last numbers.

use core::mem::replace;

use kernel::{
    io::poll::read_poll_timeout,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta, //
};

use crate::sys::atomic::shared_words;

/// The place of a device that has none, as it was never registered, or is one of too many.
const NONE: usize = usize::MAX;

/// Limit on the wait of a device for those before it. A reset and a restart take less.
const PATIENCE: Delta = Delta::from_millis(5_000);

/// Interval at which the places before a device are looked at.
const POLL_INTERVAL: Delta = Delta::from_millis(5);

/// No device has the place.
const FREE: u32 = 0;
/// A registered device has the place.
const TAKEN: u32 = 1;
/// The device that had the place is expected back.
const LEFT: u32 = 2;

/// The place of a device in the order of numbers: the index of a shared word with the place's state.
pub(super) struct Place(usize);

impl Place {
    /// Makes the place of a device that was never registered.
    pub(super) fn new() -> Self {
        Self(NONE)
    }

    /// Waits until no device is expected back before this one, for at most [`PATIENCE`], and takes
    /// the place of the lowest number. Returns whether it is the previous one.
    pub(super) fn take(&mut self) -> bool {
        let words = shared_words();
        let before = || words.get(..self.0).into_iter().flatten();
        let is_left = || Ok(before().any(|state| state.load(Relaxed) == LEFT));
        if read_poll_timeout(is_left, |is_left| !is_left, POLL_INTERVAL, PATIENCE).is_err() {
            before().for_each(expect_no_longer);
        }
        let take = |state: &Atomic<u32>| state.xchg(TAKEN, Relaxed) != TAKEN;
        let place = words.iter().position(take).unwrap_or(NONE);
        let previous = replace(&mut self.0, place);
        previous == place || previous == NONE
    }

    /// Leaves the place, as the device is being unregistered.
    pub(super) fn leave(&self) {
        if let Some(state) = shared_words().get(self.0) {
            state.store(LEFT, Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let words = shared_words();
        words.get(self.0).into_iter().for_each(expect_no_longer);
    }
}

/// Frees a place that was left. It may have been taken by another device.
fn expect_no_longer(state: &Atomic<u32>) {
    let _ = state.cmpxchg(LEFT, FREE, Relaxed);
}
