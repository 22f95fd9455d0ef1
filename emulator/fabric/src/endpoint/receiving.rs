// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving half of an endpoint: processing of packets that arrive.

use std::time::Duration;

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::{Arrival, Content, Delivery, DmaError, Refusal, Segment, WriteEnd};

use super::{
    State,
    placement::{Placement, Purpose, Target, flip_bit},
};
use crate::{
    memory::{Access, Guest},
    packet::{Ack, Data, Datagram, Header, PortId, Reader, Subject, Verdict},
    quota::Quota,
    srd::{self, PsnClass},
    wire::Wire,
};

/// A part of a message that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) from: PortId,
    pub(crate) data: &'a Data,
    pub(crate) header: &'a Header,
    /// Quota for the state kept of its sender's connections.
    pub(crate) remembered: &'a Quota,
}

impl Part<'_> {
    /// Returns the sender's queue pair, and the number of its connection.
    fn connection(&self) -> (u16, u64) {
        (self.header.peer_qp, self.data.connection)
    }

    /// Returns the acknowledgement to its sender.
    pub(crate) fn ack(&self, verdict: Verdict) -> Ack {
        Ack { connection: self.data.connection, psn: self.data.psn, verdict }
    }
}

/// Result of receiving a part of a message.
#[derive(Debug)]
pub(crate) enum Received<M> {
    /// The verdict is sent to the sender.
    Answer(Verdict),
    /// The packet is dropped without an acknowledgement.
    Silence,
    /// The payload has to be written first, then `placed` or `not_placed` called.
    Place(Placement<M>),
}

/// A bit that the network flips: the offset of its byte in the payload, and its number in that byte.
pub(crate) type Flip = Option<(u32, u8)>;

impl<G: Guest> State<G> {
    /// Receives a part of a message.
    pub(crate) fn receive(&mut self, now: Duration, part: Part<'_>, flip: Flip) -> Received<G::Memory> {
        let (from, data, header) = (part.from, part.data, part.header);
        let arrived = if self.needs_no_state(part) {
            data.length
        } else {
            match self.admit(now, part) {
                Ok(arrived) => arrived,
                Err(Some(verdict)) => return Received::Answer(verdict),
                Err(None) => return Received::Silence,
            }
        };
        let (qp, content) = match header.subject {
            Subject::Send { qp, immediate } => (qp, Content::Send { length: data.length, immediate }),
            Subject::Write { qp, memory: (key, address), length, immediate, unsolicited } => {
                let end = (arrived >= length).then_some(WriteEnd { length, immediate, unsolicited });
                let memory = (key, address.wrapping_add(data.offset.into()));
                (qp, Content::Write { memory, length: data.length, end })
            }
            Subject::Read { qp, memory, length, version, .. } => (qp, Content::Read { memory, length, version }),
            Subject::Response { reader } => return self.receive_response(part, reader, flip),
            Subject::Failure { reader, status } => {
                if self.reads.get_mut(reader, from).is_some() {
                    let status = CompStatus::try_from(status).unwrap_or(CompStatus::RemoteAbort);
                    self.end_read(reader, status);
                }
                return Received::Answer(Verdict::Delivered);
            }
        };
        let arrival = Arrival {
            peer: header.peer,
            peer_qp: header.peer_qp,
            qp,
            transport: QpType::Srd,
            qkey: header.qkey,
            content,
        };
        let (target, delivery) = match self.accept(&arrival) {
            Ok(accepted) => accepted,
            Err(refusal) => return self.conclude(part, Err(refusal)),
        };
        // A request that is acknowledged needs a connection for its response. No other one is opened before that.
        let is_read = matches!(header.subject, Subject::Read { .. });
        if is_read && !self.connections.can_respond(delivery.qp(), from) {
            self.device.cancel(delivery);
            return Received::Silence;
        }
        Received::Place(Placement {
            target,
            flipped: self.flipped(flip),
            purpose: Purpose::Delivery(arrival, delivery),
        })
    }

    /// Starts a delivery to the device; returns the memory for the payload.
    ///
    /// # Errors
    ///
    /// The device refuses it, for example because there is no memory where it should be.
    pub(super) fn accept(&mut self, arrival: &Arrival) -> Result<(Target<G::Memory>, Delivery), Refusal> {
        self.segments.clear();
        let (device, guest) = (&mut self.device, &mut self.guest);
        let delivery = device.deliver(guest, arrival, &mut self.segments)?;
        match Target::new(guest, &self.segments) {
            Ok(target) => Ok((target, delivery)),
            Err(error) => {
                let refused = device.delivered(guest, arrival, delivery, Err(error));
                Err(refused.err().unwrap_or(Refusal::Drop))
            }
        }
    }

    /// Whether a part of a message needs no receiver state. A response to a missing read does not, over a connection without state:
    /// its verdict does not change. That for a missing queue pair may: another one may get its number before a copy arrives. A
    /// failure has no effect after the first time. Its queue pair may have ended, and another one with the same number may have a
    /// later connection.
    fn needs_no_state(&mut self, part: Part<'_>) -> bool {
        let Part { from, header, .. } = part;
        match header.subject {
            Subject::Failure { .. } => true,
            Subject::Response { reader } => {
                self.reads.get_mut(reader, from).is_none() && self.receivers.get_mut(from, part.connection()).is_none()
            }
            _ => false,
        }
    }

    /// Checks a part of a message against the receiver state; returns the bytes of the message that have arrived with it.
    ///
    /// # Errors
    ///
    /// The packet is refused. The error is the verdict for the sender, or `None` to drop the packet.
    fn admit(&mut self, now: Duration, part: Part<'_>) -> Result<u32, Option<Verdict>> {
        let Part { from, data, .. } = part;
        let (flow, silence_s) = (part.connection(), data.silence_s);
        let receiver = self.receivers.open(now, from, flow, silence_s, part.remembered);
        let receiver = receiver.ok_or(None)?;
        match receiver.classify(data.psn, data.floor) {
            PsnClass::New => {}
            PsnClass::Old(verdict) => return Err(Some(verdict)),
            PsnClass::Bad => return Err(None),
        }
        if !receiver.make_room(data.psn, data.message) {
            return Err(None);
        }
        Ok(receiver.with(data.message, data.length))
    }

    /// Receives a part of the response to a read.
    fn receive_response(&mut self, part: Part<'_>, reader: Reader, flip: Flip) -> Received<G::Memory> {
        let Part { from, data, .. } = part;
        // The read has already ended.
        let Some(read) = self.reads.get_mut(reader, from) else {
            return self.conclude(part, Ok(()));
        };
        // The payload exceeds the memory of the read.
        let end = data.offset.checked_add(data.length);
        if end.is_none_or(|end| end > read.request.length) {
            return Received::Silence;
        }
        self.segments.clear();
        let device = &mut self.device;
        let scattered = device.scatter(&read.request, data.offset, data.length, &mut self.segments);
        let target = scattered.and_then(|()| {
            let target = Target::new(&self.guest, &self.segments);
            target.map_err(|_| CompStatus::LocalInvalidLkey)
        });
        match target {
            Ok(target) => {
                Received::Place(Placement { target, flipped: self.flipped(flip), purpose: Purpose::Response(reader) })
            }
            Err(status) => {
                self.end_read(reader, status);
                self.conclude(part, Ok(()))
            }
        }
    }

    /// Returns the location of the byte in which the network flips a bit.
    fn flipped(&self, flip: Flip) -> Option<(G::Memory, u8)> {
        let (mut offset, bit) = flip?;
        for segment in &self.segments {
            if offset < segment.length {
                let byte = Segment { address: segment.address + u64::from(offset), length: 1, ..*segment };
                return Some((self.guest.memory(&[byte], Access::Write).ok()?, bit));
            }
            offset -= segment.length;
        }
        None
    }

    /// Processes a part of a message after its payload was written, or failed to be written.
    pub(crate) fn placed(
        &mut self,
        now: Duration,
        wire: &Wire,
        part: Part<'_>,
        placement: Placement<G::Memory>,
        written: Result<(), DmaError>,
    ) -> Received<G::Memory> {
        let (from, data, header) = (part.from, part.data, part.header);
        let (arrival, delivery) = match placement.purpose {
            Purpose::Delivery(arrival, delivery) => (arrival, delivery),
            Purpose::Response(reader) => {
                self.reads.heard(now, reader);
                if written.is_err() {
                    self.end_read(reader, CompStatus::LocalInvalidLkey);
                } else if let Some(read) = self.reads.get_mut(reader, from) {
                    read.received = read.received.saturating_add(data.length);
                    if read.received >= read.request.length {
                        self.end_read(reader, CompStatus::Ok);
                    }
                }
                return self.conclude(part, Ok(()));
            }
        };
        let (qp, device) = (delivery.qp(), &mut self.device);
        let delivered = device.delivered(&mut self.guest, &arrival, delivery, written);
        if delivered.is_ok() {
            match header.subject {
                Subject::Write { length, .. } if data.length < length => {
                    if let Some(receiver) = self.receivers.get_mut(from, part.connection()) {
                        receiver.add_part(data.message, data.length, length);
                    }
                }
                Subject::Read { length: 0, .. } => device.read_served(&mut self.guest, qp),
                Subject::Read { memory, length, reader, .. } => {
                    if let Some(connection) = self.connection(now, wire, qp, from) {
                        let response = srd::Content::Response { reader, memory };
                        self.connections.push(connection, response, length);
                    }
                }
                _ => {}
            }
        }
        self.conclude(part, delivered)
    }

    /// Cancels a part of a message whose payload is unavailable, as if it had not arrived.
    pub(crate) fn not_placed(&mut self, placement: Placement<G::Memory>) {
        if let Purpose::Delivery(_, delivery) = placement.purpose {
            self.device.cancel(delivery);
        }
    }

    /// Records the result of a part of a message.
    fn conclude(&mut self, part: Part<'_>, delivered: Result<(), Refusal>) -> Received<G::Memory> {
        let Part { from, data, .. } = part;
        let verdict = match delivered {
            Ok(()) => Verdict::Delivered,
            Err(Refusal::Drop) => return Received::Silence,
            Err(Refusal::NotReady) => Verdict::NotReady,
            Err(Refusal::Status(status)) => Verdict::Failed(status.into()),
        };
        if let Some(receiver) = self.receivers.get_mut(from, part.connection()) {
            receiver.conclude(data.psn, verdict);
            if let Verdict::Failed(_) = verdict {
                // The sender sends no other part of it.
                receiver.forget(data.message);
            }
        }
        Received::Answer(verdict)
    }

    /// Receives an unreliable datagram, or drops it.
    pub(crate) fn receive_datagram(&mut self, datagram: &Datagram, flip: Flip) {
        let length = match u32::try_from(datagram.payload.len()) {
            Ok(length) if length <= self.device.mtu() => length,
            _ => return,
        };
        let arrival = Arrival {
            peer: datagram.peer,
            peer_qp: datagram.peer_qp,
            qp: datagram.qp,
            transport: QpType::Ud,
            qkey: datagram.qkey,
            content: Content::Send { length, immediate: datagram.immediate },
        };
        let Ok((target, delivery)) = self.accept(&arrival) else {
            return;
        };
        let written = target.write(&datagram.payload);
        if written.is_ok() {
            flip_bit(self.flipped(flip).as_ref());
        }
        // Unreliable datagrams are not acknowledged.
        let (device, guest) = (&mut self.device, &mut self.guest);
        let _ = device.delivered(guest, &arrival, delivery, written);
    }
}
