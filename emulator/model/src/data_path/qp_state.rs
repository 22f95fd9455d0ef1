// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The state machine of queue pairs: transitions by the driver, failures, and the flush of work requests.

use efa_hw::{
    admin::{
        NoData, Status,
        qp::{DestroyQp, ModifyQp, QpState, QpType},
    },
    io::CompStatus,
};

use super::{DataPath, completion::failed};
use crate::{
    Host, ensure,
    resources::{
        qp::{MAX_RNR_RETRY, default_rnr_retry},
        table::number,
    },
};

/// Largest packet sequence number, which has 24 bits.
const MAX_PSN: u32 = (1 << 24) - 1;

/// Whether the driver may move a queue pair from one state to another.
fn is_transition(from: QpState, to: QpState) -> bool {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

    match to {
        Reset => true,
        Init => matches!(from, Reset | Init),
        Rtr => from == Init,
        Rts => matches!(from, Rtr | Rts | Sqd | Sqe),
        Sqd => matches!(from, Rts | Sqd),
        // Only the device itself stops a send queue for an error.
        Sqe => false,
        Err => from != Reset,
    }
}

impl DataPath {
    pub(crate) fn modify_qp(&mut self, host: &mut dyn Host, command: &ModifyQp) -> Result<NoData, Status> {
        let number = number(command.qp_handle)?;
        let qp = self.resources.qps.table.get_mut(number)?;
        let mask = command.modify_mask;
        let state = |state: u32| QpState::try_from(state).map_err(|_| Status::IllegalParameter);

        // All checks come first: a command that fails changes nothing.
        // The driver does not learn of errors of the queue pair.
        let is_unknown = matches!(qp.state, QpState::Sqe | QpState::Err);
        if mask.cur_qp_state {
            let is_right = state(command.cur_qp_state)? == qp.state || is_unknown;
            ensure(is_right, Status::IllegalParameter)?;
        }
        let mut to = qp.state;
        if mask.qp_state {
            to = state(command.qp_state)?;
            ensure(is_transition(qp.state, to), Status::IllegalParameter)?;
        }
        let supported = self.attributes.rnr_retry || !mask.rnr_retry;
        ensure(supported, Status::UnsupportedOpcode)?;
        let legal = (!mask.rnr_retry || qp.qp_type == QpType::Srd && command.rnr_retry <= MAX_RNR_RETRY)
            && (!mask.sq_psn || command.sq_psn <= MAX_PSN)
            && (!mask.sq_drained_async_notify || to == QpState::Sqd);
        ensure(legal, Status::IllegalParameter)?;

        if matches!(to, QpState::Reset | QpState::Err) {
            host.quiesce();
        }
        qp.state = to;
        if to == QpState::Reset {
            (qp.qkey, qp.sq_psn) = (0, 0);
            qp.rnr_retry = default_rnr_retry(qp.qp_type);
            qp.send_queue.reset();
            qp.receive_queue.reset();
        }
        if mask.qkey {
            qp.qkey = command.qkey;
        }
        if mask.sq_psn {
            qp.sq_psn = command.sq_psn;
        }
        if mask.rnr_retry {
            qp.rnr_retry = command.rnr_retry;
        }
        match to {
            QpState::Reset => {
                self.resources.qps.renew(number);
                self.late.forget(number);
            }
            QpState::Err => self.flush(host, number),
            // Work requests posted before may now start, or the queue pair must no longer send.
            _ => self.resources.qps.schedule(number),
        }
        Ok(NoData {})
    }

    pub(crate) fn destroy_qp(&mut self, host: &mut dyn Host, command: &DestroyQp) -> Result<NoData, Status> {
        let number = number(command.qp_handle)?;
        let qp = self.resources.qps.table.get_mut(number)?;
        host.quiesce();
        self.late.forget(number);
        // rdma-core's `efa_io_defs.h` has `EFA_IO_COMP_STATUS_FLUSHED` as "Flushed during QP destroy".
        if self.attributes.flush_on_destroy {
            qp.state = QpState::Err;
            self.flush(host, number);
        }
        let resources = &mut self.resources;
        let qp = resources.qps.remove(number)?;
        resources.pds.remove_user(qp.pd);
        resources.uars.remove_user(qp.uar);
        resources.cqs.remove_user(qp.send_cq.0);
        resources.cqs.remove_user(qp.recv_cq.0);
        resources.event_counters.detach_all(qp.counters);
        Ok(NoData {})
    }

    /// Moves a queue pair to the error state, and flushes it.
    pub(super) fn fail(&mut self, host: &mut dyn Host, number: u16) {
        host.quiesce();
        if let Some(qp) = self.resources.qps.get_mut(number) {
            qp.state = QpState::Err;
        }
        self.flush(host, number);
    }

    /// Completes all work requests of a queue pair in the error state as flushed.
    pub(super) fn flush(&mut self, host: &mut dyn Host, number: u16) {
        self.resources.qps.renew(number);
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return;
        };
        let mut sends: Vec<_> = qp.send_queue.take_all().collect();
        while let Some(wqe) = qp.send_queue.fetch(host, number) {
            sends.push(wqe.outstanding(0));
        }
        for mut request in sends {
            // Rules concern work requests that end by themselves.
            request.fault = None;
            self.end_send(host, number, &request, CompStatus::Flushed);
        }
        self.flush_receives(host, number);
    }

    /// Completes all receive work requests of a queue pair in the error state as flushed, first those taken by deliveries.
    pub(super) fn flush_receives(&mut self, host: &mut dyn Host, number: u16) {
        let most = self.attributes.max_wr_recv_sges.max(1);
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return;
        };
        let cq = qp.recv_cq;
        for req_id in qp.receive_queue.end_taken() {
            let completion = failed(number, req_id, CompStatus::Flushed.into());
            self.complete_receive(host, cq, completion, None);
        }
        while let Some(qp) = self.resources.qps.get_mut(number) {
            match qp.receive_queue.take(host, number, most) {
                Ok(receive) => self.fail_receive(host, number, &receive, CompStatus::Flushed),
                Err(_) => {
                    qp.receive_queue.clear();
                    return;
                }
            }
        }
    }
}
