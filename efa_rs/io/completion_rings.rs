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
        CdescFlags,
        CDESC_FLAGS_OFFSET, //
    },
    sys::dma::Entries,
};

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

    /// Returns the entry of a ring's completion that comes after `ahead` others, if the device has written it.
    fn pending(&self, ring: usize, ahead: u32) -> Option<u32> {
        let position = self.consumed.get(ring)?.wrapping_add(ahead);
        let depth = 1 << self.depth_shift;
        // CAST: There are at most 2^16 rings.
        let entry = (ring as u32) << self.depth_shift | position & (depth - 1);
        let flags = CdescFlags::from_raw(self.entries.read_byte::<CDESC_FLAGS_OFFSET>(entry));
        let expected = position >> self.depth_shift & 1 == 0;
        (ahead < depth && flags.phase == expected).then_some(entry)
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
            let Some(entry) = self.pending(ring, 0) else {
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
        (0..self.consumed.len()).any(|ring| self.pending(ring, 0).is_some())
    }

    /// Returns how many completions were ever consumed, modulo 2^16.
    pub(crate) fn total(&self) -> u16 {
        self.total
    }

    /// Changes each completion that was not consumed yet.
    pub(crate) fn amend(&mut self, change: impl Fn(Cdesc) -> Cdesc) {
        for ring in 0..self.consumed.len() {
            for entry in (0..).map_while(|ahead| self.pending(ring, ahead)) {
                dma_mb(Read);
                let completion = change(Cdesc::decode(&self.entries.read(entry)));
                self.entries.write(entry, &completion.encode());
            }
        }
    }
}
