// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The packets of a connection that are not acknowledged, and their timers.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    iter,
    time::Duration,
};

use super::parked::Part;

/// Maximum time between two transmissions of a packet.
pub(super) const MAX_TIMEOUT: Duration = Duration::from_millis(100);

/// A packet that is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) part: Part,
    pub(super) path: u16,
    /// Time of its first transmission.
    pub(super) begun: Duration,
    /// Time of its last transmission.
    pub(super) sent: Duration,
    /// Time of its retransmission, or `None` once it is queued for that.
    due: Option<Duration>,
    /// Number of its transmissions that were not acknowledged in time.
    pub(super) retries: u32,
}

impl Packet {
    /// Returns its round trip, if it is answered now. After a retransmission, it is unknown which transmission was answered.
    pub(super) fn round_trip(&self, now: Duration) -> Option<Duration> {
        (self.retries == 0).then(|| now.saturating_sub(self.sent))
    }

    /// Returns `time`, doubled for each retransmission up to a limit.
    fn backed_off(&self, time: Duration) -> Duration {
        time * 2_u32.pow(self.retries.min(6))
    }
}

/// The packets of a connection that are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    packets: BTreeMap<u64, Packet>,
    next_psn: u64,
    /// Retransmission times of the packets that are not in `lost`.
    timers: BTreeSet<(Duration, u64)>,
    /// Packets by path and transmission time, except for those known to be overtaken.
    order: BTreeSet<(u16, Duration, u64)>,
    /// Packets to retransmit. Some may no longer be in flight.
    lost: VecDeque<u64>,
}

impl InFlight {
    /// Returns their number.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns the number of those that are in transit, since they are not known to be lost.
    pub(super) fn in_transit(&self) -> usize {
        self.timers.len()
    }

    /// Returns the number of the oldest one, or of the next one if there is none.
    pub(super) fn floor(&self) -> u64 {
        let oldest = self.packets.first_key_value();
        oldest.map_or(self.next_psn, |(psn, _)| *psn)
    }

    /// Returns the number of packets sent since the oldest one, including it.
    pub(super) fn span(&self) -> u64 {
        self.next_psn - self.floor()
    }

    /// Returns those that were first sent at least `age` ago.
    pub(super) fn older(&self, now: Duration, age: Duration) -> impl Iterator<Item = &Packet> {
        let packets = self.packets.values();
        packets.filter(move |packet| now.saturating_sub(packet.begun) >= age)
    }

    /// Returns the message of a packet.
    pub(super) fn message_of(&self, psn: u64) -> Option<u64> {
        Some(self.packets.get(&psn)?.part.message)
    }

    /// Adds a new packet, and returns its number. It is lost after `timeout`.
    pub(super) fn send(&mut self, now: Duration, part: Part, path: u16, timeout: Duration) -> u64 {
        let psn = self.next_psn;
        self.next_psn += 1;
        let packet = Packet { part, path, begun: now, sent: now, due: Some(now + timeout), retries: 0 };
        self.packets.insert(psn, packet);
        self.start_timer(psn, packet);
        psn
    }

    /// Records a retransmission of a packet. Returns its part of a message.
    pub(super) fn resend(&mut self, now: Duration, psn: u64, path: u16, timeout: Duration) -> Option<Part> {
        let packet = self.packets.get_mut(&psn)?;
        packet.path = path;
        packet.sent = now;
        packet.due = Some(now + packet.backed_off(timeout).min(MAX_TIMEOUT));
        let packet = *packet;
        self.start_timer(psn, packet);
        Some(packet.part)
    }

    fn start_timer(&mut self, psn: u64, packet: Packet) {
        self.timers.extend(packet.due.map(|due| (due, psn)));
        self.order.insert((packet.path, packet.sent, psn));
    }

    /// Takes the next packet to retransmit.
    pub(super) fn next_lost(&mut self) -> Option<u64> {
        let mut lost = iter::from_fn(|| self.lost.pop_front());
        lost.find(|psn| self.packets.contains_key(psn))
    }

    /// Whether packets wait for their retransmission.
    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Removes a packet.
    pub(super) fn take(&mut self, psn: u64) -> Option<Packet> {
        let packet = self.packets.remove(&psn)?;
        if let Some(due) = packet.due {
            self.timers.remove(&(due, psn));
            self.order.remove(&(packet.path, packet.sent, psn));
        }
        Some(packet)
    }

    /// Removes the packets of all messages except those that `is_kept` selects.
    pub(super) fn retain(&mut self, is_kept: impl Fn(u64) -> bool) {
        let others = self.packets.iter();
        let others: Vec<_> = others.filter(|(_, packet)| !is_kept(packet.part.message)).map(|(psn, _)| *psn).collect();
        for psn in others {
            self.take(psn);
        }
    }

    /// Removes all packets, and frees their memory.
    pub(super) fn clear(&mut self) {
        *self = Self { next_psn: self.next_psn, ..Self::default() };
    }

    /// Shortens the timeout of packets that one sent on `path` at `sent` has overtaken. A path preserves the order except for
    /// random delays, so these packets are probably lost.
    pub(super) fn overtaken(&mut self, now: Duration, path: u16, sent: Duration, patience: Duration) {
        let first = (path, Duration::ZERO, 0);
        while let Some(earlier) = self.order.range(first..(path, sent, 0)).next().copied() {
            self.order.remove(&earlier);
            let (_, sent, psn) = earlier;
            let Some(packet) = self.packets.get_mut(&psn) else {
                continue;
            };
            let due = (sent + packet.backed_off(patience)).max(now);
            if let Some(before) = packet.due.filter(|before| due < *before) {
                self.timers.remove(&(before, psn));
                self.timers.insert((due, psn));
                packet.due = Some(due);
            }
        }
    }

    /// Returns the time of the next retransmission, if any.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.timers.first().map(|timer| timer.0)
    }

    /// Queues the next packet whose time has come for retransmission, and returns it.
    pub(super) fn expire(&mut self, now: Duration) -> Option<Packet> {
        while self.next_due().is_some_and(|due| due <= now) {
            let (_, psn) = self.timers.pop_first()?;
            if let Some(packet) = self.packets.get_mut(&psn) {
                packet.due = None;
                packet.retries += 1;
                self.order.remove(&(packet.path, packet.sent, psn));
                self.lost.push_back(psn);
                return Some(*packet);
            }
        }
        None
    }
}
