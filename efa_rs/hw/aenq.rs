// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Asynchronous event notifications: what the device reports unasked.

use super::wire::{
    self,
    bits,
    codes,
    layout, //
};

/// Position of the byte with the phase in an entry.
pub const PHASE_OFFSET: usize = 4;

codes! {
    /// Kinds of events. A driver enables the groups it wants with
    /// [`AenqConfig`](super::features::AenqConfig).
    pub enum AenqGroup: u16 {
        /// The device has failed.
        FatalError = 1 => "FATAL_ERROR",
        /// Something is wrong, but the device works.
        Warning = 2 => "WARNING",
        /// Something happened that is not an error.
        Notification = 3 => "NOTIFICATION",
        /// The device is alive; sent periodically.
        KeepAlive = 4 => "KEEP_ALIVE",
    }
}

impl AenqGroup {
    /// The bit that stands for the group in a set of groups.
    pub const fn mask(self) -> u32 {
        1 << self as u16
    }
}

bits! {
    /// Flags of an event.
    pub struct AenqFlags(u8) {
        /// Which round through the queue the entry belongs to; the first is 1.
        0:0 phase => bool,
    }
}

layout! {
    /// One entry of the asynchronous event queue.
    pub struct AenqEntry[64] {
        /// What kind of event it is, an [`AenqGroup`].
        group @ 0: u16,
        /// What happened; the meaning depends on the group.
        syndrome @ 2: u16,
        /// Whether the entry is new. The device writes it last.
        flags @ 4: AenqFlags,
        /// When it happened, in the device's own time.
        timestamp @ 8: u64,
        /// More about the event; the meaning depends on the group.
        data @ 16: [u8; 48],
    }
}
