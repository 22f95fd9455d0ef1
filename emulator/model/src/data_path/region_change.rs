// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fast registration and invalidation: work requests that map and unmap the pages of a memory region.
//!
//! The device executes them itself when it fetches them. Later work requests of the send queue thus see their effect, and so do
//! earlier ones that are still in flight. The device reads a long page list in parts, one at each turn of the queue pair. It
//! reads one long list at a time: all queue pairs could register the same region, whose pages count only once against the limit.

use efa_hw::{
    admin::qp::QpType,
    io::{CompStatus, FastMrRegReq},
};

use super::DataPath;
use crate::{
    Fault, Host, ensure,
    region_work::RegionWork,
    resources::{
        failure::Failure,
        page_list::{PAGES_PER_CALL, PageReader},
        send_queue::{Outstanding, Registering, Wqe},
    },
    trace::TraceEvent,
};

impl DataPath {
    /// Carries out a work request that changes a memory region, or begins to.
    pub(super) fn change_region(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        wqe: &Wqe,
        request: Outstanding,
        work: RegionWork,
    ) {
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return;
        };
        let id = qp.send_queue.add(request);
        match self.begin_change(host, number, wqe, work) {
            Ok(None) => self.end_change(host, number, id, work, CompStatus::Ok),
            Ok(Some((request, pages))) => {
                let registering = Registering { id, request, pages };
                self.resume_registration(host, number, Box::new(registering));
            }
            Err(status) => self.end_change(host, number, id, work, status),
        }
    }

    /// Invalidates a region, or begins to register one.
    fn begin_change(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        wqe: &Wqe,
        work: RegionWork,
    ) -> Result<Option<(FastMrRegReq, PageReader)>, CompStatus> {
        let qp = self.resources.qps.get(number).ok_or(CompStatus::Flushed)?;
        let pd = qp.pd;
        let allowed = self.attributes.fast_mr
            && qp.qp_type == QpType::Srd
            && self.resources.pds.is_privileged(pd)
            && !wqe.meta.ctrl1.has_imm
            && !wqe.meta.ctrl1.inline_msg;
        ensure(allowed, CompStatus::LocalUnsupportedOp)?;
        if !wqe.is_canonical(work) {
            self.errors.program(host, wqe.malformed(number, Fault::Reserved));
            return Err(CompStatus::LocalQpInternalError);
        }
        let mrs = &mut self.resources.mrs;
        match work {
            RegionWork::Register(request) => {
                let pages = mrs.begin_fast(&self.attributes, pd, request)?;
                Ok(Some((request, pages)))
            }
            RegionWork::Invalidate(request) => {
                mrs.invalidate(host, pd, request.lkey).map(|()| None).map_err(|_| CompStatus::LocalInvalidLkey)
            }
        }
    }

    /// Resumes a registration: reads more of its pages, and finishes it if all are read.
    pub(super) fn resume_registration(&mut self, host: &mut dyn Host, number: u16, mut registering: Box<Registering>) {
        let waits = registering.pages.is_long() && !self.may_register(number);
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return;
        };
        let read = match waits {
            true => Ok(false),
            false => {
                let mut budget = PAGES_PER_CALL;
                registering.pages.read(&self.attributes, host, &mut budget)
            }
        };
        if let Ok(false) = read {
            qp.send_queue.registering = Some(registering);
            return;
        }
        let Registering { id, request, pages } = *registering;
        let status = match read {
            Ok(_) => {
                let finished = self.resources.mrs.finish_fast(qp.pd, request, pages);
                finished.err().unwrap_or(CompStatus::Ok)
            }
            Err(failure) => {
                if let Failure::Dma(error) = failure {
                    self.errors.access(host, error);
                }
                CompStatus::LocalInvalidLkey
            }
        };
        self.end_change(host, number, id, RegionWork::Register(request), status);
    }

    /// Reserves the reading of long page lists for a queue pair. Returns false while that of another queue pair is in progress.
    fn may_register(&mut self, number: u16) -> bool {
        let other = self.registering.filter(|other| *other != number);
        let other = other.and_then(|other| self.resources.qps.get(other));
        let is_read = other.is_some_and(|other| other.send_queue.registering.is_some());
        if !is_read {
            self.registering = Some(number);
        }
        !is_read
    }

    fn end_change(&mut self, host: &mut dyn Host, number: u16, id: u64, work: RegionWork, status: CompStatus) {
        host.trace(&TraceEvent::RegionWork { qp: number, work, status });
        let qp = self.resources.qps.get_mut(number);
        let Some(request) = qp.and_then(|qp| qp.send_queue.remove(id)) else {
            return;
        };
        self.end(host, number, &request, status);
    }
}
