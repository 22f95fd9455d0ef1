// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! TCP with equal-cost multipath on the same network, for comparison with SRD.
//!
//! It models what matters here: slow start and congestion avoidance, selective acknowledgements, fast recovery, and
//! retransmission timeouts (RFC 5681, 6298, 6675). Connections are already established. Each keeps to one random path, as if
//! chosen by a hash of its addresses and ports. Sequence numbers count packets. A host sends the packets of its connections in
//! turn when its link is free, like fair queueing, so the host drops none. Each packet is acknowledged at once.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, VecDeque},
    time::Duration,
};

use efa_fabric::{Load, Network, Settings};
use fastrand::Rng;

use crate::traffic::{Arrived, Flow};

/// Maximum payload of a packet in bytes, as for the devices.
pub(crate) const MSS: u32 = 8928;

/// Initial window in packets, RFC 6928.
const INITIAL_WINDOW: f64 = 10.0;

/// Minimum window after a loss, in packets.
const LEAST_WINDOW: f64 = 2.0;

/// Number of packets after a missing one whose arrival shows that it is lost.
const DUPLICATES: u64 = 3;

/// Size of the receiver's buffer in packets: 16 MiB, well above the capacity of the network.
const MOST: u64 = 1880;

/// Minimum timeout. Linux uses 200 ms by default, which would make TCP even slower. This value reproduces the completion times
/// that SRD's authors reportedly measured. Their paper was not available.
const MIN_TIMEOUT: Duration = Duration::from_millis(50);

/// Timeout before the first round trip, and maximum timeout.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// A packet on the network.
#[derive(Clone, Copy, Debug)]
struct Segment {
    flow: usize,
    sequence: u64,
    sent: Duration,
    /// In an acknowledgement of this packet: the number of packets received in order.
    acknowledges: Option<u64>,
}

/// State of a packet, as known to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flying,
    Lost,
    Resent,
    Received,
}

/// The sending end of a connection.
#[derive(Debug)]
struct Sender {
    flow: Flow,
    path: u16,
    /// Total number of packets.
    total: u64,
    /// The first packet that is not acknowledged.
    first: u64,
    /// States of the packets from `first` on.
    packets: VecDeque<State>,
    /// Number of them in flight.
    flying: u64,
    lost: BTreeSet<u64>,
    /// The number after the highest packet that was received.
    highest: u64,
    /// Packets below this number were checked for losses.
    looked: u64,
    window: f64,
    threshold: f64,
    /// Recovery from a loss, until all packets sent before its detection are acknowledged.
    recovery: Option<Recovery>,
    smoothed: Option<Duration>,
    variation: Duration,
    backoff: u32,
    due: Option<Duration>,
    /// Time of the event that checks `due`.
    armed: Option<Duration>,
    /// Whether the connection waits for its turn to send.
    queued: bool,
}

#[derive(Clone, Copy, Debug)]
struct Recovery {
    end: u64,
    timed_out: bool,
}

/// The receiving end of a connection.
#[derive(Debug, Default)]
struct Receiver {
    next: u64,
    above: BTreeSet<u64>,
}

/// A host: the turns of its connections, and the time at which its link is free.
#[derive(Debug, Default)]
struct Host {
    turns: VecDeque<usize>,
    free: Duration,
}

/// Event other than the arrival of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Free(usize),
    TimeOut(usize),
}

/// Connections on a network.
pub(crate) struct Tcp {
    network: Network<Segment>,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    hosts: Vec<Host>,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    /// Numbers of timeouts and of retransmitted packets.
    pub(crate) timeouts: u64,
    pub(crate) retransmissions: u64,
}

impl Tcp {
    /// Creates a connection for each flow.
    pub(crate) fn new(settings: &Settings, seed: u64, ports: usize, flows: &[Flow]) -> Self {
        let network = Network::new(settings.clone(), seed);
        network.set_ports(ports);
        let mut random = Rng::with_seed(seed);
        let sender = |flow: &Flow| Sender {
            flow: *flow,
            path: random.u16(..settings.paths),
            total: u64::from(flow.length.div_ceil(MSS)) * flow.messages,
            first: 0,
            packets: VecDeque::new(),
            flying: 0,
            lost: BTreeSet::new(),
            highest: 0,
            looked: 0,
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            recovery: None,
            smoothed: None,
            variation: Duration::ZERO,
            backoff: 0,
            due: None,
            armed: None,
            queued: false,
        };
        Self {
            network,
            senders: flows.iter().map(sender).collect(),
            receivers: flows.iter().map(|_| Receiver::default()).collect(),
            hosts: (0..ports).map(|_| Host::default()).collect(),
            events: BinaryHeap::new(),
            timeouts: 0,
            retransmissions: 0,
        }
    }

    /// Lets all flows send until all packets have arrived, or `time` has passed. Returns the arrivals.
    pub(crate) fn run(&mut self, time: Duration) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        let mut left = self.senders.len();
        let mut now = Duration::ZERO;
        for flow in 0..self.senders.len() {
            self.queue(flow);
        }
        for host in 0..self.hosts.len() {
            self.transmit(now, host);
        }
        while left > 0 {
            let event = self.events.peek().map(|Reverse((at, _))| *at);
            let due = event.into_iter().chain(self.network.next_due()).min();
            now = due.expect("an event is pending");
            if now > time {
                break;
            }
            while let Some(segment) = self.network.receive(now) {
                match segment.acknowledges {
                    None => self.receive(now, segment),
                    Some(next) => {
                        let sender = &mut self.senders[segment.flow];
                        let bytes = sender.acknowledged(now, &segment, next);
                        if bytes > 0 {
                            let flow = segment.flow;
                            arrived.push(Arrived {
                                at: now,
                                flow,
                                bytes,
                            });
                        }
                        left -= usize::from(bytes > 0 && sender.first == sender.total);
                        self.arm(segment.flow);
                        self.queue(segment.flow);
                        self.transmit(now, self.senders[segment.flow].flow.from);
                    }
                }
            }
            while let Some(Reverse((at, event))) = self.events.peek().copied() {
                if at > now {
                    break;
                }
                self.events.pop();
                let host = match event {
                    Event::Free(host) => host,
                    Event::TimeOut(flow) => {
                        let sender = &mut self.senders[flow];
                        sender.armed = None;
                        if sender.due.is_some_and(|due| due <= now) {
                            sender.time_out(now);
                            self.timeouts += 1;
                        }
                        self.arm(flow);
                        self.queue(flow);
                        self.senders[flow].flow.from
                    }
                };
                self.transmit(now, host);
            }
        }
        arrived
    }

    /// Receives a packet with payload, and acknowledges it.
    fn receive(&mut self, now: Duration, segment: Segment) {
        let receiver = &mut self.receivers[segment.flow];
        if segment.sequence >= receiver.next {
            receiver.above.insert(segment.sequence);
            while receiver.above.remove(&receiver.next) {
                receiver.next += 1;
            }
        }
        let Sender { flow, path, .. } = self.senders[segment.flow];
        let ack = Segment {
            acknowledges: Some(receiver.next),
            ..segment
        };
        self.send(now, (flow.to, flow.from), path, 0, ack);
    }

    /// Queues a connection for a turn, if it has packets to send.
    fn queue(&mut self, flow: usize) {
        let sender = &mut self.senders[flow];
        if !sender.queued && sender.may_send() {
            sender.queued = true;
            self.hosts[sender.flow.from].turns.push_back(flow);
        }
    }

    /// Sends the next packet of a host, if its link is free.
    fn transmit(&mut self, now: Duration, host: usize) {
        while self.hosts[host].free <= now {
            let Some(flow) = self.hosts[host].turns.pop_front() else {
                return;
            };
            let sender = &mut self.senders[flow];
            sender.queued = false;
            self.retransmissions += u64::from(!sender.lost.is_empty());
            if let Some((sequence, length)) = sender.next(now) {
                let segment = Segment {
                    flow,
                    sequence,
                    sent: now,
                    acknowledges: None,
                };
                let (ends, path) = ((sender.flow.from, sender.flow.to), sender.path);
                let left = self.send(now, ends, path, length, segment);
                self.hosts[host].free = left;
                self.events.push(Reverse((left, Event::Free(host))));
                self.arm(flow);
            }
            self.queue(flow);
        }
    }

    fn send(
        &self,
        now: Duration,
        ends: (usize, usize),
        path: u16,
        bytes: u32,
        segment: Segment,
    ) -> Duration {
        let load = Load { packets: 1, bytes };
        let sent = self.network.send(now, ends, path, load, segment);
        sent.map_or(now, |sent| sent.left)
    }

    /// Queues the timeout event of a connection.
    fn arm(&mut self, flow: usize) {
        let sender = &mut self.senders[flow];
        if let Some(due) = sender.due {
            if sender.armed.is_none_or(|armed| due < armed) {
                sender.armed = Some(due);
                self.events.push(Reverse((due, Event::TimeOut(flow))));
            }
        }
    }
}

impl Sender {
    /// Returns the number after that of the last packet sent.
    fn end(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    fn state(&mut self, sequence: u64) -> Option<&mut State> {
        // CAST: below `MOST`.
        self.packets
            .get_mut(sequence.checked_sub(self.first)? as usize)
    }

    fn may_send(&self) -> bool {
        let has_work =
            !self.lost.is_empty() || self.end() < self.total && (self.packets.len() as u64) < MOST;
        // CAST: it is not below 1.
        has_work && self.flying < self.window as u64
    }

    /// Takes the next packet to send; returns its number and its bytes of payload.
    fn next(&mut self, now: Duration) -> Option<(u64, u32)> {
        if !self.may_send() {
            return None;
        }
        let sequence = match self.lost.pop_first() {
            Some(sequence) => {
                *self.state(sequence)? = State::Resent;
                sequence
            }
            None => {
                self.packets.push_back(State::Flying);
                self.end() - 1
            }
        };
        self.flying += 1;
        if self.due.is_none() {
            self.due = Some(now + self.timeout());
        }
        Some((sequence, self.length(sequence)))
    }

    /// Returns the bytes of payload of a packet. The last packet of a message has the remainder.
    fn length(&self, sequence: u64) -> u32 {
        let of_message = u64::from(self.flow.length.div_ceil(MSS));
        if sequence % of_message == of_message - 1 {
            self.flow.length - (of_message as u32 - 1) * MSS
        } else {
            MSS
        }
    }

    fn timeout(&self) -> Duration {
        let timeout = self.smoothed.map_or(INITIAL_TIMEOUT, |smoothed| {
            (smoothed + 4 * self.variation).max(MIN_TIMEOUT)
        });
        (timeout * 2_u32.pow(self.backoff.min(10))).min(MAX_TIMEOUT)
    }

    /// Processes the acknowledgement of a packet, and of all before `next`. Returns the bytes that newly arrived in order.
    fn acknowledged(&mut self, now: Duration, ack: &Segment, next: u64) -> u64 {
        self.measure(now - ack.sent);
        self.mark(ack.sequence);
        let mut bytes = 0;
        let mut packets = 0;
        while self.first < next && self.first < self.end() {
            self.mark(self.first);
            bytes += u64::from(self.length(self.first));
            self.packets.pop_front();
            self.first += 1;
            packets += 1;
        }
        self.highest = self.highest.max(ack.sequence + 1);
        self.find_losses();
        if packets > 0 {
            self.backoff = 0;
            self.due = (!self.packets.is_empty()).then(|| now + self.timeout());
        }
        let recovers = self.recovery;
        if recovers.is_some_and(|recovery| self.first >= recovery.end) {
            self.recovery = None;
        } else if recovers.is_none() && !self.lost.is_empty() {
            self.recovery = Some(Recovery {
                end: self.end(),
                timed_out: false,
            });
            self.threshold = (self.window / 2.0).max(LEAST_WINDOW);
            self.window = self.threshold;
        }
        // In fast recovery, the window does not change.
        if recovers.is_none_or(|recovery| recovery.timed_out) && self.lost.is_empty() {
            let step = match self.window < self.threshold {
                true => f64::from(packets),
                false => f64::from(packets) / self.window,
            };
            self.window = (self.window + step).min(MOST as f64);
        }
        bytes
    }

    /// Marks a packet as received.
    fn mark(&mut self, sequence: u64) {
        let Some(state) = self.state(sequence) else {
            return;
        };
        let before = std::mem::replace(state, State::Received);
        match before {
            State::Flying | State::Resent => self.flying -= 1,
            State::Lost => {
                self.lost.remove(&sequence);
            }
            State::Received => {}
        }
    }

    /// Finds lost packets: those that were sent before others that were received.
    fn find_losses(&mut self) {
        let end = self.highest.saturating_sub(DUPLICATES);
        for sequence in self.looked.max(self.first)..end {
            if self.state(sequence).copied() == Some(State::Flying) {
                self.lose(sequence);
            }
        }
        self.looked = self.looked.max(end);
    }

    fn lose(&mut self, sequence: u64) {
        if let Some(state) = self.state(sequence) {
            *state = State::Lost;
            self.flying -= 1;
            self.lost.insert(sequence);
        }
    }

    /// Handles a timeout: all packets that were not received are sent again, at first slowly.
    fn time_out(&mut self, now: Duration) {
        let again = self.recovery.is_some_and(|recovery| recovery.timed_out);
        if !again {
            self.threshold = (self.window / 2.0).max(LEAST_WINDOW);
        }
        self.window = 1.0;
        for sequence in self.first..self.end() {
            let state = self.state(sequence).copied();
            if matches!(state, Some(State::Flying | State::Resent)) {
                self.lose(sequence);
            }
        }
        self.recovery = Some(Recovery {
            end: self.end(),
            timed_out: true,
        });
        self.backoff += 1;
        self.due = Some(now + self.timeout());
    }

    /// Updates the estimate of round trips. Each measurement is of one transmission, as with timestamps.
    fn measure(&mut self, round_trip: Duration) {
        match self.smoothed {
            None => {
                self.smoothed = Some(round_trip);
                self.variation = round_trip / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(round_trip)) / 4;
                self.smoothed = Some((smoothed * 7 + round_trip) / 8);
            }
        }
    }
}

#[cfg(test)]
mod tests;
