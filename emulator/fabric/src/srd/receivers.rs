// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving ends of the connections of peers to a device.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use super::receiver::{self, Receiver};
use crate::{
    packet::{MAX_IN_FLIGHT, PortId},
    quota::Quota,
};

/// Most connections of one peer's device, which has no more.
const MOST: usize = 64 << 10;

/// Bytes of what all receivers together remember of a device of this program, or of all devices of another one. It is enough for
/// [`MOST`] connections, and for more than thirty times as many packets out of their order as a device has in flight. Where it is
/// not, these are as good as lost until there is room.
pub(crate) const REMEMBERED: usize = 64 << 20;

const _: () = assert!(MOST * receiver::BYTES + 30 * MAX_IN_FLIGHT * receiver::ENTRY <= REMEMBERED);

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

    /// The receiving end of a connection, unless a peer has too many, or `room` has none for one more.
    pub(crate) fn open(
        &mut self,
        now: Duration,
        from: PortId,
        connection: u64,
        room: &Quota,
    ) -> Option<&mut Receiver> {
        let of_peer = self.0.entry(from).or_default();
        let is_full = of_peer.len() == MOST;
        let receiver = match of_peer.entry(connection) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(entry) => entry.insert(Receiver::new(room)?),
        };
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
            of_peer.shrink_to_fit();
            !of_peer.is_empty()
        });
    }
}
