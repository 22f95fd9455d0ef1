// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Interrupts of the admin queues, which the driver can mask.

use std::collections::BTreeSet;

use crate::Host;

/// Interrupts of the admin queues.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    masked: bool,
    /// Vectors that were raised while masked.
    pending: BTreeSet<u16>,
}

impl Interrupts {
    pub(crate) fn raise(&mut self, host: &mut dyn Host, vector: u16) {
        if self.masked {
            self.pending.insert(vector);
        } else {
            host.interrupt(vector);
        }
    }

    /// Masks or unmasks the interrupts. Unmasking raises the pending ones.
    pub(crate) fn mask(&mut self, host: &mut dyn Host, masked: bool) {
        self.masked = masked;
        if !masked {
            for vector in std::mem::take(&mut self.pending) {
                host.interrupt(vector);
            }
        }
    }
}
