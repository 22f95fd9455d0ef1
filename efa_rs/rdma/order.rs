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
        Acquire,
        Atomic,
        Relaxed,
        Release, //
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
/// The first shared word is taken by the device whose turn to be registered it is.
pub(super) struct Place {
    index: usize,
    has_turn: bool,
}

impl Place {
    /// Makes the place of a device that was never registered.
    pub(super) fn new() -> Self {
        Self {
            index: NONE,
            has_turn: false,
        }
    }

    /// Waits until no device is expected back before this one, and none is being registered, for at
    /// most [`PATIENCE`]. Takes the place of the lowest number, and the turn until
    /// [`Self::end_turn`]. Returns whether it is the previous place.
    pub(super) fn take(&mut self) -> bool {
        let [turn, places @ ..] = shared_words();
        let before = || places.get(..self.index).into_iter().flatten();
        let is_turn = || {
            let is_left = before().any(|state| state.load(Relaxed) == LEFT);
            Ok(!is_left && turn.cmpxchg(FREE, TAKEN, Acquire).is_ok())
        };
        self.has_turn = read_poll_timeout(is_turn, |turn| *turn, POLL_INTERVAL, PATIENCE).is_ok();
        if !self.has_turn {
            before().for_each(expect_no_longer);
        }
        let take = |state: &Atomic<u32>| state.xchg(TAKEN, Relaxed) != TAKEN;
        let place = places.iter().position(take).unwrap_or(NONE);
        let previous = replace(&mut self.index, place);
        previous == place || previous == NONE
    }

    /// Ends the turn of a device that was registered.
    pub(super) fn end_turn(&mut self) {
        let [turn, ..] = shared_words();
        if replace(&mut self.has_turn, false) {
            turn.store(FREE, Release);
        }
    }

    /// Leaves the place, as the device is being unregistered.
    pub(super) fn leave(&self) {
        let [_, places @ ..] = shared_words();
        if let Some(state) = places.get(self.index) {
            state.store(LEFT, Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let [_, places @ ..] = shared_words();
        let own = places.get(self.index);
        own.into_iter().for_each(expect_no_longer);
    }
}

/// Frees a place that was left. It may have been taken by another device.
fn expect_no_longer(state: &Atomic<u32>) {
    let _ = state.cmpxchg(LEFT, FREE, Relaxed);
}
