// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counting and tracing of protocol errors.

use crate::{host::Host, protocol_error::ProtocolError, trace::TraceEvent};

/// Counter of protocol errors, which also traces them.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    /// Total number of protocol errors.
    pub(crate) count: u64,
}

impl Reporter {
    pub(crate) fn report(&mut self, host: &mut dyn Host, error: ProtocolError) {
        // A driver may stop a device at any time by disabling bus mastering.
        if matches!(error, ProtocolError::Dma(_)) && !host.is_bus_master() {
            return;
        }
        self.count += 1;
        host.trace(&TraceEvent::ProtocolError(error));
    }

    /// Counts accesses to unmapped memory beyond those that are traced.
    pub(crate) fn count_only(&mut self, host: &dyn Host, errors: u64) {
        if host.is_bus_master() {
            self.count += errors;
        }
    }
}
