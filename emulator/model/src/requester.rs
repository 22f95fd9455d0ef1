// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sending side of the data path: from a doorbell to a request for the transport, and from its end to a completion.

use efa_hw::{
    admin::qp::{QpState, QpType},
    io::{Cdesc, CdescFlags, CompStatus, QueueType},
};

use crate::{
    Host, ProtocolError,
    firmware::Firmware,
    resources::{
        event_counter::QpEvent,
        mr::{Access, Keyed, Segment},
        qp::QpId,
        send_queue::{Data, Fetched, Operation, Outstanding},
    },
};

/// A work request that the transport is to carry out.
#[derive(Clone, Debug)]
pub struct Request {
    /// The queue pair.
    pub qp: QpId,
    /// Number of the request, which no other of this queue pair ever has.
    pub id: u64,
    /// Transport.
    pub transport: QpType,
    /// Address of the peer.
    pub peer: [u8; 16],
    /// Queue pair of the peer.
    pub peer_qp: u16,
    /// Q_Key that the peer's queue pair must have; for unreliable datagrams only.
    pub qkey: u32,
    /// What is asked for.
    pub operation: Operation,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Remote key and address of the peer's memory, for RDMA.
    pub remote: (u32, u64),
    /// Bytes to send or to read.
    pub length: u32,
    /// How often to try again if the receiver is not ready; 7 means for ever.
    pub rnr_retry: u8,
    data: Data,
}

/// Where the bytes to send are.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In the request.
    Inline(&'a [u8]),
    /// In the segments of host memory that were added.
    Memory,
}

impl Request {
    fn inline_part(&self, offset: u32, length: u32) -> Option<&[u8]> {
        match &self.data {
            Data::Buffers(_) => None,
            Data::Inline(data) => {
                let start = usize::try_from(offset).ok()?;
                data.get(start..start.checked_add(usize::try_from(length).ok()?)?)
            }
        }
    }
}

impl Firmware {
    /// A write to the doorbell of a send queue.
    pub(crate) fn ring_send_queue(
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
        if qp.send_queue.ring(value as u16).is_err() {
            self.fail(host, number);
            return Err(ProtocolError::QueueOverrun { qp: number });
        }
        match qp.state {
            QpState::Rts => self.fetch_sends(host, number),
            QpState::Err => self.flush(host, number),
            _ => {}
        }
        Ok(())
    }

    /// Fetches the work requests that are new.
    pub(crate) fn fetch_sends(&mut self, host: &mut dyn Host, number: u16) {
        while let Some(qp) = self
            .resources
            .qps
            .get_mut(number)
            .filter(|qp| qp.state == QpState::Rts)
        {
            let Some(fetched) = qp.send_queue.fetch(host) else {
                return;
            };
            if !fetched.is_well_formed() {
                self.end(
                    host,
                    number,
                    &outstanding(&fetched, 0),
                    CompStatus::LocalQpInternalError,
                );
                self.fail(host, number);
                return;
            }
            self.start(host, number, &fetched);
        }
    }

    /// Hands a work request to the transport, or completes it if it is not for that or can't be carried out.
    fn start(&mut self, host: &mut dyn Host, number: u16, fetched: &Fetched) {
        if let Some(work) = fetched.region_work() {
            let status = self.change_region(host, number, fetched, work);
            self.end(host, number, &outstanding(fetched, 0), status);
            if status == CompStatus::LocalQpInternalError {
                self.fail(host, number);
            }
            return;
        }
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return;
        };
        let work = fetched.work(qp.qp_type, &self.attributes);
        let peer = self.resources.ahs.peer(qp.pd, fetched.meta.ah);
        let (work, peer) = match (work, peer) {
            (Ok(work), Some(peer)) => (work, peer),
            (work, _) => {
                let status = work.err().unwrap_or(CompStatus::LocalInvalidAh);
                self.end(host, number, &outstanding(fetched, 0), status);
                return;
            }
        };
        let id = qp.send_queue.add(outstanding(fetched, work.length));
        let request = Request {
            qp: QpId {
                number,
                incarnation: qp.incarnation,
            },
            id,
            transport: qp.qp_type,
            peer,
            peer_qp: fetched.meta.dest_qp_num,
            qkey: fetched.meta.qkey,
            operation: work.operation,
            immediate: work.immediate,
            remote: (work.remote.key, work.remote.address),
            length: work.length,
            rnr_retry: qp.rnr_retry,
            data: work.data,
        };
        self.requests.push_back(request);
    }

    /// Ends a request; if its queue pair is not what it was, it has been ended before.
    pub(crate) fn finish(&mut self, host: &mut dyn Host, qp: QpId, id: u64, status: CompStatus) {
        let request = self
            .resources
            .qps
            .current_mut(qp)
            .and_then(|qp| qp.send_queue.remove(id));
        if let Some(request) = request {
            self.end(host, qp.number, &request, status);
        }
    }

    /// Counts and completes a work request.
    fn end(&mut self, host: &mut dyn Host, number: u16, request: &Outstanding, status: CompStatus) {
        let ok = status == CompStatus::Ok;
        self.statistics
            .count_request(request.operation, request.length, ok);
        if let Some(event) = QpEvent::of_request(request.operation, ok) {
            self.count(host, number, event);
        }
        let Some(qp) = self.resources.qps.get(number) else {
            return;
        };
        if ok && !request.signaled {
            return;
        }
        let completion = Cdesc {
            req_id: request.req_id,
            status: status.into(),
            flags: CdescFlags {
                q_type: QueueType::Send.into(),
                op_type: request.operation.into(),
                ..CdescFlags::default()
            },
            qp_num: number,
            ..Cdesc::default()
        };
        let completion = if qp.has_long_ids {
            completion.with_req_id_ex(request.req_id_ex)
        } else {
            completion
        };
        let cq = qp.send_cq;
        self.complete(host, cq, completion);
    }

    /// Posts a completion, with its event if one is wanted.
    pub(crate) fn complete(&mut self, host: &mut dyn Host, cq: (u16, u16), completion: Cdesc) {
        if let Err(error) = self.resources.complete(host, cq, completion) {
            self.complaints.push(error.into());
        }
    }

    /// Puts a queue pair in error because of what its program did.
    pub(crate) fn fail(&mut self, host: &mut dyn Host, number: u16) {
        if let Some(qp) = self.resources.qps.get_mut(number) {
            qp.state = QpState::Err;
        }
        self.flush(host, number);
    }

    /// Completes all work requests of a queue pair that is in error.
    pub(crate) fn flush(&mut self, host: &mut dyn Host, number: u16) {
        self.resources.qps.renew(number);
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return;
        };
        let mut sends: Vec<_> = qp.send_queue.take_all().collect();
        while let Some(fetched) = qp.send_queue.fetch(host) {
            sends.push(outstanding(&fetched, 0));
        }
        for request in sends {
            self.end(host, number, &request, CompStatus::Flushed);
        }
        self.flush_receives(host, number);
    }

    /// Finds the part of a request's data that starts at `offset`, to send it.
    ///
    /// # Errors
    ///
    /// How the request ends if the data can't be had.
    pub(crate) fn gather<'a>(
        &self,
        request: &'a Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<Payload<'a>, CompStatus> {
        if let Some(data) = request.inline_part(offset, length) {
            return Ok(Payload::Inline(data));
        }
        self.translate(request, offset, length, Access::LocalRead, segments)?;
        Ok(Payload::Memory)
    }

    /// Finds the part of a request's buffers that starts at `offset`, to read the peer's memory into it.
    ///
    /// # Errors
    ///
    /// How the request ends if they can't be had.
    pub(crate) fn scatter(
        &self,
        request: &Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        self.translate(request, offset, length, Access::LocalWrite, segments)
    }

    fn translate(
        &self,
        request: &Request,
        offset: u32,
        length: u32,
        access: Access,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        let qp = self.resources.qps.current(request.qp);
        let pd = qp.ok_or(CompStatus::Flushed)?.pd;
        for part in request.data.part(offset, length) {
            self.resources
                .mrs
                .translate(pd, part, access, segments)
                .map_err(|_| CompStatus::LocalInvalidLkey)?;
        }
        Ok(())
    }

    /// Finds memory that a peer wants to read.
    ///
    /// # Errors
    ///
    /// How the peer's request ends if it can't be had.
    pub(crate) fn gather_for_peer(
        &self,
        qp: QpId,
        (key, address): (u32, u64),
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        let qp = self.resources.qps.current(qp);
        let pd = qp.ok_or(CompStatus::RemoteAbort)?.pd;
        let memory = Keyed {
            key,
            address,
            length,
        };
        self.resources
            .mrs
            .translate(pd, memory, Access::RemoteRead, segments)
            .map_err(|_| CompStatus::RemoteBadAddress)
    }
}

/// A doorbell of a queue pair that is reset. A program that could not post anything may ring nevertheless.
pub(crate) fn empty(number: u16, value: u32) -> Result<(), ProtocolError> {
    match value {
        0 => Ok(()),
        _ => Err(ProtocolError::QueueState { qp: number }),
    }
}

fn outstanding(fetched: &Fetched, length: u32) -> Outstanding {
    Outstanding {
        req_id: fetched.meta.req_id,
        req_id_ex: fetched.meta.req_id_ex,
        operation: fetched.operation(),
        length,
        signaled: fetched.meta.ctrl2.comp_req,
    }
}
