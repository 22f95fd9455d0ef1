// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving end of a connection: what has arrived.

use std::{collections::BTreeMap, time::Duration};

use super::PSN_RANGE;
use crate::{
    packet::Verdict,
    quota::{Permit, Quota},
};

/// No connection ever has so many packets.
const PSN_END: u64 = 1 << 62;

/// Bytes of a node of a tree, which has room for 11 entries, with those of the allocator.
const NODE: usize = 11 * size_of::<(u64, u32)>() + 32;

/// Bytes that a receiver takes, with [`FREE`] things that it remembers.
pub(super) const BYTES: usize = {
    const BYTES: usize = 640;
    // A table that was too small has room for 16 where there are 7, and each tree keeps its first node.
    assert!(size_of::<(u64, Receiver)>() * 16 / 7 + 2 * NODE <= BYTES);
    BYTES
};

/// Bytes that each thing takes besides that a receiver remembers: a part of a node of a tree, which is half full at least, and of
/// those above it.
pub(super) const ENTRY: usize = 40;

/// Records that a receiver may keep beyond its budget, for packets in their order. Without any, a sender that has used up the budget
/// would make no progress. One record is how a packet was refused, the others are writes that have begun.
const FREE: usize = 4;

/// What has arrived over a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// All packets with lower numbers have been concluded.
    floor: u64,
    /// Those that have been concluded besides, and how.
    above: BTreeMap<u64, Verdict>,
    /// Bytes that have arrived of messages of which all have to be there before the program is told.
    partial: BTreeMap<u64, u32>,
    /// What all of it takes of what is remembered of its sender.
    room: Permit,
    pub(super) last_used: Duration,
}

/// What a packet is to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It has not been concluded.
    New,
    /// It was, and the sender is told again.
    Old(Verdict),
    /// It can't be of a sender that keeps to the rules.
    Bad,
}

impl Receiver {
    /// One of a sender of whom so much more may be remembered, if it is enough.
    pub(super) fn new(room: &Quota) -> Option<Self> {
        Some(Self {
            floor: 0,
            above: BTreeMap::new(),
            partial: BTreeMap::new(),
            room: room.take(BYTES)?,
            last_used: Duration::ZERO,
        })
    }

    /// Bytes that it takes with so many more things to remember.
    fn bytes(&self, more: usize) -> usize {
        BYTES + (self.above.len() + self.partial.len() + more) * ENTRY
    }

    /// Sees to it that there is room for what a packet may give to remember. Without that, it must not be taken.
    pub(crate) fn make_room(&mut self, psn: u64, message: u64) -> bool {
        // How it was concluded, and what has arrived of its message.
        let more = 1 + usize::from(!self.partial.contains_key(&message));
        let bytes = self.bytes(more);
        self.room.resize(bytes) || psn == self.floor && bytes - self.room.amount() <= FREE * ENTRY
    }

    /// Takes as much room as it needs. There may be less: see [`FREE`].
    fn settle(&mut self) {
        let bytes = self.bytes(0);
        self.room.resize(bytes);
    }

    /// Takes note of what a sender knows to be concluded, and finds out whether a packet is new.
    pub(crate) fn look(&mut self, psn: u64, floor: u64) -> News {
        if floor > psn || psn - floor >= PSN_RANGE || psn >= PSN_END {
            return News::Bad;
        }
        if floor > self.floor {
            // Those that are gone will not come again, however far this is.
            self.above = self.above.split_off(&floor);
            self.floor = floor;
            self.fill();
            self.settle();
        }
        if psn < self.floor {
            return News::Old(Verdict::Delivered);
        }
        match self.above.get(&psn) {
            None => News::New,
            Some(verdict) => News::Old(*verdict),
        }
    }

    /// A packet is concluded. If the receiver was not ready for it, what is in it will come as another packet.
    pub(crate) fn conclude(&mut self, psn: u64, verdict: Verdict) {
        if psn >= self.floor {
            self.above.insert(psn, verdict);
            self.fill();
        }
        self.settle();
    }

    fn fill(&mut self) {
        // The others stay, for a sender that asks again, until it knows.
        while self.above.get(&self.floor) == Some(&Verdict::Delivered) {
            self.above.remove(&self.floor);
            self.floor += 1;
        }
    }

    /// How many bytes of a message will have arrived with `length` more.
    pub(crate) fn with(&self, message: u64, length: u32) -> u32 {
        self.partial
            .get(&message)
            .map_or(length, |before| before.saturating_add(length))
    }

    /// Takes note of bytes of a message that has `total`.
    pub(crate) fn add_part(&mut self, message: u64, length: u32, total: u32) {
        let arrived = self.with(message, length);
        if arrived >= total {
            self.partial.remove(&message);
        } else if self.partial.len() < PSN_RANGE as usize || self.partial.contains_key(&message) {
            self.partial.insert(message, arrived);
        }
        self.settle();
    }

    /// Forgets a message that has failed.
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
        Receiver::new(&Quota::new(1 << 20)).unwrap()
    }

    proptest! {
        #[test]
        fn each_packet_is_new_once(mut psns in prop::collection::vec(0_u64..64, 0..256)) {
            let mut receiver = receiver();
            let mut known = BTreeSet::new();
            // Those at the end fill all holes.
            psns.extend(0..64);
            for psn in psns {
                let news = receiver.look(psn, 0);
                prop_assert_eq!(news == News::New, known.insert(psn));
                receiver.conclude(psn, Verdict::Delivered);
            }
            prop_assert_eq!((receiver.floor, receiver.above.len()), (64, 0));
        }
    }

    #[test]
    fn what_nobody_was_ready_for_stays_refused() {
        let mut receiver = receiver();
        assert_eq!(receiver.look(0, 0), News::New);
        receiver.conclude(0, Verdict::NotReady);
        receiver.conclude(1, Verdict::Delivered);
        assert_eq!(receiver.look(0, 0), News::Old(Verdict::NotReady));
        // The sender has sent it again under another number.
        assert_eq!(receiver.look(2, 1), News::New);
        assert_eq!((receiver.floor, receiver.above.len()), (2, 0));
        assert_eq!(receiver.look(0, 0), News::Old(Verdict::Delivered));
    }

    #[test]
    fn no_sender_makes_it_remember_without_end() {
        let mut receiver = receiver();
        for psn in 0..4 * PSN_RANGE {
            if receiver.look(psn, 0) == News::New {
                receiver.conclude(psn, Verdict::NotReady);
            }
        }
        assert!(receiver.above.len() <= PSN_RANGE as usize);
        assert_eq!(receiver.look(u64::MAX, 0), News::Bad);
        assert_eq!(receiver.look(0, 1), News::Bad);
        // It may be far ahead, as it may have sent to a receiver that has forgotten.
        assert_eq!(receiver.look(PSN_END - 1, PSN_END - 2), News::New);
        assert!(receiver.above.is_empty());
        receiver.conclude(PSN_END - 1, Verdict::Delivered);
        assert_eq!(receiver.look(PSN_END, PSN_END), News::Bad);
    }

    #[test]
    fn without_room_only_what_is_in_its_order_is_taken() {
        // For three things.
        let quota = Quota::new(BYTES + 3 * ENTRY);
        let mut receiver = Receiver::new(&quota).unwrap();
        assert!(Receiver::new(&quota).is_none());
        let mut arrives = |psn, floor, message, length| {
            assert_eq!(receiver.look(psn, floor), News::New);
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
        // It would be two more things.
        assert_eq!(arrives(4, 0, 1, 10), (false, 1, 1));
        assert_eq!(arrives(3, 0, 0, 10), (true, 2, 1));
        assert_eq!(arrives(5, 0, 0, 10), (false, 2, 1));
        // Those in their order are, and make room.
        assert_eq!(arrives(0, 0, 2, 10), (true, 2, 2));
        assert_eq!(arrives(1, 0, 2, 20), (true, 0, 1));
        assert_eq!(arrives(4, 4, 0, 10), (true, 0, 0));
        // But no more than so many.
        let mut begun = 0;
        while arrives(5 + begun, 0, 5 + begun, 10).0 {
            begun += 1;
        }
        assert_eq!(begun, 3 + FREE as u64 - 1);
        // The room is free again with it.
        drop(receiver);
        assert!(quota.take(BYTES + 3 * ENTRY).is_some());
    }

    #[test]
    fn parts_add_up() {
        let mut receiver = receiver();
        receiver.add_part(7, 10, 30);
        receiver.add_part(8, 1, 30);
        assert_eq!(receiver.with(7, 20), 30);
        receiver.add_part(7, 20, 30);
        assert_eq!(receiver.with(7, 1), 1);
        receiver.forget(8);
        assert!(receiver.partial.is_empty());
    }
}
