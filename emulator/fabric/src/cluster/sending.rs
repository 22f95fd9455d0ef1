// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sending half of SRD: connections, what they send and send again, and how their messages end.

use std::time::Duration;

use efa_hw::io::CompStatus;
use efa_model::{Operation, QpId, Request, TransportEvent};

use super::{
    Cluster, Guest, PortId, SWEEP,
    reads::{Read, reader},
};
use crate::{
    network::Load,
    packet::{Ack, Body, ConnectionId, Packet, Verdict},
    sender::{Content, Limits, Message, Progress, Sender},
};

/// Packets that a connection sends before others have their turn.
const TURN: usize = 4;

/// Packets of a message that are moved as one where each would arrive at once and as it was sent.
const TOGETHER: u32 = 128;

impl<G: Guest> Cluster<G> {
    /// Starts a work request of SRD.
    pub(super) fn start(&mut self, now: Duration, from: PortId, request: Request) {
        let Some(connection) = self.connection(now, from, request.qp, request.peer) else {
            self.finish(from, &request, CompStatus::LocalUnreachRemote);
            return;
        };
        let mut length = request.length;
        if request.operation == Operation::RdmaRead {
            length = 0;
            let read = Read {
                request: request.clone(),
                received: 0,
                progress: now,
            };
            self.reads.insert((from, reader(&request)), read);
        }
        self.push(connection, Content::Request(request), length);
    }

    /// The connection of a queue pair to a peer.
    pub(super) fn connection(
        &mut self,
        now: Duration,
        from: PortId,
        qp: QpId,
        peer: [u8; 16],
    ) -> Option<u64> {
        let flow = (from, qp, peer);
        if let Some(connection) = self.by_flow.get(&flow) {
            return Some(*connection);
        }
        let to = self.find(peer)?;
        let connection = self.next_connection;
        self.next_connection += 1;
        // CAST: a number below that of the paths.
        let paths = u32::from(self.settings().paths);
        let first_path = self.network.below(paths) as u16;
        let id = ConnectionId {
            program: self.program,
            number: connection,
        };
        let own = (from, self.address(from));
        let mut sender = Sender::new(id, own, to, qp, first_path);
        sender.last_used = now;
        self.senders.insert(connection, sender);
        self.by_flow.insert(flow, connection);
        self.sweep.get_or_insert(now + SWEEP);
        Some(connection)
    }

    pub(super) fn push(&mut self, connection: u64, content: Content, length: u32) {
        if let Some(sender) = self.senders.get_mut(&connection) {
            sender.push(content, length);
            self.activate(connection);
        }
    }

    /// Gives a connection a turn to send, if it has something to send.
    fn activate(&mut self, connection: u64) {
        if let Some(sender) = self.senders.get_mut(&connection) {
            if !sender.active && sender.has_work() {
                sender.active = true;
                self.active.push_back(connection);
            }
        }
    }

    /// Lets a connection send for one turn.
    pub(super) fn transmit(&mut self, now: Duration, connection: u64) {
        let settings = self.network.settings();
        let limits = Limits {
            paths: settings.paths,
            multipath: settings.multipath,
            has_rate: settings.has_rate(),
        };
        let ideal = settings.is_ideal();
        let Some(sender) = self.senders.get_mut(&connection) else {
            return;
        };
        sender.active = false;
        let (from, to, qp) = (sender.from, sender.to, sender.qp);
        if !self.ports[from.0].device.is_current(qp) {
            self.close(connection);
            return;
        }
        let mtu = self.ports[from.0].device.mtu();
        let together = if ideal && self.remote(to).is_none() {
            TOGETHER
        } else {
            1
        };
        for turn in 1..=TURN {
            let Some(sender) = self.senders.get_mut(&connection) else {
                return;
            };
            let Some(packet) = sender.next(now, mtu.saturating_mul(together), limits) else {
                break;
            };
            let due = sender.next_due_of(packet.data.psn);
            self.timer = [self.timer, due].into_iter().flatten().min();
            let bytes = packet.data.length;
            let device = &mut self.ports[from.0].device;
            let packets = device.packets(bytes);
            device.count(TransportEvent::Sent(bytes));
            if packet.again {
                device.count(TransportEvent::SentAgain(bytes));
            }
            let message = packet.data.message;
            let packet = Packet {
                from,
                to,
                path: packet.path,
                body: Body::Data(packet.data),
            };
            let sent = self.network.send(
                now,
                from.0,
                to.0,
                packet.path,
                Load { packets, bytes },
                packet,
            );
            if sent.is_err() {
                self.fail(now, connection, message, CompStatus::LocalUnreachRemote);
            }
            if turn == TURN {
                self.activate(connection);
            }
        }
    }

    /// Does what the answer to a packet asks for.
    pub(super) fn acknowledge(&mut self, now: Duration, port: PortId, ack: Ack) {
        let connection = ack.connection.number;
        let sender = self.senders.get_mut(&connection);
        let Some(sender) =
            sender.filter(|sender| sender.from == port && ack.connection.program == self.program)
        else {
            return;
        };
        match ack.verdict {
            Verdict::Taken => {
                let qp = sender.qp;
                if let Progress::Sent(message) = sender.taken(now, ack.psn) {
                    self.sent(port, qp, *message);
                }
            }
            Verdict::NotReady => match sender.not_ready(now, ack.psn) {
                Progress::NotReady(message) => {
                    self.fail(now, connection, message, CompStatus::RemoteRnr);
                }
                _ => {
                    let due = sender.next_due_of(ack.psn);
                    self.timer = [self.timer, due].into_iter().flatten().min();
                }
            },
            Verdict::Failed(status) => {
                if let Some(message) = sender.message_of(ack.psn) {
                    let status = CompStatus::try_from(status).unwrap_or(CompStatus::RemoteAbort);
                    self.fail(now, connection, message, status);
                }
            }
        }
        self.activate(connection);
    }

    /// All of a message is acknowledged.
    pub(super) fn sent(&mut self, port: PortId, qp: QpId, message: Message) {
        let request = match message.content {
            Content::Request(request) => request,
            Content::Response { .. } => {
                self.served(port, qp);
                return;
            }
            Content::Failure { .. } => return,
        };
        // A read ends when all was read.
        if request.operation == Operation::RdmaRead {
            if request.length > 0 {
                return;
            }
            self.reads.remove(&(port, reader(&request)));
        }
        self.finish(port, &request, CompStatus::Ok);
    }

    /// Gives a message up.
    pub(super) fn fail(
        &mut self,
        now: Duration,
        connection: u64,
        message: u64,
        status: CompStatus,
    ) {
        let Some(sender) = self.senders.get_mut(&connection) else {
            return;
        };
        let port = sender.from;
        let Some(message) = sender.remove(message) else {
            return;
        };
        sender.last_used = now;
        match message.content {
            Content::Request(request) => {
                self.reads.remove(&(port, reader(&request)));
                self.finish(port, &request, status);
            }
            Content::Response { reader, .. } => {
                self.push(connection, Content::Failure { reader, status }, 0);
            }
            Content::Failure { .. } => {}
        }
    }

    /// Finds what is to be sent again.
    pub(super) fn expire(&mut self, now: Duration) {
        let connections: Vec<_> = self
            .senders
            .iter()
            .filter(|(_, sender)| sender.next_due().is_some_and(|due| due <= now))
            .map(|(connection, _)| *connection)
            .collect();
        for connection in connections {
            let Some(sender) = self.senders.get_mut(&connection) else {
                continue;
            };
            let expired = sender.expire(now);
            let device = &mut self.ports[sender.from.0].device;
            for _ in 0..expired.timeouts {
                device.count(TransportEvent::TimedOut);
            }
            for _ in 0..expired.impaired {
                device.count(TransportEvent::Impaired);
            }
            if let Some(message) = expired.given_up {
                device.count(TransportEvent::Unresponsive);
                self.fail(now, connection, message, CompStatus::LocalUnrespRemote);
            }
            self.activate(connection);
        }
        self.timer = self.senders.values().filter_map(Sender::next_due).min();
    }

    /// Forgets a connection, with all that was to be sent over it.
    pub(super) fn close(&mut self, connection: u64) {
        self.senders.remove(&connection);
        self.by_flow.retain(|_, other| *other != connection);
    }
}
