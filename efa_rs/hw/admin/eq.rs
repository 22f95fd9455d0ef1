// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for event queues.

use super::super::features::EqEvents;
use super::*;

bits! {
    /// Format of an event queue's entries.
    pub struct CreateEqCaps(u8) {
        /// 32-bit words in one entry.
        4:0 entry_size_words => u8,
    }
}

layout! {
    /// Creates an event queue.
    pub struct CreateEq[60] {
        /// Number of entries, a power of two.
        depth @ 0: u16,
        /// Index of the MSI-X vector that signals a new entry.
        msix_vector @ 2: u8,
        /// Format of the entries.
        caps @ 3: CreateEqCaps,
        /// Bus address of the queue.
        base_address @ 4: u64 as Address,
        /// Events to report.
        events @ 12: EqEvents,
    }
}

layout! {
    /// The new event queue.
    pub struct CreateEqResponse[64] {
        /// Number of the event queue.
        eqn @ 8: u16 as Id,
    }
}

command!(Opcode::CreateEq, CreateEq => CreateEqResponse);

layout! {
    /// Destroys an event queue.
    pub struct DestroyEq[60] {
        /// Number of the event queue.
        eqn @ 0: u16 as Id,
    }
}

command!(Opcode::DestroyEq, DestroyEq => NoData);
