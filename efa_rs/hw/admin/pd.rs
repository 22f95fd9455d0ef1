// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for protection domains.

use super::*;

layout! {
    /// Allocates a protection domain.
    pub struct AllocPd[60] {}
}

layout! {
    /// The new protection domain.
    pub struct AllocPdResponse[64] {
        /// Number of the protection domain.
        pd @ 8: u16 as Id,
    }
}

command!(Opcode::AllocPd, AllocPd => AllocPdResponse);

layout! {
    /// Frees a protection domain.
    pub struct DeallocPd[60] {
        /// Number of the protection domain.
        pd @ 0: u16 as Id,
    }
}

command!(Opcode::DeallocPd, DeallocPd => NoData);
