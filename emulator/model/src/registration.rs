// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fast registration and invalidation: work requests that give a memory region its pages, and take them away.
//!
//! The device carries them out by itself, when it fetches them, so that each later work request of the send queue finds them
//! done, and so do the earlier ones that are still in flight.

use efa_hw::{
    admin::qp::QpType,
    io::{CompStatus, FastMrInvReq, FastMrRegReq},
};

use crate::{
    Host, TraceEvent,
    firmware::Firmware,
    resources::{mr::RegisterError, send_queue::Fetched},
};

/// What a work request asks for that changes a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionWork {
    /// To give it pages.
    Register(FastMrRegReq),
    /// To take them away.
    Invalidate(FastMrInvReq),
}

impl Firmware {
    /// Carries out a work request that changes a memory region, and returns how it ends.
    pub(crate) fn change_region(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        fetched: &Fetched,
        work: RegionWork,
    ) -> CompStatus {
        let status = match self.try_change_region(host, number, fetched, work) {
            Ok(()) => CompStatus::Ok,
            Err(status) => status,
        };
        host.trace(&TraceEvent::RegionWork {
            qp: number,
            work,
            status,
        });
        status
    }

    fn try_change_region(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        fetched: &Fetched,
        work: RegionWork,
    ) -> Result<(), CompStatus> {
        let qp = self.resources.qps.get(number).ok_or(CompStatus::Flushed)?;
        let pd = qp.pd;
        let possible = self.attributes.fast_mr
            && qp.qp_type == QpType::Srd
            && self.resources.pds.is_privileged(pd)
            && !fetched.meta.ctrl1.has_imm
            && !fetched.meta.ctrl1.inline_msg;
        if !possible {
            return Err(CompStatus::LocalUnsupportedOp);
        }
        if !fetched.is_canonical(work) {
            return Err(CompStatus::LocalQpInternalError);
        }
        let mrs = &mut self.resources.mrs;
        match work {
            RegionWork::Register(request) => mrs
                .register(host, &self.attributes, pd, &request)
                .map_err(|error| match error {
                    RegisterError::Refused(status) => status,
                    RegisterError::Dma(error) => {
                        self.complaints.push(error.into());
                        CompStatus::LocalInvalidLkey
                    }
                }),
            RegionWork::Invalidate(request) => mrs
                .invalidate(pd, request.lkey)
                .map_err(|_| CompStatus::LocalInvalidLkey),
        }
    }
}
