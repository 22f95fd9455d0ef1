// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving end of a connection: what has arrived.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::PSN_RANGE;
use crate::packet::Verdict;

/// No connection ever has so many packets.
const PSN_END: u64 = 1 << 62;

/// What has arrived over a connection.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// All packets with lower numbers have been concluded.
    floor: u64,
    /// Those that have been concluded besides, and how.
    above: BTreeMap<u64, Verdict>,
    /// Bytes that have arrived of messages of which all have to be there before the program is told.
    partial: HashMap<u64, u32>,
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
    }

    /// Forgets a message that has failed.
    pub(crate) fn forget(&mut self, message: u64) {
        self.partial.remove(&message);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_packet_is_new_once(mut psns in prop::collection::vec(0_u64..64, 0..256)) {
            let mut receiver = Receiver::default();
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
        let mut receiver = Receiver::default();
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
        let mut receiver = Receiver::default();
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
    fn parts_add_up() {
        let mut receiver = Receiver::default();
        receiver.add_part(7, 10, 30);
        receiver.add_part(8, 1, 30);
        assert_eq!(receiver.with(7, 20), 30);
        receiver.add_part(7, 20, 30);
        assert_eq!(receiver.with(7, 1), 1);
        receiver.forget(8);
        assert!(receiver.partial.is_empty());
    }
}
