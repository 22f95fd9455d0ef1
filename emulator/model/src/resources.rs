// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The objects that a driver makes, and the commands that make, change and destroy them.
//!
//! What the real firmware answers to a bad command is not documented. In the model
//! - a reserved bit that is set, or parts of a command that contradict each other, are a
//!   `MALFORMED_REQUEST`,
//! - a number of something that does not exist, or a value out of its range, are an
//!   `ILLEGAL_PARAMETER`,
//! - what this device can't do, but another might, is an `UNSUPPORTED_OPCODE`,
//! - a limit that is reached is a `RESOURCE_ALLOCATION_FAILURE`,
//! - destroying what something else uses is `RESOURCE_BUSY`,
//! - host memory that can't be read is an `UNKNOWN_ERROR`.

mod ah;
mod cq;
mod eq;
mod mr;
mod pd;
mod qp;
mod table;
mod uar;

use crate::{Host, Queue, QueueError, queue::Place, state::ResourceCounts};

/// All objects of a device.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    pds: pd::Pds,
    uars: uar::Uars,
    eqs: eq::Eqs,
    ahs: ah::Ahs,
    mrs: mr::Mrs,
    cqs: cq::Cqs,
    qps: qp::Qps,
}

impl Resources {
    pub(crate) fn counts(&self) -> ResourceCounts {
        ResourceCounts {
            pd: self.pds.len(),
            uar: self.uars.len(),
            eq: self.eqs.len(),
            ah: self.ahs.len(),
            mr: self.mrs.len(),
            mr_pages: self.mrs.known_pages(),
            cq: self.cqs.len(),
            qp: self.qps.len(),
        }
    }

    /// Arms an event queue, if it exists; returns the interrupt that had to wait for that.
    pub(crate) fn arm_eq(&mut self, eqn: u16) -> Option<Option<u16>> {
        self.eqs.arm(eqn).ok()
    }

    /// Posts an event about a completion queue, which need not exist, to an event queue, or to its
    /// own; returns the interrupt that announces it, unless one is not wanted yet.
    pub(crate) fn post_event(
        &mut self,
        host: &mut dyn Host,
        eqn: Option<u16>,
        cqn: u16,
    ) -> Result<Option<u16>, QueueError> {
        let eqn = eqn.map_or_else(|| self.cqs.eqn(cqn), Ok)?;
        self.eqs.post(host, eqn, cqn)
    }

    /// Where a queue is.
    pub(crate) fn place(&self, queue: Queue) -> Result<Place, QueueError> {
        match queue {
            Queue::Cq(number) => self.cqs.place(number),
            Queue::Rq(number) => self.qps.receive_queue(number),
            Queue::Eq(number) => self.eqs.place(number),
        }
        .ok_or(QueueError::Missing(queue))
    }

    /// Event queues that are armed.
    pub(crate) fn armed_eqs(&self) -> usize {
        self.eqs.armed()
    }
}
