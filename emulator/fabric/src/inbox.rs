// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that have arrived at a port and wait to be processed.

use std::collections::{BTreeMap, VecDeque};

use crate::packet::{MAX_IN_TRANSIT, Packet, PortId};

/// Limit on the queued packets of one sender, including acknowledgements. Excess packets are lost.
const MOST: usize = MAX_IN_TRANSIT;

/// Queued packets by sender. Senders take turns.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    by_sender: BTreeMap<PortId, Waiting>,
    turns: VecDeque<PortId>,
    /// Senders without a turn until [`Inbox::resume`]: a packet of theirs could not be processed yet.
    resting: Vec<PortId>,
}

/// Queued packets of a sender.
#[derive(Debug, Default)]
struct Waiting {
    /// The packet that was put back. It is the next one of this sender.
    again: Option<Packet>,
    packets: VecDeque<Packet>,
}

/// The next packet to process.
#[derive(Debug)]
pub(crate) struct Popped {
    pub(crate) packet: Packet,
    /// Whether it was put back before.
    pub(crate) again: bool,
}

impl Inbox {
    /// Queues a packet, unless its sender has too many; returns whether it was queued.
    pub(crate) fn push(&mut self, packet: Packet) -> bool {
        let sender = packet.from;
        let waiting = self.by_sender.entry(sender).or_default();
        if waiting.packets.len() == MOST {
            return false;
        }
        if waiting.packets.is_empty() && waiting.again.is_none() {
            self.turns.push_back(sender);
        }
        waiting.packets.push_back(packet);
        true
    }

    /// Takes the next packet of the sender whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<Popped> {
        let sender = self.turns.pop_front()?;
        let waiting = self.by_sender.get_mut(&sender)?;
        let popped = match waiting.again.take() {
            Some(packet) => Some(Popped { packet, again: true }),
            None => waiting.packets.pop_front().map(|packet| Popped { packet, again: false }),
        };
        if waiting.packets.is_empty() {
            self.by_sender.remove(&sender);
        } else {
            self.turns.push_back(sender);
        }
        popped
    }

    /// Puts back the packet of a sender that was taken last. The sender has no turn until [`Self::resume`].
    pub(crate) fn put_back(&mut self, packet: Packet) {
        let sender = packet.from;
        self.turns.retain(|other| *other != sender);
        self.by_sender.entry(sender).or_default().again = Some(packet);
        self.resting.push(sender);
    }

    /// Gives turns to the senders with packets that were put back.
    pub(crate) fn resume(&mut self) {
        self.turns.extend(self.resting.drain(..));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Ack, Body, Verdict};

    fn packet(from: usize, psn: u64) -> Packet {
        let (connection, verdict) = (0, Verdict::Delivered);
        let ack = Ack { connection, psn, verdict };
        Packet { from: PortId(from), to: PortId(0), path: 0, body: Body::Ack(ack, None) }
    }

    /// The next packet: its sender, its number, and whether it was put back.
    fn next(inbox: &mut Inbox) -> Option<(usize, u64, bool)> {
        let Popped { packet, again } = inbox.pop()?;
        let Body::Ack(ack, _) = packet.body else {
            panic!("{packet:?}");
        };
        Some((packet.from.0, ack.psn, again))
    }

    #[test]
    fn a_packet_that_was_put_back_is_the_next_of_its_sender() {
        let mut inbox = Inbox::default();
        for psn in 0..3 {
            assert!(inbox.push(packet(1, psn)));
        }
        assert!(inbox.push(packet(2, 0)));
        assert_eq!(next(&mut inbox), Some((1, 0, false)));
        // Another packet of the sender arrives in between, like those of any sender.
        assert!(inbox.push(packet(1, 3)));
        inbox.put_back(packet(1, 0));
        assert!(inbox.push(packet(1, 4)));
        assert_eq!(next(&mut inbox), Some((2, 0, false)));
        assert_eq!((next(&mut inbox), inbox.is_empty()), (None, true));
        inbox.resume();
        assert_eq!(next(&mut inbox), Some((1, 0, true)));
        // The last packet may be put back after another one has arrived.
        while let Some((_, psn, _)) = next(&mut inbox) {
            if psn == 4 {
                assert!(inbox.by_sender.is_empty());
                assert!(inbox.push(packet(1, 5)));
                inbox.put_back(packet(1, 4));
                break;
            }
        }
        assert!(inbox.is_empty());
        inbox.resume();
        assert_eq!(next(&mut inbox), Some((1, 4, true)));
        assert_eq!(next(&mut inbox), Some((1, 5, false)));
        assert!(inbox.is_empty() && inbox.by_sender.is_empty());
    }

    #[test]
    fn one_sender_can_fill_only_its_own_part_and_takes_turns_with_others() {
        let mut inbox = Inbox::default();
        while inbox.push(packet(7, 0)) {}
        assert_eq!(inbox.by_sender[&PortId(7)].packets.len(), MOST);
        assert!(inbox.push(packet(2, 0)));
        let senders = [(); 4].map(|()| next(&mut inbox).unwrap().0);
        assert_eq!(senders, [7, 2, 7, 7]);
    }
}
