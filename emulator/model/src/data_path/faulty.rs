// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What rules do to the work of queue pairs, and how work requests end that may take their queue pair with them.

use std::time::Duration;

use efa_hw::{admin::qp::QpState, io::CompStatus};

use super::DataPath;
use crate::{
    Host, Queue, QueueError, Then, WorkKind, faults::when::Occasion,
    resources::send_queue::Outstanding,
};

impl DataPath {
    /// What rules make happen when a queue pair does something. If that ends the device, it does nothing until somebody has
    /// [taken](Self::take_doom) that.
    pub(super) fn fault(
        &mut self,
        kind: WorkKind,
        qp: u16,
        peer: Option<[u8; 16]>,
    ) -> Option<Box<Then>> {
        let fault = Box::new(self.faults.hit(Occasion::Work { kind, qp, peer })?);
        if fault.is_fatal() {
            self.doom = Some(fault.clone());
        }
        Some(fault)
    }

    /// Ends a work request that is not to be carried out because of its fault; returns whether it is so.
    pub(super) fn prevent(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        request: &Outstanding,
    ) -> bool {
        let Some(fault) = request.fault.as_deref() else {
            return false;
        };
        let status = match fault.status {
            _ if fault.is_fatal() => return true,
            _ if fault.executed => return false,
            // The fault has another one.
            Some(_) => CompStatus::Ok,
            None if fault.qp_error => CompStatus::Flushed,
            None => return false,
        };
        self.end(host, number, request, status);
        true
    }

    /// Counts and completes a work request, and puts its queue pair in error if it is to be.
    pub(super) fn end(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        request: &Outstanding,
        status: CompStatus,
    ) {
        self.end_send(host, number, request, status);
        let code = request.status(status);
        self.break_qp(host, number, code, request.fault.as_deref());
    }

    /// Puts a queue pair in error if that is what a status, or a fault, does.
    pub(super) fn break_qp(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        code: u8,
        fault: Option<&Then>,
    ) {
        let breaks = fault.is_some_and(|fault| fault.qp_error);
        if breaks || code == u8::from(CompStatus::LocalQpInternalError) {
            self.fail(host, number);
        }
    }

    /// Puts a queue pair in error for no reason.
    ///
    /// # Errors
    ///
    /// There is no such queue pair.
    pub(crate) fn fail_for_no_reason(
        &mut self,
        host: &mut dyn Host,
        number: u16,
    ) -> Result<(), QueueError> {
        let qp = self.resources.qps.get(number);
        // One that is reset has nothing to fail.
        let state = qp.ok_or(QueueError::Missing(Queue::Rq(number)))?.state;
        if state != QpState::Reset {
            self.fail(host, number);
        }
        Ok(())
    }

    /// Whether the device is about to end.
    pub(crate) fn is_doomed(&self) -> bool {
        self.doom.is_some()
    }

    /// Takes what ends the device.
    pub(crate) fn take_doom(&mut self) -> Option<Box<Then>> {
        self.doom.take()
    }

    /// Whether the device has to be run at once.
    pub(crate) fn is_urgent(&self) -> bool {
        self.doom.is_some() || self.late.has_fresh()
    }

    /// Posts the late completions that are due, and returns when the next one is.
    pub(crate) fn post_late(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        while let Some(faulty) = self.late.take_due(now) {
            self.post_faulty(host, &faulty);
        }
        self.late.next_due()
    }
}
