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

/// Limit on the memory of all receivers for one device of this program, or for all devices of another one, in bytes. It suffices
/// for a connection of each queue pair of a peer's device. Then more than thirty times the packets that a device has in flight
/// may be out of order. Beyond it, packets that arrive out of order are dropped until there is room.
pub(crate) const REMEMBERED: usize = 64 << 20;

const _: () = {
    let connections = (1 << 16) * receiver::BYTES;
    assert!(connections + 30 * MAX_IN_FLIGHT * receiver::ENTRY <= REMEMBERED);
};

/// Time after which the state of an idle connection is dropped, beyond the time for which its sender may retransmit. Without the
/// state, a retransmission is taken for a new packet. The sender's time is that of its program, when it sent a packet last.
const IDLE: Duration = Duration::from_secs(60);

/// Receiving ends of connections, by peer and the number of its queue pair.
///
/// A queue pair has one connection to this device. Numbers of connections increase, so a higher one replaces an earlier one that
/// the peer has closed. The number of queue pairs bounds the records, however often a peer opens connections.
#[derive(Debug, Default)]
pub(crate) struct Receivers(HashMap<(PortId, u16), Box<Receiver>>);

impl Receivers {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the receiving end of a connection of a peer's queue pair, opened if necessary. Its sender may retransmit for
    /// `silence_s` seconds. Fails if the queue pair has a later connection, or `room` is exhausted.
    pub(crate) fn open(
        &mut self,
        now: Duration,
        from: PortId,
        (qp, connection): (u16, u64),
        silence_s: u16,
        room: &Quota,
    ) -> Option<&mut Receiver> {
        let known = self.0.get(&(from, qp)).map(|receiver| receiver.connection);
        if known.is_some_and(|known| known > connection) {
            return None;
        }
        if known.is_some_and(|known| known < connection) {
            self.0.remove(&(from, qp));
        }
        let receiver = match self.0.entry((from, qp)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Box::new(Receiver::new(connection, room)?)),
        };
        receiver.last_used = now;
        receiver.silence_s = receiver.silence_s.max(silence_s);
        Some(receiver)
    }

    /// Returns the receiving end of a connection, if there is any.
    pub(crate) fn get_mut(&mut self, from: PortId, (qp, connection): (u16, u64)) -> Option<&mut Receiver> {
        let receiver = self.0.get_mut(&(from, qp))?;
        (receiver.connection == connection).then_some(receiver)
    }

    /// Drops the state of a peer that is gone.
    pub(crate) fn forget(&mut self, peer: PortId) {
        self.0.retain(|(from, _), _| *from != peer);
    }

    /// Drops connections that are idle for long. `silence` is the time after which senders of this program give up now.
    pub(crate) fn sweep(&mut self, now: Duration, silence: Duration) {
        self.0.retain(|_, receiver| {
            let silence = silence.max(Duration::from_secs(receiver.silence_s.into()));
            now.saturating_sub(receiver.last_used) <= silence + IDLE
        });
        if self.0.capacity() > 4 * self.0.len() {
            self.0.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{packet::Verdict, srd::PsnClass};

    #[test]
    fn a_new_connection_replaces_the_earlier_one_of_its_queue_pair() {
        let (mut receivers, now) = (Receivers::default(), Duration::from_secs(1));
        let room = Quota::new(receiver::BYTES + receiver::ENTRY);
        let mut receive = |connection| {
            let receiver = receivers.open(now, PortId(2), (5, connection), 2, &room)?;
            let class = receiver.classify(0, 0);
            receiver.conclude(0, Verdict::Delivered);
            Some(class)
        };
        for connection in [3, 4, 9] {
            assert_eq!(receive(connection), Some(PsnClass::New));
            let old = PsnClass::Old(Verdict::Delivered);
            assert_eq!(receive(connection), Some(old));
            // A late packet of a closed connection is not taken for a new one.
            assert_eq!(receive(connection - 1), None);
        }
        assert!(receivers.get_mut(PortId(2), (5, 4)).is_none());
        assert!(receivers.get_mut(PortId(2), (5, 9)).is_some());
    }
}
