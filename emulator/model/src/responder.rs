// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving side of the data path: what a peer sends, writes and asks to read.

use efa_hw::{
    admin::qp::{QpState, QpType},
    io::{Cdesc, CdescFlags, CompStatus, OpType, QueueType, UD_PAYLOAD_OFFSET, UNKNOWN_AH},
};

use crate::{
    DmaError, Host, ProtocolError,
    firmware::Firmware,
    requester::empty,
    resources::{
        event_counter::QpEvent,
        mr::{Access, Keyed, Segment},
        qp::{Qp, QpId},
        receive_queue::{NoReceive, Receive},
        send_queue::part,
    },
};

/// Something from a peer, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Address of the peer.
    pub peer: [u8; 16],
    /// Queue pair of the peer.
    pub peer_qp: u16,
    /// Number of the queue pair that it is for.
    pub qp: u16,
    /// Transport.
    pub transport: QpType,
    /// Q_Key that the queue pair must have; for unreliable datagrams only.
    pub qkey: u32,
    /// What it is.
    pub content: Content,
}

/// What a peer sends.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// A message.
    Send {
        /// Bytes of payload.
        length: u32,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// A part of an RDMA write.
    Write {
        /// Remote key and address of the memory to write.
        memory: (u32, u64),
        /// Bytes of payload.
        length: u32,
        /// If this is the last part to arrive.
        end: Option<WriteEnd>,
    },
    /// An RDMA read.
    Read {
        /// Remote key and address of the memory to read.
        memory: (u32, u64),
        /// Bytes to read.
        length: u32,
    },
}

/// An RDMA write of which all has arrived.
#[derive(Clone, Copy, Debug)]
pub struct WriteEnd {
    /// Bytes of all its parts.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
}

/// Why something from a peer is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is dropped, as unreliable datagrams may be.
    Drop,
    /// There is no receive work request.
    NotReady,
    /// The peer's request ends like this.
    Status(CompStatus),
}

/// What will be done when the payload is where it belongs.
#[derive(Debug)]
pub struct Landing {
    qp: QpId,
    receive: Option<Receive>,
}

impl Landing {
    /// The queue pair.
    pub fn qp(&self) -> QpId {
        self.qp
    }
}

impl Firmware {
    /// A write to the doorbell of a receive queue.
    pub(crate) fn ring_receive_queue(
        &mut self,
        host: &mut dyn Host,
        uar: u16,
        number: u16,
        value: u32,
    ) -> Result<(), ProtocolError> {
        let qp = self.resources.qps.get_mut(number);
        let Some(qp) = qp.filter(|qp| qp.uar == uar) else {
            return Err(ProtocolError::ForeignDoorbell { uar });
        };
        if qp.state == QpState::Reset {
            return empty(number, value);
        }
        // CAST: the doorbell counts modulo 2^16.
        if !qp.receive_queue.ring(value as u16) {
            self.fail(host, number);
            return Err(ProtocolError::QueueOverrun { qp: number });
        }
        if qp.state == QpState::Err {
            self.flush_receives(host, number);
        }
        Ok(())
    }

    /// Completes all receive work requests of a queue pair that is in error.
    pub(crate) fn flush_receives(&mut self, host: &mut dyn Host, number: u16) {
        let most = self.attributes.max_wr_recv_sges.max(1);
        while let Some(qp) = self.resources.qps.get_mut(number) {
            match qp.receive_queue.peek(host, most) {
                Ok(receive) => {
                    qp.receive_queue.remove(&receive);
                    let cq = qp.recv_cq;
                    let completion = failed(number, receive.req_id, CompStatus::Flushed);
                    self.complete_receive(host, cq, completion);
                }
                Err(_) => {
                    qp.receive_queue.clear();
                    return;
                }
            }
        }
    }

    /// Finds where something from a peer goes. If it is not taken, what there is to tell the program has been told.
    pub(crate) fn land(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        segments: &mut Vec<Segment>,
    ) -> Result<Landing, Refusal> {
        if let Err(refusal) = self.find(arrival) {
            let qp = self.resources.qps.get(arrival.qp);
            let wrong_key = arrival.transport == QpType::Ud
                && qp.is_some_and(|qp| qp.qp_type == QpType::Ud && qp.qkey != arrival.qkey);
            self.statistics.count_drop(wrong_key);
            return Err(refusal);
        }
        let id = self.resources.qps.id(arrival.qp).ok_or(Refusal::Drop)?;
        let (pd, unsolicited) = match self.resources.qps.get(arrival.qp) {
            Some(qp) => (qp.pd, qp.unsolicited_write_recv),
            None => return Err(Refusal::Drop),
        };
        let mut landing = Landing {
            qp: id,
            receive: None,
        };
        match arrival.content {
            Content::Send { length, .. } => {
                let receive = self.next_receive(host, arrival)?;
                let offset = match arrival.transport {
                    QpType::Ud => UD_PAYLOAD_OFFSET,
                    QpType::Srd => 0,
                };
                let room: u64 = receive
                    .buffers
                    .iter()
                    .map(|buffer| u64::from(buffer.length))
                    .sum();
                let problem = if room < u64::from(length) + u64::from(offset) {
                    Some((CompStatus::LocalBadLength, CompStatus::RemoteBadLength))
                } else {
                    let mut found = || {
                        for part in part(receive.buffers.iter().copied(), offset, length) {
                            self.resources
                                .mrs
                                .translate(pd, part, Access::LocalWrite, segments)
                                .ok()?;
                        }
                        Some(())
                    };
                    found()
                        .is_none()
                        .then_some((CompStatus::LocalInvalidLkey, CompStatus::RemoteBadStatus))
                };
                if let Some((ours, theirs)) = problem {
                    self.fail_receive(host, arrival.qp, &receive, ours);
                    return Err(match arrival.transport {
                        QpType::Ud => Refusal::Drop,
                        QpType::Srd => Refusal::Status(theirs),
                    });
                }
                landing.receive = Some(receive);
            }
            Content::Write {
                memory,
                length,
                end,
            } => {
                self.translate_for_peer(pd, memory, length, Access::RemoteWrite, segments)?;
                let has_immediate = end.is_some_and(|end| end.immediate.is_some());
                if has_immediate && !unsolicited {
                    landing.receive = Some(self.next_receive(host, arrival)?);
                }
            }
            Content::Read { memory, length } => {
                let checked = segments.len();
                self.translate_for_peer(pd, memory, length, Access::RemoteRead, segments)?;
                segments.truncate(checked);
            }
        }
        Ok(landing)
    }

    /// Takes note that the payload is where it belongs, or that it could not be written there.
    pub(crate) fn landed(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        landing: &Landing,
        written: Result<(), DmaError>,
    ) -> Result<(), Refusal> {
        let number = landing.qp.number;
        if let Err(error) = written {
            self.complaints.push(error.into());
            if let Some(receive) = &landing.receive {
                self.fail_receive(host, number, receive, CompStatus::LocalInvalidLkey);
            }
            return Err(Refusal::Status(match arrival.content {
                Content::Send { .. } => CompStatus::RemoteBadStatus,
                _ => CompStatus::RemoteBadAddress,
            }));
        }
        let mtu = self.attributes.mtu;
        self.statistics.count_arrival(arrival, mtu);
        if self.resources.qps.current(landing.qp).is_none() {
            return Ok(());
        }
        if let Content::Write { end: Some(_), .. } = arrival.content {
            self.count(host, number, QpEvent::RemoteWriteComp);
        }
        let (operation, length, immediate, unsolicited) = match arrival.content {
            Content::Send { length, immediate } => {
                let header = match arrival.transport {
                    QpType::Ud => UD_PAYLOAD_OFFSET,
                    QpType::Srd => 0,
                };
                (OpType::Send, length + header, immediate, false)
            }
            Content::Write {
                end:
                    Some(WriteEnd {
                        length,
                        immediate: Some(immediate),
                    }),
                ..
            } => (
                OpType::RdmaWrite,
                length,
                Some(immediate),
                landing.receive.is_none(),
            ),
            Content::Write { .. } | Content::Read { .. } => return Ok(()),
        };
        let Some(qp) = self.resources.qps.current_mut(landing.qp) else {
            return Ok(());
        };
        if let Some(receive) = &landing.receive {
            qp.receive_queue.remove(receive);
        }
        let (cq, pd) = (qp.recv_cq, qp.pd);
        self.statistics.count_receive(length);
        let ah = self.resources.ahs.find(pd, arrival.peer);
        let mut extension = [0; 16];
        if operation == OpType::RdmaWrite {
            // CAST: the high half.
            extension[..2].copy_from_slice(&((length >> 16) as u16).to_le_bytes());
        } else if ah.is_none() && self.resources.cqs.tells_address(cq.0) {
            extension = arrival.peer;
        }
        let completion = Cdesc {
            req_id: landing.receive.as_ref().map_or(0, |receive| receive.req_id),
            status: CompStatus::Ok.into(),
            flags: CdescFlags {
                phase: false,
                q_type: QueueType::Receive.into(),
                has_imm: immediate.is_some(),
                op_type: operation.into(),
                unsolicited,
            },
            qp_num: number,
            // CAST: the low half; a message has no more.
            length: length as u16,
            ah: ah.unwrap_or(UNKNOWN_AH),
            src_qp_num: arrival.peer_qp,
            imm: immediate.unwrap_or(0),
            extension,
        };
        self.complete_receive(host, cq, completion);
        Ok(())
    }

    /// Takes note that a peer has all that it wanted to read by a queue pair.
    pub(crate) fn served_read(&mut self, host: &mut dyn Host, qp: QpId) {
        if self.resources.qps.current(qp).is_some() {
            self.count(host, qp.number, QpEvent::RemoteReadComp);
        }
    }

    /// Counts and posts the completion of something that was received, or of a receive work request.
    fn complete_receive(&mut self, host: &mut dyn Host, cq: (u16, u16), completion: Cdesc) {
        let ok = completion.status == u8::from(CompStatus::Ok);
        self.count(host, completion.qp_num, QpEvent::of_receive(ok));
        self.complete(host, cq, completion);
    }

    /// Checks that a queue pair may get something from a peer.
    fn find(&self, arrival: &Arrival) -> Result<(), Refusal> {
        let receives = |qp: &&Qp| {
            matches!(
                qp.state,
                QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
            ) && qp.qp_type == arrival.transport
        };
        let qp = self.resources.qps.get(arrival.qp).filter(receives);
        if arrival.transport == QpType::Ud {
            return match qp {
                Some(qp) if qp.qkey == arrival.qkey => Ok(()),
                _ => Err(Refusal::Drop),
            };
        }
        let Some(qp) = qp else {
            return Err(Refusal::Status(CompStatus::RemoteBadDestQpn));
        };
        let possible = match arrival.content {
            Content::Send { .. } => return Ok(()),
            Content::Write { .. } => self.attributes.rdma_write,
            Content::Read { .. } => self.attributes.rdma_read,
        };
        if !possible {
            return Err(Refusal::Status(CompStatus::RemoteFeatureMismatch));
        }
        // A peer may use memory only if the program knows it.
        if self.resources.ahs.find(qp.pd, arrival.peer).is_none() {
            return Err(Refusal::Status(CompStatus::RemoteUnknownPeer));
        }
        Ok(())
    }

    fn translate_for_peer(
        &self,
        pd: u16,
        (key, address): (u32, u64),
        length: u32,
        access: Access,
        segments: &mut Vec<Segment>,
    ) -> Result<(), Refusal> {
        let memory = Keyed {
            key,
            address,
            length,
        };
        self.resources
            .mrs
            .translate(pd, memory, access, segments)
            .map_err(|_| Refusal::Status(CompStatus::RemoteBadAddress))
    }

    /// Reads the receive work request that the next message uses.
    fn next_receive(&mut self, host: &mut dyn Host, arrival: &Arrival) -> Result<Receive, Refusal> {
        let most = self.attributes.max_wr_recv_sges.max(1);
        let Some(qp) = self.resources.qps.get_mut(arrival.qp) else {
            return Err(Refusal::Drop);
        };
        let error = match qp.receive_queue.peek(host, most) {
            Ok(receive) => return Ok(receive),
            Err(error) => error,
        };
        let refusal = match arrival.transport {
            QpType::Ud => Refusal::Drop,
            QpType::Srd => Refusal::Status(CompStatus::RemoteAbort),
        };
        match error {
            NoReceive::Empty => {
                self.statistics.count_drop(false);
                return Err(match arrival.transport {
                    QpType::Ud => Refusal::Drop,
                    QpType::Srd => Refusal::NotReady,
                });
            }
            NoReceive::Malformed(req_id) => {
                let cq = qp.recv_cq;
                let completion = failed(arrival.qp, req_id, CompStatus::LocalQpInternalError);
                qp.receive_queue.clear();
                self.complete_receive(host, cq, completion);
            }
            NoReceive::Dma(error) => self.complaints.push(error.into()),
        }
        self.fail(host, arrival.qp);
        Err(refusal)
    }

    /// Completes a receive work request that failed.
    fn fail_receive(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        receive: &Receive,
        status: CompStatus,
    ) {
        if let Some(qp) = self.resources.qps.get_mut(number) {
            qp.receive_queue.remove(receive);
            let cq = qp.recv_cq;
            self.complete_receive(host, cq, failed(number, receive.req_id, status));
        }
    }
}

/// The completion of a receive work request that failed.
fn failed(number: u16, req_id: u16, status: CompStatus) -> Cdesc {
    Cdesc {
        req_id,
        status: status.into(),
        flags: CdescFlags {
            q_type: QueueType::Receive.into(),
            ..CdescFlags::default()
        },
        qp_num: number,
        ah: UNKNOWN_AH,
        ..Cdesc::default()
    }
}
