// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The slots of the commands in flight.
//!
//! The number of a slot is the low part of its command's id. The high part counts the slot's uses, so
//! that a duplicate or late completion is recognised.

use core::mem::take;

use super::{
    admin_rings::{
        DEPTH,
        DEPTH_SHIFT, //
    },
    error::CommandError, //
};
use crate::hw::admin::{
    AcqEntry,
    COMMAND_ID_BITS, //
};

/// The bits of a command id.
const COMMAND_ID_MASK: u16 = (1 << COMMAND_ID_BITS) - 1;

/// A command with a slot.
pub(super) struct Turn {
    /// The number of the slot.
    pub(super) slot: u16,
    /// The id of the command.
    pub(super) id: u16,
    /// Its place among all commands.
    pub(super) number: u16,
}

/// The slots. A set of them has a bit for each.
pub(super) struct Slots {
    /// Whether commands are accepted. Once false, this stays so.
    is_open: bool,
    /// Commands ever submitted.
    submitted: u16,
    /// Those without a command.
    free: u32,
    /// Those whose command is not complete.
    in_flight: u32,
    /// Those whose command was aborted when the queue was closed.
    abandoned: u32,
    /// The ids of the commands.
    ids: [u16; DEPTH as usize],
    /// What the device has completed the commands with.
    completions: [AcqEntry; DEPTH as usize],
}

impl Slots {
    /// Makes free slots.
    pub(super) const fn new() -> Self {
        const { assert!(DEPTH as u32 == u32::BITS) };
        Self {
            is_open: true,
            submitted: 0,
            free: u32::MAX,
            in_flight: 0,
            abandoned: 0,
            ids: [0; DEPTH as usize],
            completions: [[0; size_of::<AcqEntry>()]; DEPTH as usize],
        }
    }

    /// Returns whether commands are accepted.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Takes a slot for a command, unless none is free or the queue is closed. The changing part of ids begins
    /// with `first_use`.
    #[inline]
    pub(super) fn occupy(&mut self, first_use: u16) -> Option<Turn> {
        if !self.is_open || self.free == 0 {
            return None;
        }
        // CAST: Less than 32.
        let slot = self.free.trailing_zeros() as u16;
        let number = self.submitted;
        let id = (slot | number.wrapping_add(first_use) << DEPTH_SHIFT) & COMMAND_ID_MASK;

        *self.ids.get_mut(usize::from(slot))? = id;
        self.free &= !bit(slot);
        self.in_flight |= bit(slot);
        self.submitted = number.wrapping_add(1);
        Some(Turn { slot, id, number })
    }

    /// Takes a completion, and returns the slot of its command. `None` if no command in flight has the id.
    #[inline]
    pub(super) fn complete(&mut self, id: u16, entry: &AcqEntry) -> Option<u16> {
        let slot = id & (DEPTH - 1);
        let index = usize::from(slot);
        if self.in_flight & bit(slot) == 0 || *self.ids.get(index)? != id {
            return None;
        }
        *self.completions.get_mut(index)? = *entry;
        self.in_flight &= !bit(slot);
        Some(slot)
    }

    /// Accepts no more commands, and aborts those in flight. Returns their slots.
    pub(super) fn close(&mut self) -> u32 {
        self.is_open = false;
        let lost = take(&mut self.in_flight);
        self.abandoned |= lost;
        lost
    }

    /// Returns whether the command in a slot has come to an end.
    #[inline]
    pub(super) fn is_over(&self, slot: u16) -> bool {
        self.in_flight & bit(slot) == 0
    }

    /// Frees a slot whose command [is over](Self::is_over). Copies the completion.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Abandoned`] if there is no completion.
    #[inline]
    pub(super) fn release(&mut self, slot: u16, entry: &mut AcqEntry) -> Result<(), CommandError> {
        self.free |= bit(slot);
        match self.completions.get(usize::from(slot)) {
            Some(completion) if self.abandoned & bit(slot) == 0 => {
                *entry = *completion;
                Ok(())
            }
            _ => Err(CommandError::Abandoned),
        }
    }
}

/// Returns the set of one slot.
#[inline]
fn bit(slot: u16) -> u32 {
    1 << (slot & (DEPTH - 1))
}
