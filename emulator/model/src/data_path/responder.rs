// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The responder: handles sends, RDMA writes and RDMA reads of peers.

use efa_hw::{
    admin::qp::{QpState, QpType},
    io::{Cdesc, CdescFlags, CompStatus, OpType, QueueType, UD_PAYLOAD_OFFSET, UNKNOWN_AH},
};

use super::{DataPath, completion::failed};
use crate::{
    DmaError, Host, StatusCode, Then, WorkKind, ensure,
    resources::{
        memory::{Access, Denied, Keyed, Segment, part},
        qp::{Qp, QpId},
        qp_events::QpEvent,
        receive_queue::{NoReceive, Receive},
    },
};

/// A message, an RDMA read, or a part of an RDMA write that arrives from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Address of the peer.
    pub peer: [u8; 16],
    /// Queue pair of the peer.
    pub peer_qp: u16,
    /// Number of the destination queue pair.
    pub qp: u16,
    /// Transport.
    pub transport: QpType,
    /// Q_Key that the queue pair must have.
    pub qkey: u32,
    /// Operation of the peer.
    pub content: Content,
}

/// An operation of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        /// End of the write, if this is the last part to arrive.
        end: Option<WriteEnd>,
    },
    /// An RDMA read.
    Read {
        /// Remote key and address of the memory to read.
        memory: (u32, u64),
        /// Bytes to read.
        length: u32,
        /// Version of the reading device.
        version: u32,
    },
}

impl Content {
    /// Bytes of payload.
    fn payload(&self) -> u32 {
        match self {
            Self::Send { length, .. } | Self::Write { length, .. } => *length,
            Self::Read { .. } => 0,
        }
    }
}

/// End of an RDMA write whose parts have all arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteEnd {
    /// Total length of its parts in bytes.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Whether the peer's queue pair has unsolicited receives.
    pub unsolicited: bool,
}

/// Why an arrival is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Dropped without a response, as unreliable datagrams may be.
    Drop,
    /// No receive work request is posted.
    NotReady,
    /// The peer's request ends with this status.
    Status(CompStatus),
}

/// A delivery in progress. The caller must end it by [`Device::delivered`](crate::Device::delivered) or abort it by
/// [`Device::cancel`](crate::Device::cancel).
#[derive(Debug)]
#[must_use = "a dropped delivery leaks its receive work request"]
pub struct Delivery {
    qp: QpId,
    /// The receive work request that the delivery has taken.
    receive: Option<Receive>,
}

impl Delivery {
    /// The queue pair.
    pub fn qp(&self) -> QpId {
        self.qp
    }
}

impl Arrival {
    /// Bytes in front of the payload in a receive buffer.
    fn header(&self) -> u32 {
        match self.transport {
            QpType::Ud => UD_PAYLOAD_OFFSET,
            QpType::Srd => 0,
        }
    }

    /// Returns the refusal of the arrival for a reason. A datagram gets no response.
    fn refused(&self, refusal: Refusal) -> Refusal {
        match self.transport {
            QpType::Ud => Refusal::Drop,
            QpType::Srd => refusal,
        }
    }
}

fn bad_address(_: Denied) -> Refusal {
    Refusal::Status(CompStatus::RemoteBadAddress)
}

impl DataPath {
    /// Locates the destination of an arrival, and takes the receive work request that it consumes. If the arrival is refused, any
    /// error is already reported to the program.
    pub(crate) fn deliver(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        segments: &mut Vec<Segment>,
    ) -> Result<Delivery, Refusal> {
        if let Err(refusal) = self.find(arrival) {
            let qp = self.resources.qps.get(arrival.qp);
            let wrong_key = qp.is_some_and(|qp| qp.qp_type == arrival.transport && !self.has_right_qkey(qp, arrival));
            self.statistics.count_drop(wrong_key);
            return Err(refusal);
        }
        let qp = self.resources.qps.get(arrival.qp).ok_or(Refusal::Drop)?;
        let (pd, unsolicited) = (qp.pd, qp.unsolicited_write_recv);
        let mut delivery = Delivery { qp: qp.id(arrival.qp), receive: None };
        match arrival.content {
            Content::Send { length, .. } => {
                let receive = self.take_receive(host, arrival)?;
                let offset = arrival.header();
                let lengths = receive.buffers().map(|buffer| u64::from(buffer.length));
                let room: u64 = lengths.sum();
                let statuses = if room < u64::from(length) + u64::from(offset) {
                    Some((CompStatus::LocalBadLength, CompStatus::RemoteBadLength))
                } else {
                    let mut found = || {
                        for part in part(receive.buffers(), offset, length) {
                            self.resources.mrs.translate(pd, part, Access::LocalWrite, segments).ok()?;
                        }
                        Some(())
                    };
                    found().is_none().then_some((CompStatus::LocalInvalidLkey, CompStatus::RemoteBadStatus))
                };
                if let Some((ours, theirs)) = statuses {
                    self.fail_receive(host, arrival.qp, &receive, ours);
                    return Err(arrival.refused(Refusal::Status(theirs)));
                }
                delivery.receive = Some(receive);
            }
            Content::Write { memory, length, end } => {
                if let Some(memory) = self.of_peer(memory, length) {
                    let mrs = &self.resources.mrs;
                    mrs.translate(pd, memory, Access::RemoteWrite, segments).map_err(bad_address)?;
                }
                let end = end.filter(|end| end.immediate.is_some());
                let fits = end.is_none_or(|end| end.unsolicited == unsolicited);
                ensure(fits, Refusal::Status(CompStatus::RemoteFeatureMismatch))?;
                if end.is_some() && !unsolicited {
                    delivery.receive = Some(self.take_receive(host, arrival)?);
                }
            }
            Content::Read { memory, length, .. } => {
                // Each part of the response looks up its pages. All of them may be too many for one call.
                if let Some(memory) = self.of_peer(memory, length) {
                    let mrs = &self.resources.mrs;
                    mrs.check(pd, memory, Access::RemoteRead).map_err(bad_address)?;
                }
            }
        }
        Ok(delivery)
    }

    /// Aborts a delivery, and returns its receive work request to the queue.
    pub(crate) fn cancel(&mut self, delivery: Delivery) {
        let qp = self.resources.qps.current_mut(delivery.qp);
        if let (Some(qp), Some(receive)) = (qp, delivery.receive) {
            qp.receive_queue.return_receive(receive);
        }
    }

    /// Ends a delivery, given the result of writing its payload.
    pub(crate) fn delivered(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        delivery: &Delivery,
        written: Result<(), DmaError>,
    ) -> Result<(), Refusal> {
        let number = delivery.qp.number;
        let is_current = self.resources.qps.current(delivery.qp).is_some();
        if let Err(error) = written {
            self.errors.access(host, error);
            if let Some(receive) = delivery.receive.as_ref().filter(|_| is_current) {
                self.fail_receive(host, number, receive, CompStatus::LocalInvalidLkey);
            }
            return Err(Refusal::Status(match arrival.content {
                Content::Send { .. } => CompStatus::RemoteBadStatus,
                _ => CompStatus::RemoteBadAddress,
            }));
        }
        let mtu = self.attributes.mtu;
        self.statistics.count_packets(arrival.content.payload(), mtu);
        if let Content::Write { length, .. } = arrival.content {
            self.statistics.count_write(length);
        }
        // The receive work request ended when the queue pair was reset, failed or destroyed.
        if !is_current {
            return Ok(());
        }
        if let Content::Write { end: Some(_), .. } = arrival.content {
            self.count(host, number, QpEvent::RemoteWriteComp);
        }
        let (operation, length, immediate, unsolicited) = match arrival.content {
            Content::Send { length, immediate } => (OpType::Send, length + arrival.header(), immediate, false),
            Content::Write { end: Some(WriteEnd { length, immediate: Some(immediate), .. }), .. } => {
                (OpType::RdmaWrite, length, Some(immediate), delivery.receive.is_none())
            }
            Content::Write { .. } | Content::Read { .. } => return Ok(()),
        };
        let fault = self.fault(WorkKind::Receive, number, Some(arrival.peer));
        let fault = fault.as_deref();
        if fault.is_some_and(Then::is_fatal) {
            return Ok(());
        }
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return Ok(());
        };
        if let Some(receive) = &delivery.receive {
            qp.receive_queue.end(receive);
        }
        let (cq, pd) = (qp.recv_cq, qp.pd);
        qp.counted.count_receive(length);
        self.statistics.count_receive(length);
        let ah = self.resources.ahs.find(pd, arrival.peer);
        let mut extension = [0; 16];
        if operation == OpType::RdmaWrite {
            // CAST: the high half.
            extension[..2].copy_from_slice(&((length >> 16) as u16).to_le_bytes());
        } else if ah.is_none() && self.resources.cqs.get(cq.0).is_ok_and(|cq| cq.has_src_addr) {
            extension = arrival.peer;
        }
        let status = fault.and_then(|fault| fault.status);
        let status = status.map_or(CompStatus::Ok.into(), StatusCode::code);
        let completion = Cdesc {
            req_id: delivery.receive.as_ref().map_or(0, |receive| receive.req_id),
            status,
            flags: CdescFlags {
                phase: false,
                q_type: QueueType::Receive.into(),
                has_imm: immediate.is_some(),
                op_type: operation.into(),
                unsolicited,
            },
            qp_num: number,
            // CAST: the low half, which is all of it for a message.
            length: length as u16,
            ah: ah.unwrap_or(UNKNOWN_AH),
            src_qp_num: arrival.peer_qp,
            imm: immediate.unwrap_or(0),
            extension,
        };
        self.complete_receive(host, cq, completion, fault);
        self.break_qp(host, number, status, fault);
        Ok(())
    }

    /// Counts an RDMA read through a queue pair, of which the peer has all data.
    pub(crate) fn read_served(&mut self, host: &mut dyn Host, qp: QpId) {
        if self.resources.qps.current(qp).is_some() {
            self.count(host, qp.number, QpEvent::RemoteReadComp);
        }
    }

    /// Checks that a queue pair may accept an arrival.
    fn find(&self, arrival: &Arrival) -> Result<(), Refusal> {
        let receives = |qp: &&Qp| {
            matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
                && qp.qp_type == arrival.transport
        };
        let qp = self.resources.qps.get(arrival.qp).filter(receives);
        // No device of this program sends a longer message, but one of another program may.
        let too_long = matches!(arrival.content, Content::Send { length, .. } if length > self.attributes.mtu);
        if arrival.transport == QpType::Ud {
            // A device of another program may send an operation that UD does not have.
            let is_message = matches!(arrival.content, Content::Send { .. }) && !too_long;
            return match qp {
                Some(qp) if is_message && self.has_right_qkey(qp, arrival) => Ok(()),
                _ => Err(Refusal::Drop),
            };
        }
        let Some(qp) = qp else {
            return Err(Refusal::Status(CompStatus::RemoteBadDestQpn));
        };
        // No completion status exists for a wrong Q_Key.
        ensure(self.has_right_qkey(qp, arrival), Refusal::Drop)?;
        let supported = match arrival.content {
            Content::Send { .. } if too_long => {
                return Err(Refusal::Status(CompStatus::RemoteBadLength));
            }
            Content::Send { .. } => return Ok(()),
            Content::Write { .. } => self.attributes.rdma_write,
            Content::Read { version, .. } => self.attributes.rdma_read && self.reads(version),
        };
        let mismatch = Refusal::Status(CompStatus::RemoteFeatureMismatch);
        ensure(supported, mismatch)?;
        // A peer may access memory only if the protection domain has an address handle for it.
        let is_known = self.resources.ahs.find(qp.pd, arrival.peer).is_some();
        ensure(is_known, Refusal::Status(CompStatus::RemoteUnknownPeer))
    }

    /// Whether an arrival has the Q_Key of the queue pair, if that is checked.
    fn has_right_qkey(&self, qp: &Qp, arrival: &Arrival) -> bool {
        let is_checked = qp.qp_type == QpType::Ud || self.attributes.check_srd_qkey;
        qp.qkey == arrival.qkey || !is_checked
    }

    /// Whether a device of this version may read memory of this device, if that is checked.
    fn reads(&self, version: u32) -> bool {
        let own = self.attributes.device_version;
        (own == 0) == (version == 0) || !self.attributes.check_read_version
    }

    /// Returns the memory that a peer refers to, unless its key does not matter.
    fn of_peer(&self, (key, address): (u32, u64), length: u32) -> Option<Keyed> {
        let is_checked = length > 0 || self.attributes.check_empty_keys;
        is_checked.then_some(Keyed { key, address, length })
    }

    /// Takes the next receive work request for an arrival. A malformed or unreadable one moves the queue pair to the error state.
    fn take_receive(&mut self, host: &mut dyn Host, arrival: &Arrival) -> Result<Receive, Refusal> {
        let most = self.attributes.max_wr_recv_sges.max(1);
        let Some(qp) = self.resources.qps.get_mut(arrival.qp) else {
            return Err(Refusal::Drop);
        };
        let error = match qp.receive_queue.take(host, arrival.qp, most) {
            Ok(receive) => return Ok(receive),
            Err(error) => error,
        };
        match error {
            NoReceive::Empty => {
                self.statistics.count_drop(false);
                return Err(arrival.refused(Refusal::NotReady));
            }
            NoReceive::Malformed(req_id, error) => {
                let cq = qp.recv_cq;
                let status = CompStatus::LocalQpInternalError;
                let completion = failed(arrival.qp, req_id, status.into());
                qp.receive_queue.clear();
                self.errors.program(host, error);
                self.complete_receive(host, cq, completion, None);
            }
            NoReceive::Dma(error) => self.errors.access(host, error),
        }
        self.fail(host, arrival.qp);
        Err(arrival.refused(Refusal::Status(CompStatus::RemoteAbort)))
    }
}
