// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that have arrived at a port and wait for somebody to work on them.

use std::collections::{BTreeMap, VecDeque};

use crate::packet::{MAX_IN_FLIGHT, Packet, PortId};

/// Most packets of one sender that wait. Devices of this program never have so many in flight to one other
/// ([`MAX_IN_FLIGHT`], and as many acknowledgements); what another program sends besides is lost.
const MOST: usize = 2 * MAX_IN_FLIGHT;

/// Packets that wait, by sender, each of whom gets its turn.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    by_sender: BTreeMap<PortId, VecDeque<Packet>>,
    turns: VecDeque<PortId>,
}

impl Inbox {
    /// Adds a packet, unless there are too many of its sender; returns whether it was added.
    pub(crate) fn push(&mut self, packet: Packet) -> bool {
        let sender = packet.from;
        let waiting = self.by_sender.entry(sender).or_default();
        if waiting.len() == MOST {
            return false;
        }
        if waiting.is_empty() {
            self.turns.push_back(sender);
        }
        waiting.push_back(packet);
        true
    }

    /// Takes the next packet of the sender whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<Packet> {
        let sender = self.turns.pop_front()?;
        let waiting = self.by_sender.get_mut(&sender)?;
        let packet = waiting.pop_front();
        if waiting.is_empty() {
            self.by_sender.remove(&sender);
        } else {
            self.turns.push_back(sender);
        }
        packet
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
        Packet {
            from: PortId(from),
            to: PortId(0),
            path: 0,
            body: Body::Ack(
                Ack {
                    connection: 0,
                    psn,
                    verdict: Verdict::Delivered,
                },
                None,
            ),
        }
    }

    #[test]
    fn senders_take_turns() {
        let mut inbox = Inbox::default();
        for psn in 0..3 {
            assert!(inbox.push(packet(7, psn)));
        }
        assert!(inbox.push(packet(2, 0)));
        let order: Vec<_> =
            std::iter::from_fn(|| inbox.pop().map(|packet| packet.from.0)).collect();
        assert_eq!(order, [7, 2, 7, 7]);
        assert!(inbox.is_empty() && inbox.by_sender.is_empty());
    }

    #[test]
    fn one_sender_can_fill_only_its_own_part() {
        let mut inbox = Inbox::default();
        while inbox.push(packet(1, 0)) {}
        assert_eq!(inbox.by_sender[&PortId(1)].len(), MOST);
        assert!(inbox.push(packet(2, 0)));
    }
}
