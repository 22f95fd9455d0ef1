// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The number of packets that arrive at devices.

use std::sync::atomic::{AtomicUsize, Ordering};

use efa_fabric::{PortId, Record, Tap};

/// Counts packets that arrive at devices.
#[derive(Debug, Default)]
pub struct Arrivals(AtomicUsize);

impl Arrivals {
    /// Returns the number of packets since the last call.
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Tap for Arrivals {
    fn snap(&self) -> u32 {
        0
    }

    fn show(&self, _: PortId, has_left: bool, _: Record) {
        self.0.fetch_add(usize::from(!has_left), Ordering::Relaxed);
    }
}
