// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The requester: turns work requests into requests for the transport, and locates their data.
//!
//! A doorbell only schedules a queue pair. Its work requests are fetched one at a time, when the transport has room for them.

use efa_hw::{admin::qp::QpType, io::CompStatus};

use super::DataPath;
use crate::{
    Host, ProgramError, WorkKind,
    resources::{
        memory::{Access, Keyed, Segment},
        qp::QpId,
        send_queue::{Data, Operation, Wqe},
    },
};

/// A work request for the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The queue pair.
    pub qp: QpId,
    /// Number of the request, unique within its queue pair.
    pub id: u64,
    /// Transport.
    pub transport: QpType,
    /// Address of the peer.
    pub peer: [u8; 16],
    /// Queue pair of the peer.
    pub peer_qp: u16,
    /// Q_Key that the peer's queue pair must have.
    pub qkey: u32,
    /// Operation to carry out.
    pub operation: Operation,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Whether the queue pair has unsolicited receives.
    pub unsolicited: bool,
    /// Remote key and address of the peer's memory, for RDMA.
    pub remote: (u32, u64),
    /// Bytes to send or to read.
    pub length: u32,
    /// Version of the requesting device.
    pub version: u32,
    /// Number of retries if the receiver is not ready; 7 means no limit.
    pub rnr_retry: u8,
    data: Data,
}

/// Result of fetching a work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// A request for the transport.
    Request(Box<Request>),
    /// Nothing for the transport: the device executed the work request itself, at least in part, or ended it with an error.
    Internal,
    /// No queue pair is scheduled, or the device is not alive.
    Idle,
}

/// Location of the bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In the request.
    Inline(&'a [u8]),
    /// In the segments of host memory that were appended.
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

impl DataPath {
    /// Fetches a work request of the queue pair whose turn it is.
    pub(crate) fn fetch(&mut self, host: &mut dyn Host) -> Fetched {
        let Some(number) = self.resources.qps.next_scheduled() else {
            return Fetched::Idle;
        };
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return Fetched::Internal;
        };
        if let Some(registering) = qp.send_queue.registering.take() {
            self.resume_registration(host, number, registering);
            self.resources.qps.schedule(number);
            return Fetched::Internal;
        }
        let Some(wqe) = qp.send_queue.fetch(host, number) else {
            return Fetched::Internal;
        };
        if let Some(fault) = wqe.fault() {
            self.errors.program(host, wqe.malformed(number, fault));
            let status = CompStatus::LocalQpInternalError;
            self.end(host, number, &wqe.outstanding(0), status);
            return Fetched::Internal;
        }
        let request = self.start(host, number, &wqe);
        self.resources.qps.schedule(number);
        match request {
            Some(request) => Fetched::Request(Box::new(request)),
            None => Fetched::Internal,
        }
    }

    /// Turns a work request into a request for the transport. If it is invalid or changes a region, handles it here instead.
    fn start(&mut self, host: &mut dyn Host, number: u16, wqe: &Wqe) -> Option<Request> {
        let region_work = wqe.region_work();
        let qp = self.resources.qps.get(number)?;
        let peer = match region_work {
            Some(_) => None,
            None => self.resources.ahs.peer(qp.pd, wqe.meta.ah),
        };
        let mut request = wqe.outstanding(0);
        request.fault = self.fault(WorkKind::Request(request.operation), number, peer);
        if self.prevent(host, number, &request) {
            return None;
        }
        if let Some(work) = region_work {
            self.change_region(host, number, wqe, request, work);
            return None;
        }
        let qp = self.resources.qps.get_mut(number)?;
        let work = wqe.work(qp.qp_type, &self.attributes);
        let (work, peer) = match (work, peer) {
            (Ok(work), Some(peer)) => (work, peer),
            (work, _) => {
                let status = work.err().unwrap_or(CompStatus::LocalInvalidAh);
                self.end(host, number, &request, status);
                return None;
            }
        };
        request.length = work.length;
        request.lkeys = work.data.lkeys();
        let req_id = request.req_id;
        let is_duplicate = !qp.has_long_ids && qp.send_queue.claim_id(req_id);
        let id = qp.send_queue.add(request);
        let request = Request {
            qp: qp.id(number),
            id,
            transport: qp.qp_type,
            peer,
            peer_qp: wqe.meta.dest_qp_num,
            qkey: wqe.meta.qkey,
            operation: work.operation,
            immediate: work.immediate,
            unsolicited: qp.unsolicited_write_recv,
            remote: (work.remote.key, work.remote.address),
            length: work.length,
            version: self.attributes.device_version,
            rnr_retry: qp.rnr_retry,
            data: work.data,
        };
        if is_duplicate {
            let qp = number;
            self.errors.program(host, ProgramError::DuplicateId { qp, req_id });
        }
        Some(request)
    }

    /// Completes a request. If its queue pair was reset, failed or destroyed since, the request has ended already.
    pub(crate) fn complete(&mut self, host: &mut dyn Host, qp: QpId, id: u64, status: CompStatus) {
        let request = self.resources.qps.current_mut(qp).and_then(|qp| qp.send_queue.remove(id));
        if let Some(request) = request {
            self.resources.qps.schedule(qp.number);
            self.end(host, qp.number, &request, status);
        }
    }

    /// See [`Device::gather`](crate::Device::gather).
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
        self.locate(request, offset, length, Access::LocalRead, segments)?;
        Ok(Payload::Memory)
    }

    /// Locates the part of a request's buffers that starts at `offset`. Fails with the completion status of the request.
    pub(crate) fn locate(
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
            self.resources.mrs.translate(pd, part, access, segments).map_err(|_| CompStatus::LocalInvalidLkey)?;
        }
        Ok(())
    }

    /// See [`Device::gather_for_peer`](crate::Device::gather_for_peer).
    pub(crate) fn gather_for_peer(
        &self,
        qp: QpId,
        (key, address): (u32, u64),
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        let qp = self.resources.qps.current(qp);
        let pd = qp.ok_or(CompStatus::RemoteAbort)?.pd;
        // If the device checks the key of an empty read, it did so when the read arrived.
        if length == 0 {
            return Ok(());
        }
        let memory = Keyed { key, address, length };
        self.resources.mrs.translate(pd, memory, Access::RemoteRead, segments).map_err(|_| CompStatus::RemoteBadAddress)
    }
}
