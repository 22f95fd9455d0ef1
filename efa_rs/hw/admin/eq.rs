// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for event queues.

use super::{
    super::{
        admin,
        features::EqEvents,
        wire::{
            self,
            bits,
            layout, //
        }, //
    },
    command,
    NoData,
    Opcode, //
};

bits! {
    /// Form of an event queue.
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
        /// Entry of the MSI-X table that is raised for a new entry.
        msix_vector @ 2: u8,
        /// Form of the queue.
        caps @ 3: CreateEqCaps,
        /// Bus address of the queue.
        base_address @ 4: u64,
        /// Events to report.
        events @ 12: EqEvents,
    }
}

layout! {
    /// The new event queue.
    pub struct CreateEqResponse[64] {
        /// Its number.
        eqn @ 8: u16,
    }
}

command!(Opcode::CreateEq, CreateEq => CreateEqResponse);

layout! {
    /// Destroys an event queue.
    pub struct DestroyEq[60] {
        /// Its number.
        eqn @ 0: u16,
    }
}

command!(Opcode::DestroyEq, DestroyEq => NoData);
