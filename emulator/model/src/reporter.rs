// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counting and tracing of errors.

use crate::{
    dma::DmaError,
    host::Host,
    program_error::{ProgramError, ProgramErrors},
    protocol_error::ProtocolError,
    trace::TraceEvent,
};

/// Limit on the errors of the data path of each kind that one call traces. An unmapped queue causes as many as it has entries.
const ERRORS_PER_CALL: u32 = 64;

/// Counters of errors, which also traces them.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    /// Total number of protocol errors.
    pub(crate) count: u64,
    /// Numbers of program errors.
    pub(crate) of_programs: ProgramErrors,
    /// Numbers of accesses of the data path that failed and of program errors, in this call.
    in_call: [u32; 2],
}

impl Reporter {
    /// Begins a call.
    pub(crate) fn begin(&mut self) {
        self.in_call = [0; 2];
    }

    pub(crate) fn report(&mut self, host: &mut dyn Host, error: ProtocolError) {
        // A driver may stop a device at any time by disabling bus mastering.
        if matches!(error, ProtocolError::Dma(_)) && !host.is_bus_master() {
            return;
        }
        self.count += 1;
        host.trace(&TraceEvent::ProtocolError(error));
    }

    /// Reports an access of the data path to unmapped memory, which a correct program or driver never causes.
    pub(crate) fn access(&mut self, host: &mut dyn Host, error: DmaError) {
        self.in_call[0] += 1;
        if self.in_call[0] <= ERRORS_PER_CALL {
            self.report(host, error.into());
        } else if host.is_bus_master() {
            self.count += 1;
        }
    }

    /// Reports an error of a program.
    pub(crate) fn program(&mut self, host: &mut dyn Host, error: ProgramError) {
        self.of_programs.count(&error);
        self.in_call[1] += 1;
        if self.in_call[1] <= ERRORS_PER_CALL {
            host.trace(&TraceEvent::ProgramError(error));
        }
    }
}
