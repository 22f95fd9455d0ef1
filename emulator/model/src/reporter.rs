// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Who counts and tells what a correct driver never does.

use crate::{host::Host, protocol_error::ProtocolError, trace::TraceEvent};

/// Reports protocol errors.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    /// How many there were, ever.
    pub(crate) count: u64,
}

impl Reporter {
    pub(crate) fn report(&mut self, host: &mut dyn Host, error: ProtocolError) {
        // A driver may stop a device like that at any time.
        if matches!(error, ProtocolError::Dma(_)) && !host.is_bus_master() {
            return;
        }
        self.count += 1;
        host.trace(&TraceEvent::ProtocolError(error));
    }

    /// Counts accesses to memory that is not mapped, of which too many are told already.
    pub(crate) fn count_only(&mut self, host: &dyn Host, errors: u64) {
        if host.is_bus_master() {
            self.count += errors;
        }
    }
}
