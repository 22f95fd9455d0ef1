// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What experiments send, and what they note of it.

use std::time::Duration;

/// Messages that go from one port of the network to another, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Bytes of each message.
    pub(crate) length: u32,
    /// How many there are.
    pub(crate) messages: u64,
}

/// Bytes of a flow that have arrived, as its sender knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// Since all flows began.
    pub(crate) at: Duration,
    pub(crate) flow: usize,
    pub(crate) bytes: u64,
}

impl Flow {
    /// One message.
    pub(crate) fn once(from: usize, to: usize, length: u32) -> Self {
        Self {
            from,
            to,
            length,
            messages: 1,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.length) * self.messages
    }
}

/// When each flow has all arrived.
pub(crate) fn completion_times(flows: &[Flow], arrived: &[Arrived]) -> Vec<Duration> {
    let mut left: Vec<_> = flows.iter().map(Flow::bytes).collect();
    let mut times = vec![Duration::MAX; flows.len()];
    for Arrived { at, flow, bytes } in arrived {
        left[*flow] -= bytes;
        if left[*flow] == 0 {
            times[*flow] = *at;
        }
    }
    times
}
