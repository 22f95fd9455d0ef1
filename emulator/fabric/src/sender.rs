// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sending end of a connection: messages, and packets in flight.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use efa_hw::io::CompStatus;
use efa_model::{Operation, QpId, Request};

use crate::{
    cluster::PortId,
    packet::{ConnectionId, Data, Header, Reader, Subject},
    window::{MOST, Window},
};

/// How often a packet is sent again before the peer is given up.
pub(crate) const MAX_RETRIES: u32 = 24;

/// Longest time between two tries.
const MAX_TIMEOUT: Duration = Duration::from_millis(100);

/// Losses one after the other that make a connection avoid a path.
const PATH_LOSSES: u8 = 3;

/// How long a connection avoids a path.
const PATH_REST: Duration = Duration::from_millis(200);

/// How long a packet waits that the receiver was not ready for.
pub(crate) const NOT_READY_WAIT: Duration = Duration::from_micros(500);

/// The value of `rnr_retry` that means for ever.
const RETRY_FOR_EVER: u8 = 7;

/// The sending end of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) from: PortId,
    pub(crate) to: PortId,
    pub(crate) qp: QpId,
    id: ConnectionId,
    /// Address of its device.
    address: [u8; 16],
    messages: BTreeMap<u64, Message>,
    next_message: u64,
    /// Messages of which not all was sent.
    unsent: VecDeque<u64>,
    in_flight: BTreeMap<u64, InFlight>,
    next_psn: u64,
    /// Packets to send again.
    again: VecDeque<u64>,
    window: Window,
    paths: Vec<Path>,
    next_path: u16,
    /// Whether it waits for its turn to send.
    pub(crate) active: bool,
    pub(crate) last_used: Duration,
}

/// A message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) content: Content,
    /// Bytes in packets.
    length: u32,
    /// Bytes that are in packets already.
    cut: u32,
    /// Whether its last packet is cut, which an empty message has too.
    done: bool,
    /// Packets that are not acknowledged.
    waiting: u32,
    not_ready: u8,
}

/// What a message is about.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A work request.
    Request(Request),
    /// What a peer reads.
    Response {
        reader: Reader,
        /// Remote key and address.
        memory: (u32, u64),
    },
    /// Why it can't read it.
    Failure {
        reader: Reader,
        /// How its request ends.
        status: CompStatus,
    },
}

/// A packet that is not acknowledged.
#[derive(Debug)]
struct InFlight {
    message: u64,
    offset: u32,
    length: u32,
    path: u16,
    sent: Duration,
    due: Duration,
    retries: u32,
    /// Whether it waits to be sent again.
    queued: bool,
}

/// What a connection knows of a path.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    losses: u8,
    rests_until: Duration,
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) data: Data,
    pub(crate) path: u16,
    pub(crate) again: bool,
}

/// What became of messages.
#[derive(Debug)]
pub(crate) enum Progress {
    None,
    /// All of it is acknowledged.
    Sent(Box<Message>),
    /// The receiver was not ready too often.
    NotReady(u64),
}

/// What a timer found.
#[derive(Debug, Default)]
pub(crate) struct Expired {
    pub(crate) timeouts: u32,
    pub(crate) impaired: u32,
    pub(crate) given_up: Option<u64>,
}

impl Sender {
    pub(crate) fn new(
        id: ConnectionId,
        (from, address): (PortId, [u8; 16]),
        to: PortId,
        qp: QpId,
        first_path: u16,
    ) -> Self {
        Self {
            from,
            to,
            qp,
            id,
            address,
            messages: BTreeMap::new(),
            next_message: 0,
            unsent: VecDeque::new(),
            in_flight: BTreeMap::new(),
            next_psn: 0,
            again: VecDeque::new(),
            window: Window::new(),
            paths: Vec::new(),
            next_path: first_path,
            active: false,
            last_used: Duration::ZERO,
        }
    }

    /// Adds a message of so many bytes in packets.
    pub(crate) fn push(&mut self, content: Content, length: u32) {
        let number = self.next_message;
        self.next_message += 1;
        self.messages.insert(
            number,
            Message {
                content,
                length,
                cut: 0,
                done: false,
                waiting: 0,
                not_ready: 0,
            },
        );
        self.unsent.push_back(number);
    }

    pub(crate) fn message(&self, number: u64) -> Option<&Message> {
        self.messages.get(&number)
    }

    /// What each part of a message says of it.
    pub(crate) fn header(&self, message: &Message) -> Header {
        let subject = match &message.content {
            Content::Request(request) => {
                let (qp, immediate) = (request.peer_qp, request.immediate);
                let (memory, length) = (request.remote, request.length);
                match request.operation {
                    Operation::Send => Subject::Send { qp, immediate },
                    Operation::RdmaWrite => Subject::Write {
                        qp,
                        memory,
                        length,
                        immediate,
                    },
                    Operation::RdmaRead => Subject::Read {
                        qp,
                        memory,
                        length,
                        reader: Reader {
                            qp: request.qp,
                            request: request.id,
                        },
                    },
                }
            }
            Content::Response { reader, .. } => Subject::Response { reader: *reader },
            Content::Failure { reader, status } => Subject::Failure {
                reader: *reader,
                status: (*status).into(),
            },
        };
        Header {
            peer: self.address,
            peer_qp: self.qp.number,
            subject,
        }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    /// Takes the next packet to send, if there is one and the window allows it.
    pub(crate) fn next(&mut self, now: Duration, mtu: u32, limits: Limits) -> Option<Outgoing> {
        while let Some(psn) = self.again.pop_front() {
            let path = self.choose_path(now, limits);
            let timeout = self.window.timeout();
            let Some(packet) = self.in_flight.get_mut(&psn) else {
                continue;
            };
            packet.queued = false;
            packet.path = path;
            packet.sent = now;
            packet.due = now + (timeout * 2_u32.pow(packet.retries.min(6))).min(MAX_TIMEOUT);
            return Some(Outgoing {
                again: true,
                ..outgoing(self.id, psn, packet)
            });
        }
        // CAST: a small number.
        let most = if limits.has_rate {
            self.window.packets()
        } else {
            MOST as usize
        };
        if self.in_flight.len() >= most {
            return None;
        }
        let number = *self.unsent.front()?;
        let path = self.choose_path(now, limits);
        let Some(message) = self.messages.get_mut(&number) else {
            self.unsent.pop_front();
            return self.next(now, mtu, limits);
        };
        let (offset, length) = (message.cut, (message.length - message.cut).min(mtu.max(1)));
        message.cut += length;
        message.waiting += 1;
        message.done = message.cut == message.length;
        if message.done {
            self.unsent.pop_front();
        }
        let psn = self.next_psn;
        self.next_psn += 1;
        let packet = InFlight {
            message: number,
            offset,
            length,
            path,
            sent: now,
            due: now + self.window.timeout(),
            retries: 0,
            queued: false,
        };
        let outgoing = outgoing(self.id, psn, &packet);
        self.in_flight.insert(psn, packet);
        self.last_used = now;
        Some(outgoing)
    }

    /// Chooses the path of a packet: one after the other of those that do not rest.
    fn choose_path(&mut self, now: Duration, limits: Limits) -> u16 {
        self.paths.resize(limits.paths.into(), Path::default());
        if !limits.multipath {
            return self.next_path % limits.paths.max(1);
        }
        for _ in 0..limits.paths {
            self.next_path = (self.next_path + 1) % limits.paths;
            if self.paths[usize::from(self.next_path)].rests_until <= now {
                break;
            }
        }
        self.next_path
    }

    /// A packet was acknowledged.
    pub(crate) fn taken(&mut self, now: Duration, psn: u64) -> Progress {
        let Some(packet) = self.in_flight.remove(&psn) else {
            return Progress::None;
        };
        self.last_used = now;
        // It can't be told which of several tries was acknowledged.
        if packet.retries == 0 {
            self.window
                .acknowledged(now, now.saturating_sub(packet.sent));
        }
        if let Some(path) = self.paths.get_mut(usize::from(packet.path)) {
            *path = Path::default();
        }
        let Some(message) = self.messages.get_mut(&packet.message) else {
            return Progress::None;
        };
        message.waiting -= 1;
        if message.waiting > 0 || !message.done {
            return Progress::None;
        }
        match self.messages.remove(&packet.message) {
            Some(message) => Progress::Sent(Box::new(message)),
            None => Progress::None,
        }
    }

    /// The receiver was not ready for a packet.
    pub(crate) fn not_ready(&mut self, now: Duration, psn: u64) -> Progress {
        let Some(packet) = self.in_flight.get_mut(&psn) else {
            return Progress::None;
        };
        let Some(message) = self.messages.get_mut(&packet.message) else {
            return Progress::None;
        };
        let most = match &message.content {
            Content::Request(request) => request.rnr_retry,
            _ => RETRY_FOR_EVER,
        };
        if most != RETRY_FOR_EVER {
            if message.not_ready == most {
                return Progress::NotReady(packet.message);
            }
            message.not_ready += 1;
        }
        packet.retries = 0;
        packet.due = now + NOT_READY_WAIT;
        packet.queued = false;
        // It did arrive; the timer sends it again.
        packet.sent = Duration::MAX;
        Progress::None
    }

    /// The message of a packet.
    pub(crate) fn message_of(&self, psn: u64) -> Option<u64> {
        self.in_flight.get(&psn).map(|packet| packet.message)
    }

    /// Gives a message up.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Message> {
        self.in_flight.retain(|_, packet| packet.message != number);
        self.unsent.retain(|unsent| *unsent != number);
        self.messages.remove(&number)
    }

    /// When the next packet is to be sent again.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.in_flight
            .values()
            .filter(|packet| !packet.queued)
            .map(|packet| packet.due)
            .min()
    }

    /// When a packet is to be sent again.
    pub(crate) fn next_due_of(&self, psn: u64) -> Option<Duration> {
        self.in_flight.get(&psn).map(|packet| packet.due)
    }

    /// Finds what is to be sent again.
    pub(crate) fn expire(&mut self, now: Duration) -> Expired {
        let mut expired = Expired::default();
        let mut lost = false;
        for (psn, packet) in &mut self.in_flight {
            if packet.queued || packet.due > now {
                continue;
            }
            // One that the receiver was not ready for was not lost.
            if packet.sent != Duration::MAX {
                lost = true;
                expired.timeouts += 1;
                packet.retries += 1;
                if packet.retries > MAX_RETRIES {
                    expired.given_up = Some(packet.message);
                }
                if let Some(path) = self.paths.get_mut(usize::from(packet.path)) {
                    path.losses = path.losses.saturating_add(1);
                    if path.losses == PATH_LOSSES {
                        expired.impaired += 1;
                    }
                    if path.losses >= PATH_LOSSES {
                        path.rests_until = now + PATH_REST;
                    }
                }
            }
            packet.queued = true;
            self.again.push_back(*psn);
        }
        if lost {
            self.window.lost(now);
        }
        expired
    }

    /// Whether there is something to send.
    pub(crate) fn has_work(&self) -> bool {
        !self.unsent.is_empty() || !self.again.is_empty()
    }
}

/// What limits a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) paths: u16,
    pub(crate) multipath: bool,
    pub(crate) has_rate: bool,
}

fn outgoing(connection: ConnectionId, psn: u64, packet: &InFlight) -> Outgoing {
    Outgoing {
        data: Data {
            connection,
            psn,
            message: packet.message,
            offset: packet.offset,
            length: packet.length,
        },
        path: packet.path,
        again: false,
    }
}
