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

use crate::state::ResourceCounts;

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

    /// Arms an event queue, if it exists.
    pub(crate) fn arm_eq(&mut self, eqn: u16) -> bool {
        self.eqs.arm(eqn)
    }

    /// Event queues that are armed.
    pub(crate) fn armed_eqs(&self) -> usize {
        self.eqs.armed()
    }
}
