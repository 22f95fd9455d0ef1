// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The connections of a device, their turns to send, and the results of their messages.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    time::Duration,
};

use efa_hw::io::CompStatus;
use efa_model::{QpId, Request};

pub(crate) use super::connection::{ConnectionState, Limits};
use super::{
    connection::{Connection, Expired, Outgoing},
    message::Content,
    window::Shortest,
};
use crate::packet::{Ack, Address, Data, Header, MAX_IN_FLIGHT, PortId};

/// Maximum number of connections of a device.
const MAX_CONNECTIONS: usize = 64 << 10;

/// Maximum number of unacknowledged responses to the reads of a peer. Further reads are dropped, and retransmitted.
const MAX_RESPONSES: usize = 16 << 10;

/// Number of responses of which each peer may have an equal share, up to [`MAX_RESPONSES`]. The share shrinks as peers are added:
/// the eighth peer gets an eighth. So the sum is a small multiple of this, for any number of peers.
const SHARED_RESPONSES: usize = 64 << 10;

/// Number of packets that a connection sends per turn.
const TURN: usize = 4;

/// Time after which an unused connection is closed.
const IDLE: Duration = Duration::from_secs(5);

/// All connections of a device.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_number: HashMap<u64, Box<Connection>>,
    /// By queue pair and peer, except for those that have ended.
    by_flow: BTreeMap<(QpId, PortId), u64>,
    next: u64,
    /// Connections that may send, in the order of their turns. Some may have been closed.
    active: VecDeque<u64>,
    /// Number of packets that the first of them has sent in its turn.
    sent: usize,
    timers: BTreeSet<(Duration, u64)>,
    in_flight: usize,
    /// Shortest round trip to each peer.
    shortest: HashMap<PortId, Option<Shortest>>,
    /// Time without an acknowledgement after which a peer is silent.
    silence: Duration,
    /// Number of unacknowledged responses by reading port, including failures in place of responses.
    responses: HashMap<PortId, usize>,
    /// Number of unacknowledged responses by queue pair that serves the read.
    serving: HashMap<QpId, usize>,
}

/// Result of a message.
#[derive(Debug)]
pub(crate) enum Ended {
    /// A work request was delivered. If it is a read, its data is still to come.
    Delivered(Box<Request>),
    /// A work request has failed.
    Failed(Box<Request>, CompStatus),
    /// A peer has all data of a read that this queue pair serves.
    Served(QpId),
}

impl Connections {
    /// Returns the number of connections.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Returns the state of the connections that have not ended, and their peers.
    pub(crate) fn states(&self) -> impl Iterator<Item = (PortId, ConnectionState)> {
        let open = self.by_flow.values();
        let open = open.filter_map(|number| self.by_number.get(number));
        open.map(|connection| (connection.to, connection.state()))
    }

    /// Returns the number of messages of all connections.
    pub(crate) fn messages(&self) -> usize {
        self.by_number.values().map(|it| it.messages()).sum()
    }

    /// Returns the connection of a queue pair to a peer, or opens one from `first_path`. Fails if there are too many. Ends the
    /// connections of ended queue pairs with the same number, so that few messages are kept for each number.
    pub(crate) fn open(
        &mut self,
        now: Duration,
        qp: QpId,
        to: PortId,
        first_path: impl FnOnce() -> u16,
    ) -> Option<u64> {
        if let Some(connection) = self.by_flow.get(&(qp, to)) {
            return Some(*connection);
        }
        while let Some(((ended, _), number)) = self.by_flow.range(..(qp, PortId(0))).next_back() {
            if ended.number != qp.number {
                break;
            }
            self.end(*number);
        }
        if self.by_number.len() == MAX_CONNECTIONS {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let mut connection = Box::new(Connection::new(number, to, qp, first_path()));
        connection.last_used = now;
        self.by_number.insert(number, connection);
        self.by_flow.insert((qp, to), number);
        Some(number)
    }

    /// Whether a queue pair has messages for a peer that are not delivered.
    pub(crate) fn is_busy(&self, qp: QpId, to: PortId) -> bool {
        let number = self.by_flow.get(&(qp, to));
        number.is_some_and(|number| self.by_number.get(number).is_some_and(|it| !it.is_idle()))
    }

    /// Queues a message whose packets carry `length` bytes.
    pub(crate) fn push(&mut self, connection: u64, content: Content, length: u32) {
        if let Some(found) = self.by_number.get_mut(&connection) {
            if !matches!(content, Content::Request(_)) {
                *self.responses.entry(found.to).or_default() += 1;
            }
            if matches!(content, Content::Response { .. }) {
                *self.serving.entry(found.qp).or_default() += 1;
            }
            found.push(content, length);
            self.update(connection);
        }
    }

    /// As [`push`](Self::push), but the receiver has refused the first packet.
    pub(crate) fn park(&mut self, now: Duration, connection: u64, request: Box<Request>, mtu: u32) -> Option<Ended> {
        let length = request.length;
        self.push(connection, Content::Request(request), length);
        let refused = self.by_number.get_mut(&connection)?.park(now, mtu);
        self.update(connection);
        let (message, status) = refused?;
        self.fail(now, connection, message, status)
    }

    /// Records that a peer has answered without a connection.
    pub(crate) fn heard(&mut self, now: Duration, peer: PortId) {
        let (shortest, none) = (self.shortest.entry(peer).or_default(), Duration::ZERO);
        let shortest = shortest.get_or_insert(Shortest::new(now, none));
        shortest.measure(now, none);
    }

    /// Whether another response of a queue pair to a peer is allowed, and has a connection.
    pub(crate) fn can_respond(&self, qp: QpId, to: PortId) -> bool {
        if self.by_number.len() == MAX_CONNECTIONS && !self.by_flow.contains_key(&(qp, to)) {
            return false;
        }
        let own = self.responses.get(&to).copied();
        let peers = self.responses.len() + usize::from(own.is_none());
        own.unwrap_or(0) < (SHARED_RESPONSES / peers).clamp(1, MAX_RESPONSES)
    }

    /// Returns the queue pair, the header and the content of the message that a packet belongs to.
    pub(crate) fn find(&self, address: Address, data: &Data) -> Option<(QpId, Header, &Content)> {
        let connection = self.by_number.get(&data.connection)?;
        let content = connection.content(data.message)?;
        let header = content.header(address, connection.qp);
        Some((connection.qp, header, content))
    }

    /// Whether a connection waits for a turn.
    pub(crate) fn has_work(&self) -> bool {
        !self.active.is_empty()
    }

    /// Returns the limit on packets in flight for a connection to send a new one. No connection takes more than is left for
    /// others, and each may have a packet in flight, so that peers that do not respond do not block others.
    fn share(&self) -> usize {
        MAX_IN_FLIGHT.saturating_sub(self.in_flight).max(1)
    }

    /// Returns the connection that has the turn, with its queue pair and peer.
    pub(crate) fn turn(&mut self) -> Option<(u64, QpId, PortId)> {
        loop {
            let number = *self.active.front()?;
            if let Some(connection) = self.by_number.get(&number) {
                return Some((number, connection.qp, connection.to));
            }
            // The connection was closed.
            self.end_turn();
        }
    }

    fn end_turn(&mut self) {
        self.sent = 0;
        self.active.pop_front();
    }

    /// Takes the next packet of the connection that has the turn. Without a packet, the turn ends.
    pub(crate) fn next(&mut self, now: Duration, limits: Limits) -> Option<Outgoing> {
        self.silence = limits.silence;
        let share = self.share();
        let number = *self.active.front()?;
        let Some(connection) = self.by_number.get_mut(&number) else {
            self.end_turn();
            return None;
        };
        let before = connection.in_flight();
        let packet = connection.next(now, limits, share);
        self.in_flight += connection.in_flight() - before;
        self.sent += 1;
        if packet.is_none() || self.sent == TURN {
            connection.active = false;
            self.end_turn();
        }
        match packet {
            Some(_) => self.update(number),
            None => self.arm(number),
        }
        packet
    }

    /// Processes the acknowledgement of a packet by a peer.
    pub(crate) fn acknowledge(&mut self, now: Duration, from: PortId, ack: &Ack) -> Option<Ended> {
        let number = ack.connection;
        // Only the destination may acknowledge.
        let connection = self.by_number.get_mut(&number)?;
        if connection.to != from {
            return None;
        }
        let before = connection.in_flight();
        let shortest = self.shortest.entry(from).or_default();
        let progress = connection.acknowledge(now, ack, shortest);
        let qp = connection.qp;
        self.in_flight -= before - connection.in_flight();
        let ended = match progress {
            None => None,
            Some(Err((message, status))) => self.fail(now, number, message, status),
            Some(Ok(message)) => {
                self.forget_message(qp, from, &message.content);
                match message.content {
                    Content::Request(request) => Some(Ended::Delivered(request)),
                    Content::Response { .. } => Some(Ended::Served(qp)),
                    Content::Failure { .. } => None,
                }
            }
        };
        self.update(number);
        ended
    }

    /// Ends a message with an error status. A failure takes the place of a response.
    pub(crate) fn fail(&mut self, now: Duration, connection: u64, message: u64, status: CompStatus) -> Option<Ended> {
        let found = self.by_number.get_mut(&connection)?;
        let before = found.in_flight();
        let content = found.remove(message);
        found.last_used = now;
        let (qp, to) = (found.qp, found.to);
        self.in_flight -= before - found.in_flight();
        let content = content?;
        self.forget_message(qp, to, &content);
        let ended = match content {
            Content::Request(request) => Some(Ended::Failed(request, status)),
            Content::Response { reader, .. } => {
                self.push(connection, Content::Failure { reader, status }, 0);
                None
            }
            Content::Failure { .. } => None,
        };
        self.update(connection);
        ended
    }

    /// Updates the counts of responses for a removed message.
    fn forget_message(&mut self, qp: QpId, to: PortId, content: &Content) {
        if !matches!(content, Content::Request(_)) {
            count_less(&mut self.responses, to);
        }
        if matches!(content, Content::Response { .. }) {
            count_less(&mut self.serving, qp);
        }
    }

    /// Sends failures to peers that read by queue pairs that have ended.
    pub(crate) fn end_all(&mut self, is_current: impl Fn(QpId) -> bool) {
        let ended = self.serving.keys().copied();
        let ended: Vec<_> = ended.filter(|qp| !is_current(*qp)).collect();
        for qp in ended {
            let flows = (qp, PortId(0))..=(qp, PortId(usize::MAX));
            while let Some((_, number)) = self.by_flow.range(flows.clone()).next() {
                self.end(*number);
            }
        }
    }

    /// Ends the connection of a queue pair that has ended. Failures take the place of responses. All other messages are dropped.
    /// Returns whether anything is left to be sent.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        let Some(connection) = self.by_number.get_mut(&number) else {
            return false;
        };
        if !connection.has_ended() {
            let (qp, to) = (connection.qp, connection.to);
            let before = connection.in_flight();
            let contents = connection.end();
            self.by_flow.remove(&(qp, to));
            self.in_flight -= before - connection.in_flight();
            let status = CompStatus::RemoteAbort;
            for content in contents {
                self.forget_message(qp, to, &content);
                if let Content::Response { reader, .. } = content {
                    self.push(number, Content::Failure { reader, status }, 0);
                }
            }
            self.update(number);
        }
        let is_idle = self.by_number.get(&number).is_none_or(|it| it.is_idle());
        if is_idle {
            self.close(number);
        }
        !is_idle
    }

    /// Returns the time at which [`Self::expire`] has to be called.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.timers.first().map(|timer| timer.0)
    }

    /// Handles expired timers of connections. For each, returns the result of the timer, and the messages that were given up.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<(Expired, Vec<Ended>)> {
        let mut all = Vec::new();
        while let Some((_, number)) = self.timers.first().copied().filter(|first| first.0 <= now) {
            self.timers.pop_first();
            let Some(connection) = self.by_number.get_mut(&number) else {
                continue;
            };
            connection.armed = None;
            let expired = connection.expire(now, self.silence);
            let ended = if expired.gave_up {
                self.give_up(number)
            } else {
                let status = CompStatus::LocalUnrespRemote;
                let failed = expired.failed.iter();
                failed.filter_map(|message| self.fail(now, number, *message, status)).collect()
            };
            all.push((expired, ended));
            self.update(number);
        }
        all
    }

    /// Closes a connection to an unresponsive peer; returns the results of its work requests. The status, as in rdma-core's
    /// `efa_io_defs.h`, depends on whether the peer has ever responded.
    fn give_up(&mut self, number: u64) -> Vec<Ended> {
        let Some(connection) = self.by_number.get(&number) else {
            return Vec::new();
        };
        let known = self.shortest.get(&connection.to);
        let was_heard = connection.was_heard() || known.is_some_and(Option::is_some);
        let status = if was_heard { CompStatus::LocalUnrespRemote } else { CompStatus::LocalUnreachRemote };
        let requests = self.close(number).into_iter();
        requests.map(|request| Ended::Failed(Box::new(request), status)).collect()
    }

    /// Queues a connection for a turn if it has packets to send, and sets its timer.
    fn update(&mut self, number: u64) {
        let Some(connection) = self.by_number.get_mut(&number) else {
            return;
        };
        if !connection.active && connection.has_work() {
            connection.active = true;
            self.active.push_back(number);
        }
        self.arm(number);
    }

    /// Sets the timer of a connection to the time of its next work.
    fn arm(&mut self, number: u64) {
        let Some(connection) = self.by_number.get_mut(&number) else {
            return;
        };
        let due = connection.next_due();
        if connection.armed != due {
            if let Some(before) = connection.armed {
                self.timers.remove(&(before, number));
            }
            if let Some(due) = due {
                self.timers.insert((due, number));
            }
            connection.armed = due;
        }
    }

    /// Closes a connection, and drops its messages; returns their work requests.
    pub(crate) fn close(&mut self, number: u64) -> Vec<Request> {
        let Some(connection) = self.by_number.remove(&number) else {
            return Vec::new();
        };
        self.in_flight -= connection.in_flight();
        let (qp, to) = (connection.qp, connection.to);
        self.by_flow.remove(&(qp, to));
        // It stays in `active` until its turn, because a search takes longer with more connections.
        if self.active.len() > 2 * MAX_CONNECTIONS {
            let first = self.active.front().copied();
            self.active.retain(|number| self.by_number.contains_key(number));
            if self.active.front().copied() != first {
                self.sent = 0;
            }
        }
        if let Some(due) = connection.armed {
            self.timers.remove(&(due, number));
        }
        let mut requests = Vec::new();
        for content in connection.into_contents() {
            self.forget_message(qp, to, &content);
            if let Content::Request(request) = content {
                requests.push(*request);
            }
        }
        requests
    }

    /// Closes all connections to a peer that is gone; returns the results of their work requests.
    pub(crate) fn forget(&mut self, peer: PortId) -> Vec<Ended> {
        let numbers = self.numbers(|connection| connection.to == peer);
        let numbers = numbers.into_iter();
        let ended = numbers.flat_map(|number| self.give_up(number)).collect();
        self.shortest.remove(&peer);
        ended
    }

    /// Closes unused connections, and those of queue pairs that were reset, failed or destroyed and have no failures to send.
    pub(crate) fn sweep(&mut self, now: Duration, is_current: impl Fn(QpId) -> bool) {
        let unused = self.numbers(|connection| {
            let idle = connection.is_idle() && now.saturating_sub(connection.last_used) > IDLE;
            idle || !is_current(connection.qp) && (connection.is_idle() || !connection.has_ended())
        });
        for number in unused {
            self.close(number);
        }
        self.shortest.retain(|_, shortest| shortest.is_some_and(|shortest| !shortest.is_old(now)));
    }

    fn numbers(&self, which: impl Fn(&Connection) -> bool) -> Vec<u64> {
        let those = self.by_number.iter().filter(|(_, it)| which(it));
        those.map(|(number, _)| *number).collect()
    }
}

/// Decrements a count, and removes it at 0.
fn count_less<K: Eq + Hash>(counts: &mut HashMap<K, usize>, of: K) {
    if let Entry::Occupied(mut count) = counts.entry(of) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests;
