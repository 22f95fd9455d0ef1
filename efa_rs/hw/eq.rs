// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Entries of an event queue, which report that a completion queue has new completions.

use super::wire::{
    self,
    bits,
    codes,
    layout, //
};

/// Offset of the byte with the phase in an entry.
pub const PHASE_OFFSET: usize = 0;

codes! {
    /// Types of events.
    pub enum EventType: u8 {
        /// An armed completion queue has a new completion.
        Completion = 0 => "COMPLETION",
    }
}

bits! {
    /// First word of an entry.
    pub struct EqeCommon(u32) {
        /// Phase: toggles with each pass through the queue; 1 in the first pass.
        0:0 phase => bool,
        /// Type of the event, an [`EventType`].
        8:1 event_type => u8 as EventType,
    }
}

layout! {
    /// One entry of an event queue.
    pub struct Eqe[16] {
        /// Phase and type. The device writes it last.
        common @ 0: EqeCommon,
        /// Number of the completion queue, for [`EventType::Completion`].
        cqn @ 8: u16 as Id,
    }
}
