// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Asynchronous event notifications, which the device sends unsolicited.

use super::wire::{
    self,
    bits,
    codes,
    layout, //
};

/// Offset of the byte with the phase in an entry.
pub const PHASE_OFFSET: usize = 4;

codes! {
    /// Kinds of events. A driver enables groups with
    /// [`AenqConfig`](super::features::AenqConfig).
    pub enum AenqGroup: u16 {
        /// The device has failed.
        FatalError = 1 => "FATAL_ERROR",
        /// The device has a problem, but works.
        Warning = 2 => "WARNING",
        /// An event that is not an error.
        Notification = 3 => "NOTIFICATION",
        /// The device is alive; sent periodically.
        KeepAlive = 4 => "KEEP_ALIVE",
    }
}

impl AenqGroup {
    /// Returns the bit of the group in a set of groups.
    pub const fn mask(self) -> u32 {
        1 << self as u16
    }
}

bits! {
    /// Flags of an event.
    pub struct AenqFlags(u8) {
        /// Phase: toggles with each pass through the queue; 1 in the first pass.
        0:0 phase => bool,
    }
}

layout! {
    /// One entry of the asynchronous event queue.
    pub struct AenqEntry[64] {
        /// Kind of event, an [`AenqGroup`].
        group @ 0: u16 as AenqGroup,
        /// Event within the group, which defines its meaning.
        syndrome @ 2: u16,
        /// Phase, which marks a new entry. The device writes it last.
        flags @ 4: AenqFlags,
        /// Time of the event by the device's own clock.
        timestamp @ 8: u64,
        /// Details of the event; the meaning depends on the group.
        data @ 16: [u8; 48],
    }
}
