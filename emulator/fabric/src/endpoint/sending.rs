// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sending half of an endpoint: from the work requests that its device fetches to packets, and from acknowledgements to
//! completions.

use std::time::Duration;

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::{Fetched, Operation, Payload as Gathered, QpId, Request, TransportEvent};

use super::{State, batch::Batch, placement::Payload};
use crate::{
    capture::{self, Message},
    memory::{Access, Guest, Memory},
    network::{Load, Network},
    packet::{Ack, Body, Data, Datagram, Header, Origin, Packet, PortId, Reader},
    schedule::Woken,
    srd::{Content, Ended, Limits, reader},
    wire::Wire,
};

/// Number of packets of a message that are moved as one between devices of this program on an ideal network.
pub(super) const PACKETS_AT_ONCE: u32 = 128;

/// Number of work requests that are fetched at a time.
const FETCH: u32 = 64;

/// Limit on datagrams that wait for the link. At the limit, no work request is fetched.
const MAX_DEPARTURES: usize = 64;

/// Overhead of the allocator per allocation in bytes, including rounding.
const ALLOCATION: usize = 32;

/// Bytes that a datagram in flight takes in addition to its payload, in the network and the program.
const DATAGRAM_OVERHEAD: usize = {
    const BYTES: usize = 512;
    // The packet in the network, the datagram, and its payload.
    assert!(Network::<Packet>::KEPT + size_of::<Datagram>() + 2 * ALLOCATION <= BYTES);
    BYTES
};

/// A part of a message, located at its sender.
#[derive(Debug)]
pub(crate) struct Located<M> {
    pub(crate) header: Header,
    pub(crate) payload: Payload<M>,
}

/// The description of a part of a message, and its payload or the status with which the message fails.
type Found<M> = (Header, Result<Payload<M>, CompStatus>);

impl<G: Guest> State<G> {
    /// Lets the device fetch work requests, and starts them. Those that need no packets are added to the `batch`, whose packets
    /// would be about `budget`. Returns their number, and whether no more can be fetched for now.
    pub(super) fn fetch(
        &mut self,
        now: Duration,
        wire: &Wire,
        budget: u32,
        batch: &mut Batch<G::Memory>,
        woken: &mut Woken,
    ) -> (u32, bool) {
        let is_ideal = wire.network.settings().is_ideal();
        let mut packets = 0;
        for _ in 0..FETCH {
            if self.departures.len() >= MAX_DEPARTURES {
                return (packets, true);
            }
            let request = match self.device.fetch(&mut self.guest) {
                Fetched::Idle => return (packets, true),
                Fetched::Internal => continue,
                Fetched::Request(request) => request,
            };
            if request.transport == QpType::Ud {
                self.send_datagram(now, wire, request, woken);
                continue;
            }
            let Some(to) = wire.find(now, request.peer) else {
                self.complete(&request, CompStatus::LocalUnreachRemote);
                continue;
            };
            let length = request.length;
            let rest = match is_ideal {
                true => self.prepare(wire, to, request, batch),
                false => Some(request),
            };
            match rest {
                Some(request) => self.start(now, wire, to, request, true),
                None => packets += self.device.packets(length),
            }
            if packets >= budget {
                return (packets, false);
            }
        }
        (packets, false)
    }

    /// Sends an unreliable datagram.
    fn send_datagram(&mut self, now: Duration, wire: &Wire, request: Box<Request>, woken: &mut Woken) {
        let payload = match self.gather(&request) {
            Ok(payload) => payload,
            Err(status) => return self.complete(&request, status),
        };
        self.device.count(TransportEvent::Sent(request.length));
        // A datagram to an unknown address, or without room, is dropped. The work request still succeeds.
        let room = self.datagrams.take(payload.len() + DATAGRAM_OVERHEAD);
        let (Some(to), Some(permit)) = (wire.find(now, request.peer), room) else {
            return self.complete(&request, CompStatus::Ok);
        };
        let datagram = Box::new(Datagram {
            peer: self.address,
            peer_qp: request.qp.number,
            qp: request.peer_qp,
            qkey: request.qkey,
            immediate: request.immediate,
            payload,
        });
        let load = Load { packets: 1, bytes: request.length };
        let packet = Packet { from: self.port, to, path: request.qp.number, body: Body::Datagram(datagram, permit) };
        match wire.send(now, packet, load, woken) {
            Ok(left) if left > now => self.departures.push_back((left, request)),
            _ => self.complete(&request, CompStatus::Ok),
        }
    }

    /// Completes the work requests of datagrams that have left.
    pub(super) fn depart(&mut self, now: Duration) {
        while self.departures.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, request)) = self.departures.pop_front() {
                self.complete(&request, CompStatus::Ok);
            }
        }
    }

    /// Reads the payload of a work request.
    fn gather(&mut self, request: &Request) -> Result<Vec<u8>, CompStatus> {
        self.segments.clear();
        match self.device.gather(request, 0, request.length, &mut self.segments)? {
            Gathered::Inline(bytes) => Ok(bytes.to_vec()),
            Gathered::Memory => {
                let memory = self.guest.memory(&self.segments, Access::Read);
                // CAST: 32 bits fit.
                let mut bytes = vec![0; request.length as usize];
                let read = memory.and_then(|memory| memory.read(&mut bytes));
                read.map_err(|_| CompStatus::LocalInvalidLkey)?;
                Ok(bytes)
            }
        }
    }

    /// Starts to send an SRD work request in packets, at once or when the receiver may be ready again.
    pub(super) fn start(&mut self, now: Duration, wire: &Wire, to: PortId, request: Box<Request>, is_ready: bool) {
        let Some(connection) = self.connection(now, wire, request.qp, to) else {
            return self.complete(&request, CompStatus::LocalUnreachRemote);
        };
        let mut length = request.length;
        if request.operation == Operation::RdmaRead {
            length = 0;
            self.reads.add(request.clone(), to);
        }
        if is_ready {
            let content = Content::Request(request);
            return self.connections.push(connection, content, length);
        }
        let mtu = self.device.mtu();
        let ended = self.connections.park(now, connection, request, mtu);
        self.end(now, ended);
    }

    /// Returns the connection of a queue pair to a peer, and opens it if necessary.
    pub(super) fn connection(&mut self, now: Duration, wire: &Wire, qp: QpId, to: PortId) -> Option<u64> {
        self.connections.open(now, qp, to, || {
            let paths = wire.network.settings().paths;
            // CAST: below the number of paths.
            wire.network.below(paths.into()) as u16
        })
    }

    /// Sends packets of the connections in turn; returns the number of packets.
    pub(super) fn transmit(&mut self, now: Duration, wire: &Wire, budget: u32, woken: &mut Woken) -> u32 {
        let settings = wire.network.settings();
        let ideal = settings.is_ideal();
        let mut used = 0;
        while used < budget && self.connections.has_work() {
            let Some((connection, qp, to)) = self.connections.turn() else {
                break;
            };
            if !self.device.is_current(qp) {
                if !self.device.is_alive() {
                    self.connections.close(connection);
                    continue;
                }
                if !self.connections.end(connection) {
                    continue;
                }
            }
            let together = if ideal && !wire.is_remote(to) { PACKETS_AT_ONCE } else { 1 };
            let limits = Limits {
                paths: settings.paths,
                multipath: settings.multipath,
                has_rate: settings.has_rate(),
                mtu: self.device.mtu().saturating_mul(together),
                silence: Duration::from_secs_f64(settings.silence_s),
            };
            let Some(outgoing) = self.connections.next(now, limits) else {
                continue;
            };
            let bytes = outgoing.data.length;
            let packets = self.device.packets(bytes);
            self.device.count(TransportEvent::Sent(bytes));
            if outgoing.again {
                self.device.count(TransportEvent::SentAgain(bytes));
            }
            used += packets.max(1);
            // A packet without a permit counts as lost.
            let Some(permit) = self.packets.take(1) else {
                continue;
            };
            let packet = Packet {
                from: self.port,
                to,
                path: outgoing.path,
                body: Body::Data(outgoing.data, Origin::Device(permit)),
            };
            if wire.is_tapped() {
                self.show(wire, &packet, &outgoing.data, outgoing.again);
            }
            let load = Load { packets, bytes };
            if wire.send(now, packet, load, woken).is_err() {
                self.fail(now, &outgoing.data, CompStatus::LocalUnreachRemote);
            }
        }
        used
    }

    /// Processes an acknowledgement.
    pub(crate) fn acknowledge(&mut self, now: Duration, from: PortId, ack: &Ack) {
        let ended = self.connections.acknowledge(now, from, ack);
        self.end(now, ended);
    }

    /// Queues unacknowledged packets for retransmission, or gives up their connection.
    pub(super) fn expire(&mut self, now: Duration) {
        for (expired, ended) in self.connections.expire(now) {
            for _ in 0..expired.timeouts {
                self.device.count(TransportEvent::TimedOut);
            }
            for _ in 0..expired.impaired {
                self.device.count(TransportEvent::Impaired);
            }
            if expired.gave_up {
                self.device.count(TransportEvent::Unresponsive);
            }
            for ended in ended {
                self.end(now, Some(ended));
            }
        }
    }

    /// Fails the message of a packet.
    pub(crate) fn fail(&mut self, now: Duration, data: &Data, status: CompStatus) {
        let ended = self.connections.fail(now, data.connection, data.message, status);
        self.end(now, ended);
    }

    pub(super) fn end(&mut self, now: Duration, ended: Option<Ended>) {
        match ended {
            None => {}
            Some(Ended::Served(qp)) => self.device.read_served(&mut self.guest, qp),
            Some(Ended::Failed(request, status)) => {
                self.reads.remove(reader(&request));
                self.complete(&request, status);
            }
            Some(Ended::Delivered(request)) if request.operation == Operation::RdmaRead => {
                // A read completes when all of its data has arrived.
                self.reads.heard(now, reader(&request));
                if request.length == 0 {
                    self.end_read(reader(&request), CompStatus::Ok);
                }
            }
            Some(Ended::Delivered(request)) => self.complete(&request, CompStatus::Ok),
        }
    }

    /// Ends a read, if it has not ended.
    pub(super) fn end_read(&mut self, reader: Reader, status: CompStatus) {
        if let Some(read) = self.reads.remove(reader) {
            self.complete(&read.request, status);
        }
    }

    /// Locates a part of a message, if the device still has it. If its payload is unavailable, the message fails.
    pub(crate) fn locate(&mut self, now: Duration, data: &Data) -> Option<Located<G::Memory>> {
        match self.find(data, false)? {
            (header, Ok(payload)) => Some(Located { header, payload }),
            (_, Err(status)) => {
                self.fail(now, data, status);
                None
            }
        }
    }

    /// Passes a part of a message that is about to leave to the observer, with the start of its current payload, if available.
    fn show(&mut self, wire: &Wire, packet: &Packet, data: &Data, again: bool) {
        let length = data.length.min(wire.snap());
        let Some((header, found)) = self.find(&Data { length, ..*data }, true) else {
            return;
        };
        let mut bytes = Vec::new();
        let read = found.is_ok_and(|payload| payload.read(length, &mut bytes).is_ok());
        let message =
            Message { header: &header, payload: if read { capture::start(&bytes, length) } else { &[] }, again };
        wire.show(packet, true, Some(message));
    }

    /// Finds a part of a message, if the device still has it. The statistics do not count it for an observer.
    fn find(&mut self, data: &Data, observes: bool) -> Option<Found<G::Memory>> {
        let (qp, header, content) = self.connections.find(self.address, data)?;
        let is_failure = matches!(content, Content::Failure { .. });
        let may_send_failure = is_failure && self.device.is_alive();
        if !may_send_failure && !self.device.is_current(qp) {
            return None;
        }
        self.segments.clear();
        let (length, segments) = (data.length, &mut self.segments);
        let gathered = match content {
            Content::Failure { .. } => Ok(Gathered::Memory),
            Content::Request(request) if request.operation == Operation::RdmaRead => Ok(Gathered::Memory),
            Content::Request(request) => self.device.gather(request, data.offset, length, segments),
            Content::Response { memory, .. } => {
                let (rkey, address) = *memory;
                let memory = (rkey, address.wrapping_add(data.offset.into()));
                let gathered = self.device.gather_for_peer(qp, memory, length, segments);
                if !observes {
                    self.device.count(TransportEvent::Read(length));
                }
                gathered.map(|()| Gathered::Memory)
            }
        };
        let payload = gathered.and_then(|found| Payload::new(&self.guest, found, &self.segments));
        Some((header, payload))
    }
}
