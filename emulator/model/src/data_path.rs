// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The data path: queue pairs and the objects that they use, from doorbells to completions.
//!
//! Admin commands create and destroy the objects. The modules here operate them: [`requester`] for work requests of a program,
//! [`responder`] for operations of its peers. [`region_change`] is for work requests that the device executes itself. All of them
//! use [`qp_state`] to fail queue pairs, and [`completion`] to notify programs. [`faulty`] applies fault rules.

mod completion;
pub(crate) mod doorbells;
mod faulty;
mod late;
pub(crate) mod qp_state;
pub(crate) mod region_change;
pub(crate) mod requester;
pub(crate) mod responder;

use efa_hw::admin::{NoData, Status, mr::DeregMr};

use crate::{
    Host, ProgramError, Then, faults::rules::Faults, latency::Times, profile::attributes::Attributes,
    reporter::Reporter, resources::Resources, statistics::Statistics,
};
use late::LateCompletions;

/// The data path of a device.
#[derive(Debug)]
pub(crate) struct DataPath {
    /// Capabilities and limits of the device.
    pub(crate) attributes: Attributes,
    pub(crate) resources: Resources,
    pub(crate) statistics: Statistics,
    pub(crate) times: Times,
    pub(crate) errors: Reporter,
    /// Number of work requests flushed since the last [`take_flushed`](Self::take_flushed).
    flushed: u32,
    /// Fault rules for the work of queue pairs.
    pub(crate) faults: Faults,
    pub(crate) late: LateCompletions,
    /// Queue pair whose long page list is being read.
    registering: Option<u16>,
    /// Pending fault that kills or unplugs the device.
    pub(crate) fatal_fault: Option<Box<Then>>,
}

impl DataPath {
    pub(crate) fn new(attributes: Attributes) -> Self {
        Self {
            attributes,
            resources: Resources::default(),
            statistics: Statistics::default(),
            times: Times::default(),
            errors: Reporter::default(),
            flushed: 0,
            faults: Faults::default(),
            late: LateCompletions::default(),
            registering: None,
            fatal_fault: None,
        }
    }

    /// Removes all objects, late completions and the pending fatal fault, as a reset does.
    pub(crate) fn forget(&mut self) {
        self.resources.end();
        self.late.clear();
        self.fatal_fault = None;
    }

    /// Returns the number of work requests flushed since the last call.
    pub(crate) fn take_flushed(&mut self) -> u32 {
        std::mem::take(&mut self.flushed)
    }

    /// Deregisters a memory region, whether or not a work request uses it.
    pub(crate) fn dereg_mr(&mut self, host: &mut dyn Host, command: &DeregMr) -> Result<NoData, Status> {
        let Resources { mrs, pds, qps, .. } = &mut self.resources;
        let done = mrs.dereg(pds, host, command)?;
        let lkey = command.l_key;
        if let Some((qp, req_id)) = qps.user_of(lkey) {
            let error = ProgramError::RegionInUse { lkey, qp, req_id };
            self.errors.program(host, error);
        }
        Ok(done)
    }
}
