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

/// Maximum number of connections from one peer's device, which never has more.
const MOST: usize = 64 << 10;

/// Limit on the memory of all receivers for one device of this program, or for all devices of another one, in bytes. It suffices
/// for [`MOST`] connections, and for more than thirty times the packets that a device has in flight, all out of order. Beyond it,
/// packets that arrive out of order are dropped until there is room.
pub(crate) const REMEMBERED: usize = 64 << 20;

const _: () = assert!(MOST * receiver::BYTES + 30 * MAX_IN_FLIGHT * receiver::ENTRY <= REMEMBERED);

/// Time after which the state of an idle connection is dropped, beyond the time for which its sender may retransmit. Without the
/// state, a retransmission is taken for a new packet.
const IDLE: Duration = Duration::from_secs(60);

/// Receiving ends of connections, by peer and number of the connection.
#[derive(Debug, Default)]
pub(crate) struct Receivers(HashMap<PortId, HashMap<u64, Receiver>>);

impl Receivers {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the receiving end of a connection, opened if necessary, unless the peer has too many or `room` is exhausted.
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

    /// Returns the receiving end of a connection, if there is any.
    pub(crate) fn get_mut(&mut self, from: PortId, connection: u64) -> Option<&mut Receiver> {
        self.0.get_mut(&from)?.get_mut(&connection)
    }

    /// Drops the state of a peer that is gone.
    pub(crate) fn forget(&mut self, peer: PortId) {
        self.0.remove(&peer);
    }

    /// Drops connections that are idle for long. `silence` is the time after which senders give up.
    pub(crate) fn sweep(&mut self, now: Duration, silence: Duration) {
        self.0.retain(|_, of_peer| {
            of_peer.retain(|_, receiver| now.saturating_sub(receiver.last_used) <= silence + IDLE);
            of_peer.shrink_to_fit();
            !of_peer.is_empty()
        });
    }
}
