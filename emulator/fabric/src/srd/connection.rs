// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sending end of a connection: messages, and packets in flight.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    net::Ipv6Addr,
    time::Duration,
};

use efa_hw::io::CompStatus;
use efa_model::QpId;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    PSN_RANGE,
    in_flight::{InFlight, Packet},
    message::{Content, Message},
    parked::{Parked, Part},
    paths::Paths,
    window::{MOST, Shortest, Window},
};
use crate::packet::{Ack, Data, PortId, Verdict};

/// Minimum number of timeouts in a row after which a silent peer is given up. Those of one packet take about two seconds. Timeouts
/// of several packets at once count as one: the program may have paused, and acknowledgements may have arrived meanwhile.
const MAX_TIMEOUTS: u32 = 24;

/// Number of retransmissions of a packet after which its message fails, although the peer answers others. An overloaded peer loses
/// many packets, but not always the same one.
const MAX_RETRIES: u32 = 10 * MAX_TIMEOUTS;

/// Sending end of a connection from a queue pair to a peer's device.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) to: PortId,
    pub(super) qp: QpId,
    number: u64,
    messages: BTreeMap<u64, Message>,
    next_message: u64,
    /// Messages that are not yet sent completely.
    unsent: VecDeque<u64>,
    in_flight: InFlight,
    parked: Parked,
    /// Parts that were parked, to be sent as new packets.
    parts: VecDeque<Part>,
    window: Window,
    /// Time at which the window admits a packet, if no acknowledgement or timeout is pending.
    paced: Option<Duration>,
    paths: Paths,
    /// Whether the connection waits for its turn to send.
    pub(super) active: bool,
    /// Expiry of the timer that its table has set.
    pub(super) armed: Option<Duration>,
    pub(super) last_used: Duration,
    /// Time of the peer's last acknowledgement, if any.
    heard: Option<Duration>,
    /// Number of timeouts since then.
    timeouts: u32,
    /// Whether its queue pair has ended, so that only failures are sent to reading peers.
    has_ended: bool,
}

/// State of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ConnectionState {
    /// The queue pair.
    pub qp: u16,
    /// GID of the peer, unless it has left.
    pub peer: Option<Ipv6Addr>,
    /// Round-trip time in microseconds, smoothed; null if none was measured.
    pub round_trip_us: Option<f64>,
    /// Congestion window in packets. It has no effect if no rate is limited.
    pub window: f64,
    /// Number of packets that are not acknowledged.
    pub in_flight: usize,
    /// Number of messages that are not delivered.
    pub messages: usize,
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) data: Data,
    pub(crate) path: u16,
    /// Whether it is a retransmission.
    pub(crate) again: bool,
}

/// A message that has failed, and its status.
pub(super) type Failed = (u64, CompStatus);

/// Result of an expired timer.
#[derive(Debug, Default)]
pub(crate) struct Expired {
    /// Number of packets that were not acknowledged in time.
    pub(crate) timeouts: u32,
    /// Number of paths that are now avoided.
    pub(crate) impaired: u32,
    /// Whether the peer is unresponsive, so that the connection ends.
    pub(crate) gave_up: bool,
    /// Messages with a packet that the peer drops each time, although it answers others.
    pub(super) failed: BTreeSet<u64>,
}

/// Limits on a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) paths: u16,
    pub(crate) multipath: bool,
    pub(crate) has_rate: bool,
    /// Maximum payload of a packet, in bytes.
    pub(crate) mtu: u32,
    /// Time without an acknowledgement after which a peer is silent. An overloaded peer still acknowledges some packets.
    pub(crate) silence: Duration,
}

impl Connection {
    pub(super) fn new(number: u64, to: PortId, qp: QpId, first_path: u16) -> Self {
        Self {
            to,
            qp,
            number,
            messages: BTreeMap::new(),
            next_message: 0,
            unsent: VecDeque::new(),
            in_flight: InFlight::default(),
            parked: Parked::default(),
            parts: VecDeque::new(),
            window: Window::new(),
            paced: None,
            paths: Paths::new(first_path),
            active: false,
            armed: None,
            last_used: Duration::ZERO,
            heard: None,
            timeouts: 0,
            has_ended: false,
        }
    }

    /// Describes the connection, but for its peer.
    pub(super) fn state(&self) -> ConnectionState {
        let (window, round_trip) = self.window.state();
        ConnectionState {
            qp: self.qp.number,
            peer: None,
            round_trip_us: round_trip.map(|time| time.as_secs_f64() * 1e6),
            window,
            in_flight: self.in_flight(),
            messages: self.messages(),
        }
    }

    /// Queues a message whose packets carry `length` bytes.
    pub(super) fn push(&mut self, content: Content, length: u32) {
        let number = self.next_message;
        self.next_message += 1;
        self.messages.insert(number, Message::new(content, length));
        self.unsent.push_back(number);
    }

    /// Parks the first part of the last message, whose receiver is not ready. Returns the message if this was too often.
    pub(super) fn park(&mut self, now: Duration, mtu: u32) -> Option<Failed> {
        let number = self.unsent.pop_back()?;
        let message = self.messages.get_mut(&number)?;
        let part = message.cut(number, mtu);
        if !message.is_cut() {
            self.unsent.push_back(number);
        }
        self.park_part(now, part)
    }

    /// Returns the content of a message.
    pub(super) fn content(&self, message: u64) -> Option<&Content> {
        Some(&self.messages.get(&message)?.content)
    }

    /// Returns the number of messages.
    pub(super) fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Whether the connection has no messages.
    pub(super) fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the number of packets in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes the next packet to send, if the window admits one. A new one also needs fewer than `share` packets in flight.
    pub(super) fn next(&mut self, now: Duration, limits: Limits, share: usize) -> Option<Outgoing> {
        // Packets to retransmit are lost, so they are not in transit. The window limits retransmissions, too, because the cause
        // of the loss may persist.
        let in_transit = self.in_flight.in_transit();
        let admitted = if limits.has_rate {
            self.window.admits(now, in_transit)
        } else {
            // CAST: a small number.
            in_transit < MOST as usize
        };
        self.paced = match admitted || in_transit > 0 {
            true => None,
            false => self.window.paced(),
        };
        if !admitted {
            return None;
        }
        let timeout = self.window.timeout();
        if let Some(psn) = self.in_flight.next_lost() {
            let path = self.paths.choose(now, limits.paths, limits.multipath);
            let part = self.in_flight.resend(now, psn, path, timeout)?;
            self.window.sent(now);
            return Some(self.outgoing(psn, part, path, limits, true));
        }
        if self.in_flight() >= share || self.in_flight.span() >= PSN_RANGE {
            return None;
        }
        let part = self.next_part(limits.mtu)?;
        let path = self.paths.choose(now, limits.paths, limits.multipath);
        let psn = self.in_flight.send(now, part, path, timeout);
        self.window.sent(now);
        self.last_used = now;
        Some(self.outgoing(psn, part, path, limits, false))
    }

    fn outgoing(&self, psn: u64, part: Part, path: u16, limits: Limits, again: bool) -> Outgoing {
        Outgoing {
            data: Data {
                connection: self.number,
                psn,
                floor: self.in_flight.floor(),
                message: part.message,
                offset: part.offset,
                length: part.length,
                // CAST: at most `Settings::MAX_SILENCE_S`.
                silence_s: limits.silence.as_secs_f64().ceil() as u16,
            },
            path,
            again,
        }
    }

    /// Takes the next part to send as a new packet.
    fn next_part(&mut self, mtu: u32) -> Option<Part> {
        while let Some(part) = self.parts.pop_front() {
            if self.messages.contains_key(&part.message) {
                return Some(part);
            }
        }
        loop {
            let number = *self.unsent.front()?;
            let Some(message) = self.messages.get_mut(&number) else {
                self.unsent.pop_front();
                continue;
            };
            let part = message.cut(number, mtu);
            if message.is_cut() {
                self.unsent.pop_front();
            }
            return Some(part);
        }
    }

    /// Removes a packet from those in flight after an answer.
    fn conclude(&mut self, now: Duration, psn: u64) -> Option<Packet> {
        let packet = self.in_flight.take(psn)?;
        self.paths.answered(packet.path, packet.round_trip(now));
        self.last_used = now;
        self.heard = Some(now);
        self.timeouts = 0;
        Some(packet)
    }

    /// Processes the acknowledgement of a packet; returns the message that it has delivered as a whole, or has failed. `shortest`
    /// is the shortest round trip to the peer, if known.
    pub(super) fn acknowledge(
        &mut self,
        now: Duration,
        ack: &Ack,
        shortest: &mut Option<Shortest>,
    ) -> Option<Result<Message, Failed>> {
        match ack.verdict {
            Verdict::Delivered => self.delivered(now, ack.psn, shortest).map(Ok),
            Verdict::NotReady => self.not_ready(now, ack.psn).map(Err),
            Verdict::Failed(status) => {
                let status = CompStatus::try_from(status).unwrap_or(CompStatus::RemoteAbort);
                Some(Err((self.in_flight.message_of(ack.psn)?, status)))
            }
        }
    }

    fn delivered(&mut self, now: Duration, psn: u64, shortest: &mut Option<Shortest>) -> Option<Message> {
        let packet = self.conclude(now, psn)?;
        if let Some(round_trip) = packet.round_trip(now) {
            let shortest = shortest.get_or_insert(Shortest::new(now, round_trip));
            let least = shortest.measure(now, round_trip);
            self.window.acknowledged(now, round_trip, least);
            let patience = self.window.patience();
            let (path, sent) = (packet.path, packet.sent);
            self.in_flight.overtaken(now, path, sent, patience);
        } else {
            let time = now.saturating_sub(packet.begun);
            self.window.acknowledged_again(time);
        }
        let number = packet.part.message;
        let message = self.messages.get_mut(&number)?;
        if let Some(peer_qp) = message.content.receiver() {
            self.parked.delivered(now, peer_qp, &mut self.parts);
        }
        if !message.delivered() {
            return None;
        }
        let message = self.messages.remove(&number)?;
        self.settle();
        Some(message)
    }

    /// Processes the refusal of a packet for which the receiver was not ready. The packet ends, and its part is sent again later.
    fn not_ready(&mut self, now: Duration, psn: u64) -> Option<Failed> {
        let packet = self.conclude(now, psn)?;
        self.park_part(now, packet.part)
    }

    /// Parks a part whose receiver is not ready. Returns its message if this was too often.
    fn park_part(&mut self, now: Duration, part: Part) -> Option<Failed> {
        match self.messages.get_mut(&part.message)?.not_ready() {
            Some(peer_qp) => {
                self.parked.park(now, peer_qp, part);
                None
            }
            None => Some((part.message, CompStatus::RemoteRnr)),
        }
    }

    /// Removes a message and its packets; returns its content.
    pub(super) fn remove(&mut self, number: u64) -> Option<Content> {
        let message = self.messages.remove(&number)?;
        self.in_flight.retain(|message| message != number);
        self.parked.retain(|message| message != number);
        self.settle();
        Some(message.content)
    }

    /// Handles the end of its queue pair: removes and returns all messages except failures.
    pub(super) fn end(&mut self) -> Vec<Content> {
        self.has_ended = true;
        let is_failure = |message: &Message| matches!(message.content, Content::Failure { .. });
        let (failures, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            mem::take(&mut self.messages).into_iter().partition(|(_, message)| is_failure(message));
        self.messages = failures;
        let messages = &self.messages;
        let is_kept = |message| messages.contains_key(&message);
        self.in_flight.retain(is_kept);
        // Failures need no receive work request. But a peer that breaks the protocol may refuse them as if they did.
        self.parked.retain(is_kept);
        self.settle();
        let others = others.into_values().map(|message| message.content);
        others.collect()
    }

    /// Whether its queue pair has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Frees memory if no message is left. A device may have as many connections as it has peers, most of them idle.
    fn settle(&mut self) {
        if self.is_idle() {
            self.messages = BTreeMap::new();
            self.in_flight.clear();
            self.unsent = VecDeque::new();
            self.parts = VecDeque::new();
        }
    }

    /// Ends the connection, and returns the content of all messages.
    pub(super) fn into_contents(self) -> impl Iterator<Item = Content> {
        self.messages.into_values().map(|message| message.content)
    }

    /// Whether the peer has ever acknowledged a packet.
    pub(super) fn was_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Returns the time at which [`Self::expire`] has to be called.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let timers = [self.in_flight.next_due(), self.parked.next_due(), self.paced];
        timers.into_iter().flatten().min()
    }

    /// Queues packets for retransmission after their timeout, and parked parts whose retry is due. Gives up a peer that has not
    /// acknowledged anything for `silence`, during all of which a packet was in flight.
    pub(super) fn expire(&mut self, now: Duration, silence: Duration) -> Expired {
        self.parked.take_due(now, &mut self.parts);
        self.paced = self.paced.filter(|paced| *paced > now);
        let mut expired = Expired::default();
        let is_silent = |heard| now.saturating_sub(heard) >= silence;
        let silent = self.heard.is_none_or(is_silent);
        let mut unanswered = false;
        if self.in_flight.next_due().is_some_and(|due| due <= now) {
            self.timeouts = self.timeouts.saturating_add(1);
        }
        while let Some(packet) = self.in_flight.expire(now) {
            expired.timeouts += 1;
            let age = now.saturating_sub(packet.begun);
            let is_old = age >= silence;
            unanswered |= silent && is_old && self.timeouts > MAX_TIMEOUTS;
            if is_old && packet.retries > MAX_RETRIES {
                expired.failed.insert(packet.part.message);
            }
            expired.impaired += u32::from(self.paths.lost(now, packet.path));
        }
        if expired.timeouts > 0 {
            self.window.lost(now);
        }
        if unanswered {
            // Packets after the oldest one that were answered.
            let answered = self.in_flight.span() - self.in_flight.len() as u64;
            if answered < MOST as u64 {
                expired.gave_up = true;
            } else {
                // The peer drops these packets, and the oldest one has kept the connection from sending others.
                let old = self.in_flight.older(now, silence);
                expired.failed.extend(old.map(|packet| packet.part.message));
            }
        }
        expired
    }

    /// Whether there is something to send.
    pub(super) fn has_work(&self) -> bool {
        !self.unsent.is_empty() || self.in_flight.has_lost() || !self.parts.is_empty()
    }
}

#[cfg(test)]
pub(super) mod tests;
