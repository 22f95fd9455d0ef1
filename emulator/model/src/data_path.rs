// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The data path: queue pairs and what they work with, from doorbells to completions.
//!
//! The commands make and destroy the objects. Here is what the objects do then: [`requester`] for what a program sends,
//! [`responder`] for what its peers send, [`region_change`] for work requests that the device carries out by itself. All of them
//! end queue pairs by [`qp_state`] and tell programs of it by [`completion`]. What rules make of that is in [`faulty`].

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
    DmaError, Host, Then,
    faults::rules::Faults,
    latency::Times,
    profile::attributes::Attributes,
    program_error::{ProgramError, ProgramErrors},
    protocol_error::ProtocolError,
    resources::Resources,
    statistics::Statistics,
};
use late::LateCompletions;

/// Most errors of one call that are told. One queue that is not mapped has as many as it has entries.
const ERRORS_PER_CALL: usize = 64;

/// The data path of a device.
#[derive(Debug)]
pub(crate) struct DataPath {
    /// What the device can do.
    pub(crate) attributes: Attributes,
    pub(crate) resources: Resources,
    pub(crate) statistics: Statistics,
    pub(crate) times: Times,
    /// Errors of the program or driver that were not reported yet.
    errors: Vec<ProtocolError>,
    /// Further errors, which are only counted.
    more_errors: u64,
    /// What programs did wrong, ever.
    pub(crate) program_errors: ProgramErrors,
    /// Those of them that were not reported yet.
    untold: Vec<ProgramError>,
    /// Work requests that were flushed since that was asked for.
    flushed: u32,
    /// Rules for what queue pairs do.
    pub(crate) faults: Faults,
    pub(crate) late: LateCompletions,
    /// The queue pair of which a long list of pages is read.
    registering: Option<u16>,
    /// What ends the device, if something does.
    doom: Option<Box<Then>>,
}

impl DataPath {
    pub(crate) fn new(attributes: Attributes) -> Self {
        Self {
            attributes,
            resources: Resources::default(),
            statistics: Statistics::default(),
            times: Times::default(),
            errors: Vec::new(),
            more_errors: 0,
            program_errors: ProgramErrors::default(),
            untold: Vec::new(),
            flushed: 0,
            faults: Faults::default(),
            late: LateCompletions::default(),
            registering: None,
            doom: None,
        }
    }

    /// Forgets what it has begun, as a reset does.
    pub(crate) fn forget(&mut self) {
        self.resources.end();
        self.late.clear();
        self.doom = None;
    }

    /// How many work requests were flushed since the last call.
    pub(crate) fn take_flushed(&mut self) -> u32 {
        std::mem::take(&mut self.flushed)
    }

    /// Takes what it met that a correct program or driver never does, and how often it met more of that.
    pub(crate) fn take_errors(&mut self) -> (Vec<ProtocolError>, u64) {
        let more = std::mem::take(&mut self.more_errors);
        (std::mem::take(&mut self.errors), more)
    }

    /// Takes what programs did wrong.
    pub(crate) fn take_program_errors(&mut self) -> Vec<ProgramError> {
        std::mem::take(&mut self.untold)
    }

    /// Takes note of what a program did wrong.
    pub(crate) fn note_program_error(&mut self, error: ProgramError) {
        self.program_errors.count(&error);
        if self.untold.len() < ERRORS_PER_CALL {
            self.untold.push(error);
        }
    }

    /// Deregisters a memory region, whether or not a work request uses it.
    pub(crate) fn dereg_mr(
        &mut self,
        host: &mut dyn Host,
        command: &DeregMr,
    ) -> Result<NoData, Status> {
        let Resources { mrs, pds, qps, .. } = &mut self.resources;
        let done = mrs.dereg(pds, host, command)?;
        let lkey = command.l_key;
        if let Some((qp, req_id)) = qps.user_of(lkey) {
            self.note_program_error(ProgramError::RegionInUse { lkey, qp, req_id });
        }
        Ok(done)
    }

    /// Takes note of what a correct program or driver never does.
    fn note_error(&mut self, error: DmaError) {
        if self.errors.len() < ERRORS_PER_CALL {
            self.errors.push(error.into());
        } else {
            self.more_errors += 1;
        }
    }
}
