// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving end of a connection: what has arrived.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// What has arrived over a connection.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// All packets with lower numbers have arrived.
    floor: u64,
    /// Those that have arrived besides.
    above: BTreeSet<u64>,
    /// Bytes that have arrived of messages of which all have to be there before the program is told.
    partial: HashMap<u64, u32>,
    pub(crate) last_used: Duration,
}

impl Receiver {
    /// Whether a packet has arrived before.
    pub(crate) fn has(&self, psn: u64) -> bool {
        psn < self.floor || self.above.contains(&psn)
    }

    /// Takes note of a packet.
    pub(crate) fn add(&mut self, psn: u64) {
        if psn == self.floor {
            self.floor += 1;
            while self.above.remove(&self.floor) {
                self.floor += 1;
            }
        } else {
            self.above.insert(psn);
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
        } else {
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
                prop_assert_eq!(receiver.has(psn), !known.insert(psn));
                if !receiver.has(psn) {
                    receiver.add(psn);
                }
            }
            prop_assert_eq!((receiver.floor, receiver.above.len()), (64, 0));
        }
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
