// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving end of a connection: records of the packets that have arrived.

use std::{collections::BTreeMap, time::Duration};

use super::PSN_RANGE;
use crate::{
    packet::{PortId, Verdict},
    quota::{Permit, Quota},
};

/// Exclusive limit on packet numbers, which no connection ever reaches.
const PSN_END: u64 = 1 << 62;

/// Size in bytes of a tree's node, which has room for 11 entries, including the allocator's overhead.
const NODE: usize = 11 * size_of::<(u64, u32)>() + 32;

/// Size in bytes of a receiver, including [`FREE`] records.
pub(super) const BYTES: usize = {
    const BYTES: usize = 672;
    // A table that has just grown has room for 16 entries per 7 used. The rest is the receiver, and a node of each tree.
    const ENTRY: usize = size_of::<((PortId, u16), Box<Receiver>)>() * 16 / 7;
    assert!(ENTRY + size_of::<Receiver>() + 32 + 2 * NODE <= BYTES);
    BYTES
};

/// Size in bytes of each further record of a receiver. It is the record's part of a tree's node and of the nodes above. Nodes are
/// at least half full.
pub(super) const ENTRY: usize = 40;

/// Records that a receiver may keep beyond its budget, for packets in order. Without them, a sender that has used up the budget
/// would make no progress. One record is for a refused packet, the others for writes in progress.
const FREE: usize = 4;

/// Records of the packets that have arrived over a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// Number of the connection.
    pub(super) connection: u64,
    /// All packets with lower numbers have a verdict, or were given up by the sender.
    floor: u64,
    /// Verdicts of packets with other numbers.
    above: BTreeMap<u64, Verdict>,
    /// Bytes that have arrived of messages that have to be complete before the program is notified.
    partial: BTreeMap<u64, u32>,
    /// Permit for its memory, of the sender's quota.
    room: Permit,
    pub(super) last_used: Duration,
    /// Seconds for which its sender may send a packet again.
    pub(super) silence_s: u16,
}

/// Classification of a packet by a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PsnClass {
    /// The packet has no verdict yet.
    New,
    /// The packet has this verdict, which is sent again.
    Old(Verdict),
    /// The packet violates the protocol.
    Bad,
}

impl Receiver {
    /// Creates the receiver of a connection, if the quota of its sender has enough room.
    pub(super) fn new(connection: u64, room: &Quota) -> Option<Self> {
        Some(Self {
            connection,
            floor: 0,
            above: BTreeMap::new(),
            partial: BTreeMap::new(),
            room: room.take(BYTES)?,
            last_used: Duration::ZERO,
            silence_s: 0,
        })
    }

    /// Returns the size in bytes with `more` further records.
    fn bytes(&self, more: usize) -> usize {
        BYTES + (self.above.len() + self.partial.len() + more) * ENTRY
    }

    /// Reserves room for the records of a packet. Returns whether there is enough. Otherwise the packet must be dropped.
    pub(crate) fn make_room(&mut self, psn: u64, message: u64) -> bool {
        // The verdict of the packet, and the bytes that have arrived of its message.
        let more = 1 + usize::from(!self.partial.contains_key(&message));
        let bytes = self.bytes(more);
        self.room.resize(bytes) || psn == self.floor && bytes - self.room.amount() <= FREE * ENTRY
    }

    /// Adjusts the permit to the current size. The quota may have less: see [`FREE`]. Frees a tree's last node, as a device may
    /// have many idle receivers.
    fn settle(&mut self) {
        if self.above.is_empty() {
            self.above = BTreeMap::new();
        }
        if self.partial.is_empty() {
            self.partial = BTreeMap::new();
        }
        let bytes = self.bytes(0);
        self.room.resize(bytes);
    }

    /// Raises the floor to that of the sender, and classifies a packet.
    pub(crate) fn classify(&mut self, psn: u64, floor: u64) -> PsnClass {
        if floor > psn || psn - floor >= PSN_RANGE || psn >= PSN_END {
            return PsnClass::Bad;
        }
        if floor > self.floor {
            // The sender does not send packets below its floor again, however high this is.
            self.above = self.above.split_off(&floor);
            self.floor = floor;
            self.fill();
            self.settle();
        }
        if psn < self.floor {
            return PsnClass::Old(Verdict::Delivered);
        }
        match self.above.get(&psn) {
            None => PsnClass::New,
            Some(verdict) => PsnClass::Old(*verdict),
        }
    }

    /// Records the verdict of a packet. If the receiver was not ready, the sender sends the packet's part as another packet.
    pub(crate) fn conclude(&mut self, psn: u64, verdict: Verdict) {
        if psn == self.floor && verdict == Verdict::Delivered {
            self.floor += 1;
            self.fill();
        } else if psn >= self.floor {
            self.above.insert(psn, verdict);
        }
        self.settle();
    }

    fn fill(&mut self) {
        // Other verdicts stay for retransmissions, until the sender has received them.
        while self.above.get(&self.floor) == Some(&Verdict::Delivered) {
            self.above.remove(&self.floor);
            self.floor += 1;
        }
    }

    /// Returns the bytes of a message that have arrived, including `length` more.
    pub(crate) fn with(&self, message: u64, length: u32) -> u32 {
        self.partial.get(&message).map_or(length, |before| before.saturating_add(length))
    }

    /// Records the arrival of `length` bytes of a message of `total` bytes.
    pub(crate) fn add_part(&mut self, message: u64, length: u32, total: u32) {
        let arrived = self.with(message, length);
        if arrived >= total {
            self.partial.remove(&message);
        } else if self.partial.len() < PSN_RANGE as usize || self.partial.contains_key(&message) {
            self.partial.insert(message, arrived);
        }
        self.settle();
    }

    /// Drops the record of a failed message.
    pub(crate) fn forget(&mut self, message: u64) {
        self.partial.remove(&message);
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn receiver() -> Receiver {
        Receiver::new(0, &Quota::new(1 << 20)).unwrap()
    }

    proptest! {
        #[test]
        fn each_packet_is_new_once(mut psns in prop::collection::vec(0_u64..64, 0..256)) {
            let mut receiver = receiver();
            let mut known = BTreeSet::new();
            // These packets at the end fill all gaps.
            psns.extend(0..64);
            for psn in psns {
                let class = receiver.classify(psn, 0);
                prop_assert_eq!(class == PsnClass::New, known.insert(psn));
                receiver.conclude(psn, Verdict::Delivered);
            }
            prop_assert_eq!((receiver.floor, receiver.above.len()), (64, 0));
        }
    }

    #[test]
    fn not_ready_verdict_is_kept() {
        let mut receiver = receiver();
        assert_eq!(receiver.classify(0, 0), PsnClass::New);
        receiver.conclude(0, Verdict::NotReady);
        receiver.conclude(1, Verdict::Delivered);
        assert_eq!(receiver.classify(0, 0), PsnClass::Old(Verdict::NotReady));
        // The sender has sent the part again under another number.
        assert_eq!(receiver.classify(2, 1), PsnClass::New);
        assert_eq!((receiver.floor, receiver.above.len()), (2, 0));
        assert_eq!(receiver.classify(0, 0), PsnClass::Old(Verdict::Delivered));
    }

    #[test]
    fn receiver_state_is_bounded() {
        let mut receiver = receiver();
        for psn in 0..4 * PSN_RANGE {
            if receiver.classify(psn, 0) == PsnClass::New {
                receiver.conclude(psn, Verdict::NotReady);
            }
        }
        assert!(receiver.above.len() <= PSN_RANGE as usize);
        assert_eq!(receiver.classify(u64::MAX, 0), PsnClass::Bad);
        assert_eq!(receiver.classify(0, 1), PsnClass::Bad);
        // A number may be far ahead, as the receiver may have dropped its records of the connection.
        assert_eq!(receiver.classify(PSN_END - 1, PSN_END - 2), PsnClass::New);
        assert!(receiver.above.is_empty());
        receiver.conclude(PSN_END - 1, Verdict::Delivered);
        assert_eq!(receiver.classify(PSN_END, PSN_END), PsnClass::Bad);
    }

    #[test]
    fn without_room_only_packets_in_order_are_accepted() {
        // Room for three records.
        let quota = Quota::new(BYTES + 3 * ENTRY);
        let mut receiver = Receiver::new(0, &quota).unwrap();
        assert!(Receiver::new(0, &quota).is_none());
        let mut arrives = |psn, floor, message, length| {
            assert_eq!(receiver.classify(psn, floor), PsnClass::New);
            let taken = receiver.make_room(psn, message);
            if taken {
                receiver.add_part(message, length, 30);
                receiver.conclude(psn, Verdict::Delivered);
            }
            let bytes = receiver.bytes(0);
            assert!(bytes <= receiver.room.amount() + FREE * ENTRY);
            (taken, receiver.above.len(), receiver.partial.len())
        };
        assert_eq!(arrives(2, 0, 0, 10), (true, 1, 1));
        // This packet needs two more records.
        assert_eq!(arrives(4, 0, 1, 10), (false, 1, 1));
        assert_eq!(arrives(3, 0, 0, 10), (true, 2, 1));
        assert_eq!(arrives(5, 0, 0, 10), (false, 2, 1));
        // Packets in order are accepted, and make room.
        assert_eq!(arrives(0, 0, 2, 10), (true, 2, 2));
        assert_eq!(arrives(1, 0, 2, 20), (true, 0, 1));
        assert_eq!(arrives(4, 4, 0, 10), (true, 0, 0));
        // The number of extra records is limited, too.
        let mut begun = 0;
        while arrives(5 + begun, 0, 5 + begun, 10).0 {
            begun += 1;
        }
        assert_eq!(begun, 3 + FREE as u64 - 1);
        for message in 5..5 + begun {
            receiver.forget(message);
        }
        assert_eq!((receiver.partial.len(), receiver.room.amount()), (0, receiver.bytes(0)));
        // The receiver's drop returns its room to the quota.
        drop(receiver);
        assert!(quota.take(BYTES + 3 * ENTRY).is_some());
    }
}
