// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The end of work requests: their statistics, event counters and completions.

use efa_hw::io::{Cdesc, CdescFlags, CompStatus, QueueType, UNKNOWN_AH};

use super::DataPath;
use crate::{
    Host, Then,
    resources::{qp_events::QpEvent, receive_queue::Receive, send_queue::Outstanding},
};

impl DataPath {
    /// Counts the end of a send-queue work request. Posts a completion if it is signaled or has failed.
    pub(super) fn end_send(&mut self, host: &mut dyn Host, number: u16, request: &Outstanding, status: CompStatus) {
        let status = request.status(status);
        let ok = status == u8::from(CompStatus::Ok);
        self.count_flushed(status);
        self.statistics.count_request(request.operation, request.length, ok);
        if let (true, Some(posted), Some(now)) = (ok, request.posted, host.now()) {
            self.times.count_request(request.operation, now.saturating_sub(posted));
        }
        if let Some(event) = QpEvent::of_request(request.operation, ok) {
            self.count(host, number, event);
        }
        let Some(qp) = self.resources.qps.get_mut(number) else {
            return;
        };
        qp.counted.count_request(request.length, ok);
        if ok && !request.signaled {
            return;
        }
        let completion = Cdesc {
            req_id: request.req_id,
            status,
            flags: CdescFlags {
                q_type: QueueType::Send.into(),
                op_type: request.operation.into(),
                ..CdescFlags::default()
            },
            qp_num: number,
            ..Cdesc::default()
        };
        let completion = if qp.has_long_ids { completion.with_req_id_ex(request.req_id_ex) } else { completion };
        let cq = qp.send_cq;
        self.post_completion(host, cq, completion, request.fault.as_deref());
    }

    fn count_flushed(&mut self, status: u8) {
        let flushed = status == u8::from(CompStatus::Flushed);
        self.flushed = self.flushed.saturating_add(flushed.into());
    }

    /// Counts an event of a queue pair, if it has a counter for that.
    pub(super) fn count(&mut self, host: &mut dyn Host, qp: u16, event: QpEvent) {
        let counter = self.resources.qps.get(qp);
        let Some(counter) = counter.and_then(|qp| qp.counters.counter(event)) else {
            return;
        };
        let most = self.attributes.event_counter_max_val;
        let counters = &mut self.resources.event_counters;
        if let Err(error) = counters.count(host, counter, most) {
            self.errors.access(host, error);
        }
    }

    /// Counts and posts the completion of a received message or write, or of a failed receive work request.
    pub(super) fn complete_receive(
        &mut self,
        host: &mut dyn Host,
        cq: (u16, u16),
        completion: Cdesc,
        fault: Option<&Then>,
    ) {
        let ok = completion.status == u8::from(CompStatus::Ok);
        self.count_flushed(completion.status);
        self.count(host, completion.qp_num, QpEvent::of_receive(ok));
        self.post_completion(host, cq, completion, fault);
    }

    /// Completes a receive work request that failed.
    pub(super) fn fail_receive(&mut self, host: &mut dyn Host, number: u16, receive: &Receive, status: CompStatus) {
        if let Some(qp) = self.resources.qps.get_mut(number) {
            qp.receive_queue.end(receive);
            let cq = qp.recv_cq;
            let completion = failed(number, receive.req_id, status.into());
            self.complete_receive(host, cq, completion, None);
        }
    }

    /// Posts a completion, and an event if requested, with the effects of a fault.
    fn post_completion(&mut self, host: &mut dyn Host, cq: (u16, u16), completion: Cdesc, fault: Option<&Then>) {
        // Unsolicited completions consume no work request, so no doorbell has to precede them.
        if !completion.flags.unsolicited {
            if let Some(error) = self.resources.cqs.note_completion(cq.0) {
                self.errors.program(host, error);
            }
        }
        if fault.is_some_and(|fault| fault.silence) {
            return;
        }
        let delay = fault.and_then(|fault| Some((fault, fault.delay()?)));
        if let Some((fault, delay)) = delay.filter(|_| !self.late.is_full()) {
            let fault = fault.clone();
            self.late.add(delay, (cq, completion, fault));
        } else {
            self.post(host, cq, completion, fault);
        }
    }

    /// Posts a completion at once, with the errors that its fault specifies.
    pub(super) fn post(&mut self, host: &mut dyn Host, cq: (u16, u16), completion: Cdesc, fault: Option<&Then>) {
        for _ in 0..fault.map_or(1, Then::copies) {
            if let Err(error) = self.resources.complete(host, cq, completion, fault) {
                self.errors.access(host, error);
            }
        }
    }
}

/// The completion of a receive work request that failed.
pub(super) fn failed(number: u16, req_id: u16, status: u8) -> Cdesc {
    Cdesc {
        req_id,
        status,
        flags: CdescFlags { q_type: QueueType::Receive.into(), ..CdescFlags::default() },
        qp_num: number,
        ah: UNKNOWN_AH,
        ..Cdesc::default()
    }
}
