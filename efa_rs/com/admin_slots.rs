// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The slots of the commands in flight.
//!
//! The low bits of a command's id are the number of its slot. The high bits count all commands, so
//! that duplicate and late completions are recognised.

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

/// Mask of the bits of a command id.
const COMMAND_ID_MASK: u16 = (1 << COMMAND_ID_BITS) - 1;

/// A command with a slot.
pub(super) struct Turn {
    /// The number of the slot.
    pub(super) slot: u16,
    /// The id of the command.
    pub(super) id: u16,
    /// Number of earlier commands in the session, modulo 2^16.
    pub(super) number: u16,
}

/// The slots. A set of slots is a mask with a bit per slot.
pub(super) struct Slots {
    /// Whether commands are accepted. Once false, this stays so.
    is_open: bool,
    /// Number of commands submitted in this session, modulo 2^16.
    submitted: u16,
    /// Slots without a command.
    free: u32,
    /// Slots whose command has not completed.
    in_flight: u32,
    /// Slots whose command was aborted when the queue was closed.
    abandoned: u32,
    /// Ids of the commands, by slot.
    ids: [u16; DEPTH as usize],
    /// Completions of the commands, by slot.
    completions: [AcqEntry; DEPTH as usize],
}

impl Slots {
    /// Creates slots that are all free.
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

    /// Allocates a slot for a command, unless none is free or the queue is closed. The counter in
    /// command ids starts at `first_use`.
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

    /// Stores a completion. Returns its slot, or `None` if no command in flight has the id.
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

    /// Rejects further commands and aborts those in flight. Returns the slots of aborted commands.
    pub(super) fn close(&mut self) -> u32 {
        self.is_open = false;
        let lost = take(&mut self.in_flight);
        self.abandoned |= lost;
        lost
    }

    /// Returns whether the command in a slot has completed or was aborted.
    #[inline]
    pub(super) fn is_over(&self, slot: u16) -> bool {
        self.in_flight & bit(slot) == 0
    }

    /// Frees a slot whose command [is over](Self::is_over), and copies the completion to `entry`.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Abandoned`] if the command was aborted.
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

/// Returns the set with only this slot.
#[inline]
fn bit(slot: u16) -> u32 {
    1 << (slot & (DEPTH - 1))
}
