// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Effects of fault rules on queue pairs, and the end of work requests that may put their queue pair in error.

use std::time::Duration;

use efa_hw::{admin::qp::QpState, io::CompStatus};

use super::DataPath;
use crate::{Host, Queue, QueueError, Then, WorkKind, faults::when::Occasion, resources::send_queue::Outstanding};

impl DataPath {
    /// Returns the effects of the rules that match work of a queue pair. If they are fatal, the device does nothing until it
    /// runs next.
    pub(super) fn fault(&mut self, kind: WorkKind, qp: u16, peer: Option<[u8; 16]>) -> Option<Box<Then>> {
        let fault = Box::new(self.faults.hit(Occasion::Work { kind, qp, peer })?);
        if fault.is_fatal() {
            self.fatal_fault = Some(fault.clone());
        }
        Some(fault)
    }

    /// Returns whether a fault prevents the execution of a work request. Ends that request, unless the fault is fatal.
    pub(super) fn prevent(&mut self, host: &mut dyn Host, number: u16, request: &Outstanding) -> bool {
        let Some(fault) = request.fault.as_deref() else {
            return false;
        };
        let status = match fault.status {
            _ if fault.is_fatal() => return true,
            _ if fault.executed => return false,
            // `Outstanding::status` replaces it by the status of the fault.
            Some(_) => CompStatus::Ok,
            None if fault.qp_error => CompStatus::Flushed,
            None => return false,
        };
        self.end(host, number, request, status);
        true
    }

    /// Counts and completes a work request, and moves its queue pair to the error state if required.
    pub(super) fn end(&mut self, host: &mut dyn Host, number: u16, request: &Outstanding, status: CompStatus) {
        self.end_send(host, number, request, status);
        let code = request.status(status);
        self.break_qp(host, number, code, request.fault.as_deref());
    }

    /// Moves a queue pair to the error state if a status or a fault requires that.
    pub(super) fn break_qp(&mut self, host: &mut dyn Host, number: u16, code: u8, fault: Option<&Then>) {
        let breaks = fault.is_some_and(|fault| fault.qp_error);
        if breaks || code == u8::from(CompStatus::LocalQpInternalError) {
            self.fail(host, number);
        }
    }

    /// Moves a queue pair to the error state without a cause, at the request of an operator.
    ///
    /// # Errors
    ///
    /// There is no such queue pair.
    pub(crate) fn force_error(&mut self, host: &mut dyn Host, number: u16) -> Result<(), QueueError> {
        let qp = self.resources.qps.get(number);
        // A queue pair in the reset state has no work requests to flush.
        let state = qp.ok_or(QueueError::Missing(Queue::Rq(number)))?.state;
        if state != QpState::Reset {
            self.fail(host, number);
        }
        Ok(())
    }

    /// Posts the late completions that are due, and returns the next due time.
    pub(crate) fn post_late(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        while let Some((cq, completion, fault)) = self.late.take_due(now) {
            self.post(host, cq, completion, Some(&fault));
        }
        self.late.next_due()
    }
}
