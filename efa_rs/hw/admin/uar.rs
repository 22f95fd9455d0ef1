// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for user access regions: pages of doorbells that one process may use.

use super::*;

layout! {
    /// Allocates a user access region.
    pub struct AllocUar[60] {}
}

layout! {
    /// The new user access region.
    pub struct AllocUarResponse[64] {
        /// Number of the user access region.
        uar @ 8: u16 as Id,
    }
}

command!(Opcode::AllocUar, AllocUar => AllocUarResponse);

layout! {
    /// Frees a user access region.
    pub struct DeallocUar[60] {
        /// Number of the user access region.
        uar @ 0: u16 as Id,
    }
}

command!(Opcode::DeallocUar, DeallocUar => NoData);
