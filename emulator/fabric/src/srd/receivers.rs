// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving ends of the connections of peers to a device.

use std::{collections::HashMap, time::Duration};

use super::receiver::Receiver;
use crate::packet::PortId;

/// Most connections of one peer's device, which has no more.
const MOST: usize = 64 << 10;

/// How long it is remembered what has arrived over a connection; much longer than anything is retransmitted.
const IDLE: Duration = Duration::from_secs(60);

/// What has arrived from each peer, by the number of the connection.
#[derive(Debug, Default)]
pub(crate) struct Receivers(HashMap<PortId, HashMap<u64, Receiver>>);

impl Receivers {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The receiving end of a connection, unless a peer has too many.
    pub(crate) fn open(
        &mut self,
        now: Duration,
        from: PortId,
        connection: u64,
    ) -> Option<&mut Receiver> {
        let of_peer = self.0.entry(from).or_default();
        if of_peer.len() == MOST && !of_peer.contains_key(&connection) {
            return None;
        }
        let receiver = of_peer.entry(connection).or_default();
        receiver.last_used = now;
        Some(receiver)
    }

    /// The receiving end of a connection, if anything has arrived over it.
    pub(crate) fn get_mut(&mut self, from: PortId, connection: u64) -> Option<&mut Receiver> {
        self.0.get_mut(&from)?.get_mut(&connection)
    }

    /// Forgets a peer that is not there any more.
    pub(crate) fn forget(&mut self, peer: PortId) {
        self.0.remove(&peer);
    }

    /// Forgets connections over which nothing has come for long.
    pub(crate) fn sweep(&mut self, now: Duration) {
        self.0.retain(|_, of_peer| {
            of_peer.retain(|_, receiver| now.saturating_sub(receiver.last_used) <= IDLE);
            !of_peer.is_empty()
        });
    }
}
