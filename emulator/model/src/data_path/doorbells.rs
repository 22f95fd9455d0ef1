// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Doorbells, which announce new descriptors of a work queue, or arm a completion queue and set its consumer index.

use efa_hw::admin::qp::QpState;

use super::DataPath;
use crate::{
    Host,
    profile::bars::{Bars, Doorbell},
    protocol_error::ProtocolError,
    resources::qp::{Qp, Qps},
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
            Doorbell::Sq(qp) => self.ring_send_queue(host, uar, qp, value),
            Doorbell::Rq(qp) => self.ring_receive_queue(host, uar, qp, value),
            Doorbell::Cq(cq) => self.ring_cq(host, uar, cq, value),
        }
    }

    /// Handles a write to the doorbell of a send queue.
    fn ring_send_queue(&mut self, host: &mut dyn Host, uar: u16, number: u16, value: u32) -> Result<(), ProtocolError> {
        let Some(qp) = rung(&mut self.resources.qps, uar, number, value)? else {
            return Ok(());
        };
        self.resources.cqs.note_doorbell(qp.send_cq.0);
        // CAST: the doorbell counts modulo 2^16.
        if qp.send_queue.ring(host.now(), value as u16).is_err() {
            self.fail(host, number);
            return Err(ProtocolError::QueueOverrun { qp: number });
        }
        match qp.state {
            QpState::Rts => self.resources.qps.schedule(number),
            QpState::Err => self.flush(host, number),
            _ => {}
        }
        Ok(())
    }

    /// Handles a write to the doorbell of a receive queue.
    fn ring_receive_queue(
        &mut self,
        host: &mut dyn Host,
        uar: u16,
        number: u16,
        value: u32,
    ) -> Result<(), ProtocolError> {
        let Some(qp) = rung(&mut self.resources.qps, uar, number, value)? else {
            return Ok(());
        };
        self.resources.cqs.note_doorbell(qp.recv_cq.0);
        // CAST: the doorbell counts modulo 2^16.
        if !qp.receive_queue.ring(value as u16) {
            self.fail(host, number);
            return Err(ProtocolError::QueueOverrun { qp: number });
        }
        if qp.state == QpState::Err {
            self.flush_receives(host, number);
        }
        Ok(())
    }

    fn ring_cq(&mut self, host: &mut dyn Host, uar: u16, index: u16, value: u32) -> Result<(), ProtocolError> {
        let eqn = self.resources.cqs.ring(uar, index, value);
        let eqn = eqn.map_err(|_| ProtocolError::ForeignDoorbell { uar })?;
        if let Some(error) = self.resources.cqs.overflow(index, value) {
            self.errors.program(host, error);
        }
        match eqn {
            Some(eqn) => Ok(self.resources.notify(host, eqn, index)?),
            None => Ok(()),
        }
    }
}

/// Returns the queue pair of a doorbell. In the reset state, a program could post nothing but may ring with 0: returns `None`.
fn rung(qps: &mut Qps, uar: u16, number: u16, value: u32) -> Result<Option<&mut Qp>, ProtocolError> {
    let qp = qps.get_mut(number).filter(|qp| qp.uar == uar);
    let qp = qp.ok_or(ProtocolError::ForeignDoorbell { uar })?;
    match (qp.state, value) {
        (QpState::Reset, 0) => Ok(None),
        (QpState::Reset, _) => Err(ProtocolError::QueueState { qp: number }),
        _ => Ok(Some(qp)),
    }
}
