// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sending end of a connection: messages, and packets in flight.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    time::Duration,
};

use efa_model::QpId;

use super::{
    PSN_RANGE,
    in_flight::{InFlight, Packet},
    message::{Content, Message},
    parked::{Parked, Part},
    paths::Paths,
    window::{MOST, Shortest, Window},
};
use crate::packet::{Data, PortId};

/// Minimum number of timeouts in a row after which a silent peer is given up. Those of one packet take about two seconds.
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

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) data: Data,
    pub(crate) path: u16,
    /// Whether it is a retransmission.
    pub(crate) again: bool,
}

/// Progress of a message.
#[derive(Debug)]
pub(super) enum Progress {
    None,
    /// The whole message was delivered.
    Delivered(Box<Message>),
    /// The receiver was not ready for the message too often.
    NotReady(u64),
}

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

    /// Queues a message whose packets carry `length` bytes.
    pub(super) fn push(&mut self, content: Content, length: u32) {
        let number = self.next_message;
        self.next_message += 1;
        self.messages.insert(number, Message::new(content, length));
        self.unsent.push_back(number);
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

    /// Takes the next packet to send, if the window admits one. A new packet also needs `room` for more packets in flight.
    pub(super) fn next(&mut self, now: Duration, limits: Limits, room: usize) -> Option<Outgoing> {
        self.in_flight.forget_answered();
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
            return Some(self.outgoing(psn, part, path, true));
        }
        if room == 0 || self.in_flight.span() >= PSN_RANGE {
            return None;
        }
        let part = self.next_part(limits.mtu)?;
        let path = self.paths.choose(now, limits.paths, limits.multipath);
        let psn = self.in_flight.send(now, part, path, timeout);
        self.window.sent(now);
        self.last_used = now;
        Some(self.outgoing(psn, part, path, false))
    }

    fn outgoing(&self, psn: u64, part: Part, path: u16, again: bool) -> Outgoing {
        Outgoing {
            data: Data {
                connection: self.number,
                psn,
                floor: self.in_flight.floor(),
                message: part.message,
                offset: part.offset,
                length: part.length,
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
            let (offset, length) = message.cut(mtu);
            if message.is_cut() {
                self.unsent.pop_front();
            }
            return Some(Part {
                message: number,
                offset,
                length,
            });
        }
    }

    /// Removes a packet from those in flight after an answer.
    fn conclude(&mut self, now: Duration, psn: u64) -> Option<Packet> {
        let packet = self.in_flight.take(psn)?;
        self.paths.answered(packet.path);
        self.last_used = now;
        self.heard = Some(now);
        self.timeouts = 0;
        Some(packet)
    }

    /// Processes the delivery of a packet. `shortest` is the shortest round trip to the peer, if known.
    pub(super) fn delivered(
        &mut self,
        now: Duration,
        psn: u64,
        shortest: &mut Option<Shortest>,
    ) -> Progress {
        let Some(packet) = self.conclude(now, psn) else {
            return Progress::None;
        };
        // After a retransmission, it is unknown which transmission was acknowledged.
        if packet.retries == 0 {
            let round_trip = now.saturating_sub(packet.sent);
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
        let Some(message) = self.messages.get_mut(&number) else {
            return Progress::None;
        };
        if let Some(peer_qp) = message.content.receiver() {
            self.parked.delivered(now, peer_qp, &mut self.parts);
        }
        if !message.delivered() {
            return Progress::None;
        }
        let message = self.messages.remove(&number);
        self.settle();
        message.map_or(Progress::None, |message| {
            Progress::Delivered(Box::new(message))
        })
    }

    /// Processes the refusal of a packet for which the receiver was not ready. The packet ends, and its part is sent again later.
    pub(super) fn not_ready(&mut self, now: Duration, psn: u64) -> Progress {
        let Some(packet) = self.conclude(now, psn) else {
            return Progress::None;
        };
        let number = packet.part.message;
        let Some(message) = self.messages.get_mut(&number) else {
            return Progress::None;
        };
        let Some(peer_qp) = message.not_ready() else {
            return Progress::NotReady(number);
        };
        self.parked.park(now, peer_qp, packet.part);
        Progress::None
    }

    /// Returns the message of a packet.
    pub(super) fn message_of(&self, psn: u64) -> Option<u64> {
        self.in_flight.message_of(psn)
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
        let (failures, others): (BTreeMap<_, _>, BTreeMap<_, _>) = mem::take(&mut self.messages)
            .into_iter()
            .partition(|(_, message)| is_failure(message));
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
        let timers = [
            self.in_flight.next_due(),
            self.parked.next_due(),
            self.paced,
        ];
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
        while let Some(packet) = self.in_flight.expire(now) {
            expired.timeouts += 1;
            self.timeouts = self.timeouts.saturating_add(1);
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
        !self.unsent.is_empty() || self.has_lost() || !self.parts.is_empty()
    }

    /// Whether packets wait for their retransmission.
    pub(super) fn has_lost(&self) -> bool {
        self.in_flight.has_lost()
    }
}

#[cfg(test)]
mod tests {
    use efa_hw::io::CompStatus;

    use super::{super::in_flight::MAX_TIMEOUT, *};
    use crate::packet::Reader;

    const LIMITS: Limits = Limits {
        paths: 2,
        multipath: true,
        has_rate: true,
        mtu: 1000,
        silence: Duration::from_secs(2),
    };

    const ROUND_TRIP: Duration = Duration::from_micros(20);

    /// Returns a connection with a message of `packets` packets.
    fn connection(packets: u32) -> Connection {
        let qp: QpId = serde_json::from_str(r#"{"number":1,"incarnation":1}"#).unwrap();
        let mut connection = Connection::new(7, PortId(3), qp, 0);
        connection.push(response(qp), packets * LIMITS.mtu);
        connection
    }

    fn response(qp: QpId) -> Content {
        let reader = Reader { qp, request: 0 };
        let memory = (0, 0);
        Content::Response { reader, memory }
    }

    fn send(connection: &mut Connection, now: Duration) -> Vec<(u64, u16)> {
        let next = || connection.next(now, LIMITS, usize::MAX);
        let sent = std::iter::from_fn(next);
        sent.map(|outgoing| (outgoing.data.psn, outgoing.path))
            .collect()
    }

    #[test]
    fn a_failure_that_the_peer_refuses_is_sent_again_after_the_end() {
        let mut connection = connection(1);
        let now = Duration::from_secs(1);
        let reader = Reader {
            qp: connection.qp,
            request: 0,
        };
        let status = CompStatus::RemoteBadAddress;
        connection.push(Content::Failure { reader, status }, 0);
        assert_eq!(send(&mut connection, now).len(), 2);
        connection.not_ready(now, 1);
        assert_eq!(connection.end().len(), 1);
        let due = connection.next_due().unwrap();
        connection.expire(due, LIMITS.silence);
        assert_eq!(send(&mut connection, due).len(), 1);
    }

    #[test]
    fn a_packet_overtaken_on_its_path_is_retransmitted_early() {
        let mut connection = connection(100);
        let mut shortest = None;
        let start = Duration::from_secs(1);
        let first = send(&mut connection, start);
        assert_eq!(first, [(0, 1), (1, 0), (2, 1), (3, 0)]);
        // The first packet on path 1 is lost. Acknowledgements of packets on path 0 do not show this.
        let mut now = start + ROUND_TRIP;
        connection.delivered(now, 1, &mut shortest);
        connection.delivered(now, 2, &mut shortest);
        connection.delivered(now, 3, &mut shortest);
        // All were sent at the same time, so none was overtaken.
        assert!(connection.next_due().unwrap() > now + Duration::from_millis(1));
        let next = send(&mut connection, now);
        let other = next.iter().find(|(_, path)| *path == 0).unwrap().0;
        let same = next.iter().find(|(_, path)| *path == 1).unwrap().0;
        now += ROUND_TRIP;
        connection.delivered(now, other, &mut shortest);
        assert!(connection.next_due().unwrap() > now + Duration::from_millis(1));
        connection.delivered(now, same, &mut shortest);
        let due = connection.next_due().unwrap();
        assert!(due <= start + 5 * ROUND_TRIP, "{due:?}");
        let expired = connection.expire(due, LIMITS.silence);
        assert_eq!((expired.timeouts, expired.impaired), (1, 0));
        assert_eq!(send(&mut connection, due)[0].0, 0);
    }

    #[test]
    fn lost_packets_are_retransmitted_within_the_window() {
        let mut connection = connection(100);
        let mut now = Duration::from_secs(1);
        let first = send(&mut connection, now);
        for (psn, _) in &first {
            connection.delivered(now + ROUND_TRIP, *psn, &mut None);
        }
        now += ROUND_TRIP;
        let lost = send(&mut connection, now).len();
        assert!(lost > first.len());
        now += 100 * ROUND_TRIP;
        assert_eq!(
            connection.expire(now, LIMITS.silence).timeouts as usize,
            lost
        );
        let again = send(&mut connection, now);
        assert!((1..lost).contains(&again.len()), "{again:?}");
        // Packets that arrive make room for others.
        for (psn, _) in &again[..2] {
            connection.delivered(now + ROUND_TRIP, *psn, &mut None);
        }
        let next = send(&mut connection, now + ROUND_TRIP);
        assert_eq!(next[0].0, again.last().unwrap().0 + 1);
    }

    /// Sends packets until the peer is given up or the message fails. Returns how long that takes, and whether the peer is given
    /// up. `answers` runs before each check of the timers.
    fn end(
        connection: &mut Connection,
        answers: impl FnMut(&mut Connection, Duration),
    ) -> (u128, bool) {
        end_from(connection, Duration::from_secs(1), LIMITS.silence, answers)
    }

    /// As [`end`], from a time on and with a limit of the peer's silence.
    fn end_from(
        connection: &mut Connection,
        start: Duration,
        silence: Duration,
        mut answers: impl FnMut(&mut Connection, Duration),
    ) -> (u128, bool) {
        let mut now = start;
        loop {
            send(connection, now);
            now += MAX_TIMEOUT;
            answers(connection, now);
            let expired = connection.expire(now, silence);
            if expired.gave_up || !expired.failed.is_empty() {
                return ((now - start).as_millis(), expired.gave_up);
            }
        }
    }

    /// Acknowledges the first packet in flight that is not packet 0.
    fn answer_another(connection: &mut Connection, now: Duration) {
        let mut sent = 1..connection.in_flight.floor() + connection.in_flight.span();
        if let Some(psn) = sent.find(|psn| connection.message_of(*psn).is_some()) {
            connection.delivered(now, psn, &mut None);
        }
    }

    #[test]
    fn requests_to_a_silent_peer_fail() {
        let (took, gave_up) = end(&mut connection(1), |_, _| {});
        assert!(gave_up && (2000..3000).contains(&took), "{took}");
        // A peer that acknowledges any packet is only late.
        let (took, gave_up) = end(&mut connection(1000), |connection, now| {
            if now.as_secs() < 10 {
                answer_another(connection, now);
            }
        });
        assert!(gave_up && (11_000..15_000).contains(&took), "{took}");
    }

    #[test]
    fn a_peer_may_be_silent_for_as_long_as_the_limit() {
        // A peer that has never answered on this connection, and one that has answered long ago.
        let silence = Duration::from_secs(60);
        let mut now = Duration::from_secs(1);
        let mut connection = connection(1);
        let (took, gave_up) = end_from(&mut connection, now, silence, |_, _| {});
        assert!(gave_up && (60_000..61_000).contains(&took), "{took}");
        connection.delivered(now, 0, &mut None);
        connection.push(response(connection.qp), LIMITS.mtu);
        now += 10 * silence;
        let (took, gave_up) = end_from(&mut connection, now, silence, |_, _| {});
        assert!(gave_up && (60_000..61_000).contains(&took), "{took}");
    }

    #[test]
    fn a_silent_peer_is_given_up_soon_although_many_packets_are_in_flight() {
        let mut connection = connection(1000);
        let mut now = Duration::from_secs(1);
        loop {
            let sent = send(&mut connection, now);
            if sent.len() == MOST as usize {
                break;
            }
            now += ROUND_TRIP;
            for (psn, _) in sent {
                connection.delivered(now, psn, &mut None);
            }
        }
        let start = now;
        while !connection.expire(now, LIMITS.silence).gave_up {
            send(&mut connection, now);
            now = connection.next_due().unwrap();
        }
        let took = now - start;
        assert!((2000..3000).contains(&took.as_millis()), "{took:?}");
    }

    #[test]
    fn a_message_whose_packet_is_always_dropped_ends_alone() {
        // While the peer answers others.
        let (took, gave_up) = end(&mut connection(1000), answer_another);
        assert!(!gave_up && (20_000..40_000).contains(&took), "{took}");
        // As soon as it keeps the connection from sending any others.
        let (took, gave_up) = end(&mut connection(5000), |connection, now| {
            while connection.in_flight.len() > 1 {
                answer_another(connection, now);
                send(connection, now);
            }
        });
        assert!(!gave_up && (2000..4000).contains(&took), "{took}");
    }

    #[test]
    fn an_idle_connection_has_no_memory() {
        let mut connection = connection(3);
        let now = Duration::from_secs(1);
        for (psn, _) in send(&mut connection, now) {
            connection.delivered(now + ROUND_TRIP, psn, &mut None);
        }
        assert!(connection.is_idle());
        assert_eq!(connection.in_flight.in_transit(), 0);
        assert_eq!(connection.unsent.capacity(), 0);
        assert_eq!(connection.next_due(), None);
    }

    #[test]
    fn a_window_below_a_packet_is_paced() {
        let mut connection = connection(100);
        let mut now = Duration::from_secs(1);
        for (psn, _) in send(&mut connection, now) {
            connection.delivered(now + ROUND_TRIP, psn, &mut None);
        }
        now += ROUND_TRIP;
        for _ in 0..20 {
            now += 2 * ROUND_TRIP;
            connection.window.lost(now);
        }
        let sent = send(&mut connection, now);
        assert_eq!(sent.len(), 1);
        connection.delivered(now + ROUND_TRIP, sent[0].0, &mut None);
        now += ROUND_TRIP;
        assert!(send(&mut connection, now).is_empty());
        let due = connection.next_due().unwrap();
        assert!(due > now);
        connection.expire(due, LIMITS.silence);
        assert_eq!(connection.next_due(), None);
        assert_eq!(send(&mut connection, due).len(), 1);
    }
}
