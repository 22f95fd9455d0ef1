// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Entries of an event queue: which completion queue has something new.

use super::wire::{
    self,
    bits,
    codes,
    layout, //
};

/// Position of the byte with the phase in an entry.
pub const PHASE_OFFSET: usize = 0;

codes! {
    /// What an entry reports.
    pub enum EventType: u8 {
        /// An armed completion queue has a new completion.
        Completion = 0 => "COMPLETION",
    }
}

bits! {
    /// First word of an entry.
    pub struct EqeCommon(u32) {
        /// Which round through the queue the entry belongs to; the first is 1.
        0:0 phase => bool,
        /// What the entry reports, an [`EventType`].
        8:1 event_type => u8,
    }
}

layout! {
    /// One entry of an event queue.
    pub struct Eqe[16] {
        /// Phase and type. The device writes it last.
        common @ 0: EqeCommon,
        /// Number of the completion queue, for [`EventType::Completion`].
        cqn @ 8: u16,
    }
}
