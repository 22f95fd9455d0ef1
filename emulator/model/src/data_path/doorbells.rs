// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Doorbells, which announce new descriptors of a work queue, or arm a completion queue and set its consumer index.

use efa_hw::admin::qp::QpState;

use super::DataPath;
use crate::{
    Host, ensure,
    profile::bars::{Bars, Doorbell},
    protocol_error::ProtocolError,
};

impl DataPath {
    /// Handles a write to the doorbell BAR.
    pub(crate) fn ring(
        &mut self,
        host: &mut dyn Host,
        bars: &Bars,
        offset: u64,
        value: u32,
    ) -> Result<(), ProtocolError> {
        let Some((uar, doorbell)) = bars.find(offset) else {
            return Err(ProtocolError::NoDoorbell { offset });
        };
        match doorbell {
            Doorbell::Sq(qp) => self.ring_work_queue(host, uar, (qp, value), true),
            Doorbell::Rq(qp) => self.ring_work_queue(host, uar, (qp, value), false),
            Doorbell::Cq(cq) => self.ring_cq(host, uar, cq, value),
        }
    }

    /// Handles a write of `value` to the doorbell of the send queue or of the receive queue of queue pair `number`.
    fn ring_work_queue(
        &mut self,
        host: &mut dyn Host,
        uar: u16,
        (number, value): (u16, u32),
        sends: bool,
    ) -> Result<(), ProtocolError> {
        let qp = self.resources.qps.get_mut(number).filter(|qp| qp.uar == uar);
        let qp = qp.ok_or(ProtocolError::ForeignDoorbell { uar })?;
        if qp.state == QpState::Reset {
            // A program could post nothing, but may ring with 0.
            return ensure(value == 0, ProtocolError::QueueState { qp: number });
        }
        // CAST: the doorbell counts modulo 2^16.
        let (fits, cq) = match sends {
            true => (qp.send_queue.ring(host.now(), value as u16), qp.send_cq),
            false => (qp.receive_queue.ring(value as u16), qp.recv_cq),
        };
        let state = qp.state;
        self.resources.cqs.note_doorbell(cq.0);
        if !fits {
            self.fail(host, number);
            return Err(ProtocolError::QueueOverrun { qp: number });
        }
        match state {
            QpState::Rts if sends => self.resources.qps.schedule(number),
            QpState::Err if sends => self.flush(host, number),
            QpState::Err => self.flush_receives(host, number),
            _ => {}
        }
        Ok(())
    }

    fn ring_cq(&mut self, host: &mut dyn Host, uar: u16, index: u16, value: u32) -> Result<(), ProtocolError> {
        let cq = self.resources.cqs.get_mut(index).ok().filter(|cq| cq.uar == uar);
        let cq = cq.ok_or(ProtocolError::ForeignDoorbell { uar })?;
        let eqn = cq.ring(value);
        if let Some(error) = cq.overflow(index, value) {
            self.errors.program(host, error);
        }
        match eqn {
            Some(eqn) => Ok(self.resources.notify(host, eqn, index)?),
            None => Ok(()),
        }
    }
}
