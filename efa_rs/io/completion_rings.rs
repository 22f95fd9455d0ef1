// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The rings of a completion queue, in memory.

use kernel::{
    prelude::*,
    sync::{
        barrier::{
            dma_mb,
            Read, //
        },
        Arc, //
    }, //
};

use crate::{
    hw::io::{
        Cdesc,
        CdescFlags, //
    },
    sys::dma::Entries,
};

/// Position of the byte with the phase in an entry.
const FLAGS_OFFSET: usize = 3;

/// The rings of a completion queue, its *sub-queues*, and how far they are consumed.
///
/// # Invariants
///
/// `entries` has room for all of `consumed`, each with `1 << depth_shift` entries.
pub(crate) struct CompletionRings<'bound> {
    entries: Arc<Entries<'bound, { Cdesc::SIZE }>>,
    depth_shift: u32,
    /// Completions ever consumed of each ring; their entry and phase follow from it.
    consumed: KVec<u32>,
    /// The ring to look at next, so that none waits for the others.
    next: usize,
    /// Completions consumed of all rings.
    total: u16,
}

impl<'bound> CompletionRings<'bound> {
    /// Returns how many entries `count` rings take of `depth` entries each: as many as [`Self::new`] wants.
    pub(crate) fn entries(count: u16, depth: u32) -> Option<u32> {
        u32::from(count)
            .checked_mul(depth)
            .and_then(u32::checked_next_power_of_two)
    }

    /// Takes `count` empty rings of `depth` entries each, a power of two.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the entries are too few.
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(
        entries: Arc<Entries<'bound, { Cdesc::SIZE }>>,
        count: u16,
        depth: u32,
    ) -> Result<Self> {
        match Self::entries(count, depth) {
            Some(needed) if depth.is_power_of_two() && needed <= entries.count() => {}
            _ => return Err(EINVAL),
        }
        // INVARIANT: That was checked above.
        Ok(Self {
            entries,
            depth_shift: depth.trailing_zeros(),
            consumed: KVec::from_elem(0, count.into(), GFP_KERNEL)?,
            next: 0,
            total: 0,
        })
    }

    /// Returns the entry of the next completion of a ring, if the device has written it.
    fn pending(&self, ring: usize) -> Option<u32> {
        let consumed = *self.consumed.get(ring)?;
        let mask = (1 << self.depth_shift) - 1;
        // CAST: There are at most 2^16 rings.
        let entry = (ring as u32) << self.depth_shift | consumed & mask;
        let flags = CdescFlags::from_raw(self.entries.read_byte::<FLAGS_OFFSET>(entry));
        let expected = consumed >> self.depth_shift & 1 == 0;
        (flags.phase == expected).then_some(entry)
    }

    /// Returns the next completion, of whichever ring has one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Cdesc> {
        for _ in 0..self.consumed.len() {
            let ring = self.next;
            self.next = if ring + 1 < self.consumed.len() {
                ring + 1
            } else {
                0
            };
            let Some(entry) = self.pending(ring) else {
                continue;
            };

            // The device writes the phase last.
            dma_mb(Read);
            let completion = Cdesc::decode(&self.entries.read(entry));
            if let Some(consumed) = self.consumed.get_mut(ring) {
                *consumed = consumed.wrapping_add(1);
            }
            self.total = self.total.wrapping_add(1);
            return Some(completion);
        }
        None
    }

    /// Returns whether there is a completion.
    pub(crate) fn has_some(&self) -> bool {
        (0..self.consumed.len()).any(|ring| self.pending(ring).is_some())
    }

    /// Returns how many completions were ever consumed, modulo 2^16.
    pub(crate) fn total(&self) -> u16 {
        self.total
    }

    /// Changes each completion that was not consumed yet.
    pub(crate) fn amend(&mut self, change: impl Fn(Cdesc) -> Cdesc) {
        for ring in 0..self.consumed.len() {
            let Some(&consumed) = self.consumed.get(ring) else {
                continue;
            };
            let mask = (1 << self.depth_shift) - 1;
            for number in 0..=mask {
                let position = consumed.wrapping_add(number);
                // CAST: There are at most 2^16 rings.
                let entry = (ring as u32) << self.depth_shift | position & mask;
                let flags = CdescFlags::from_raw(self.entries.read_byte::<FLAGS_OFFSET>(entry));
                if flags.phase != (position >> self.depth_shift & 1 == 0) {
                    break;
                }
                dma_mb(Read);
                let completion = change(Cdesc::decode(&self.entries.read(entry)));
                self.entries.write(entry, &completion.encode());
            }
        }
    }
}
