// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flows of the experiments, and the arrivals that are recorded.

use std::time::Duration;

/// Messages from one port of the network to another, in sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Bytes of each message.
    pub(crate) length: u32,
    /// Number of messages.
    pub(crate) messages: u64,
}

/// Bytes of a flow that have arrived, as known to the sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// Time since the start of all flows.
    pub(crate) at: Duration,
    pub(crate) flow: usize,
    pub(crate) bytes: u64,
}

impl Flow {
    /// Returns a flow of one message.
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

/// Returns the time at which each flow has arrived completely.
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
