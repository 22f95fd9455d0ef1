// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving half of SRD: what becomes of packets that arrive.

use std::time::Duration;

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::{Arrival, Content as ArrivalContent, QpId, Refusal, WriteEnd};

use super::{
    Cluster, Guest, Port, PortId, SWEEP,
    payload::{Moved, Source},
};
use crate::{
    network::Load,
    packet::{Ack, Body, Data, Header, Packet, Subject, Verdict},
};

/// What becomes of a part of a message.
pub(super) enum Outcome {
    /// The sender is told this.
    Tell(Verdict),
    /// Nobody is told.
    Silence,
    /// The sender finds that its message ends like this.
    Sender(CompStatus),
}

impl<G: Guest> Cluster<G> {
    /// Does what a packet that has arrived asks for.
    pub(super) fn deliver(&mut self, now: Duration, packet: Packet) {
        let Packet {
            from,
            to,
            path,
            body,
        } = packet;
        if let Some(remote) = self.remote(to) {
            let (link, to) = (remote.link, remote.address);
            self.forward(now, link, from, to, path, body);
            return;
        }
        match body {
            Body::Data(data) => {
                // What its sender does not know any more is nothing.
                let Some(header) = self.header(&data) else {
                    return;
                };
                let outcome = self.take(now, to, &data, &header, Source::Sender(from));
                self.answer(now, from, to, path, &data, outcome);
            }
            Body::Ack(ack) => self.acknowledge(now, to, ack),
            Body::Datagram(datagram) => self.take_datagram(to, &datagram),
        }
    }

    /// What a part of a message says of it, if its sender still knows it.
    pub(super) fn header(&self, data: &Data) -> Option<Header> {
        let sender = self.senders.get(&data.connection.number)?;
        let device = &self.ports[sender.from.0].device;
        let message = sender.message(data.message)?;
        device.is_current(sender.qp).then(|| sender.header(message))
    }

    /// Takes a part of a message.
    pub(super) fn take(
        &mut self,
        now: Duration,
        to: PortId,
        data: &Data,
        header: &Header,
        source: Source<'_>,
    ) -> Outcome {
        self.sweep.get_or_insert(now + SWEEP);
        let receiver = self.receivers.entry(data.connection).or_default();
        receiver.last_used = now;
        if receiver.has(data.psn) {
            return Outcome::Tell(Verdict::Taken);
        }
        let complete = receiver.with(data.message, data.length);
        match header.subject {
            Subject::Send { qp, immediate } => {
                let content = ArrivalContent::Send {
                    length: data.length,
                    immediate,
                };
                let landed = self.land(to, data, header, qp, content, &source);
                self.conclude(data, landed.map(|_| ()))
            }
            Subject::Write {
                qp,
                memory: (key, address),
                length,
                immediate,
            } => {
                let content = ArrivalContent::Write {
                    memory: (key, address.wrapping_add(data.offset.into())),
                    length: data.length,
                    end: (complete >= length).then_some(WriteEnd { length, immediate }),
                };
                let landed = self.land(to, data, header, qp, content, &source);
                if landed.is_ok() && data.length < length {
                    if let Some(receiver) = self.receivers.get_mut(&data.connection) {
                        receiver.add_part(data.message, data.length, length);
                    }
                }
                self.conclude(data, landed.map(|_| ()))
            }
            Subject::Read {
                qp,
                memory,
                length,
                reader,
            } => {
                let content = ArrivalContent::Read { memory, length };
                let landed = self.land(to, data, header, qp, content, &source);
                if let Ok(own) = &landed {
                    self.respond(now, to, *own, header.peer, reader, memory, length);
                }
                self.conclude(data, landed.map(|_| ()))
            }
            Subject::Response { reader } => self.take_response(now, to, data, reader, &source),
            Subject::Failure { reader, status } => {
                let status = CompStatus::try_from(status).unwrap_or(CompStatus::RemoteAbort);
                self.end_read(to, reader, status);
                self.conclude(data, Ok(()))
            }
        }
    }

    /// Takes note of how a part of a message ended that is not to be taken again.
    pub(super) fn conclude(&mut self, data: &Data, landed: Result<(), Outcome>) -> Outcome {
        let outcome = match landed {
            Ok(()) => Outcome::Tell(Verdict::Taken),
            Err(outcome) => outcome,
        };
        if let Some(receiver) = self.receivers.get_mut(&data.connection) {
            match outcome {
                Outcome::Tell(Verdict::Taken) => receiver.add(data.psn),
                Outcome::Tell(Verdict::Failed(_)) => {
                    receiver.add(data.psn);
                    receiver.forget(data.message);
                }
                // No other part of it comes.
                Outcome::Sender(_) => receiver.forget(data.message),
                Outcome::Tell(Verdict::NotReady) | Outcome::Silence => {}
            }
        }
        outcome
    }

    /// Puts a part of a request where the receiver's program wants it; returns its queue pair.
    pub(super) fn land(
        &mut self,
        to: PortId,
        data: &Data,
        header: &Header,
        qp: u16,
        content: ArrivalContent,
        source: &Source<'_>,
    ) -> Result<QpId, Outcome> {
        let arrival = Arrival {
            peer: header.peer,
            peer_qp: header.peer_qp,
            qp,
            transport: QpType::Srd,
            qkey: 0,
            content,
        };
        let refused = |refusal| match refusal {
            Refusal::Drop => Outcome::Silence,
            Refusal::NotReady => Outcome::Tell(Verdict::NotReady),
            Refusal::Status(status) => Outcome::Tell(Verdict::failed(status)),
        };
        self.target.clear();
        let Port { device, guest, .. } = &mut self.ports[to.0];
        let landing = device
            .land(guest, &arrival, &mut self.target)
            .map_err(refused)?;
        let written = match self.place(to, data, source) {
            Moved::Done => Ok(()),
            Moved::Lost(error) => Err(error),
            Moved::Missing(status) => return Err(Outcome::Sender(status)),
        };
        let Port { device, guest, .. } = &mut self.ports[to.0];
        device
            .landed(guest, &arrival, &landing, written)
            .map_err(refused)?;
        Ok(landing.qp())
    }

    /// Tells the sender of a part of a message what became of it.
    pub(super) fn answer(
        &mut self,
        now: Duration,
        from: PortId,
        to: PortId,
        path: u16,
        data: &Data,
        outcome: Outcome,
    ) {
        let verdict = match outcome {
            Outcome::Tell(verdict) => verdict,
            Outcome::Silence => return,
            Outcome::Sender(status) => {
                self.fail(now, data.connection.number, data.message, status);
                return;
            }
        };
        let ack = Ack {
            connection: data.connection,
            psn: data.psn,
            verdict,
        };
        let packet = Packet {
            from: to,
            to: from,
            path,
            body: Body::Ack(ack),
        };
        // One that can't be sent is one that is lost.
        let load = Load {
            packets: 1,
            bytes: 0,
        };
        let _ = self.network.send(now, to.0, from.0, path, load, packet);
    }
}
