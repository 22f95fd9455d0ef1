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
pub(crate) struct CompletionRings<'bound> {
    entries: Arc<Entries<'bound, { Cdesc::SIZE }>>,
    /// Entries of each ring, a power of two, less one.
    mask: u32,
    rings: KVec<Ring>,
    /// The ring to look at next, so that none waits for the others.
    next: usize,
    /// Completions consumed of all rings.
    total: u16,
}

/// A ring.
#[derive(Clone, Copy)]
struct Ring {
    /// Its first entry, a multiple of the depth.
    first: u32,
    /// Completions ever consumed; their entry and phase follow from it.
    consumed: u32,
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
        let mut rings = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for ring in 0..u32::from(count) {
            let first = ring * depth;
            rings.push(Ring { first, consumed: 0 }, GFP_KERNEL)?;
        }
        Ok(Self {
            entries,
            mask: depth - 1,
            rings,
            next: 0,
            total: 0,
        })
    }

    /// Returns the entry of a ring's completion at a position, if the device has written it.
    #[inline]
    fn pending(&self, ring: Ring, position: u32) -> Option<u32> {
        let entry = ring.first | position & self.mask;
        let flags = CdescFlags::from_raw(self.entries.read_byte::<CDESC_FLAGS_OFFSET>(entry));
        // Changes with each round, of which the first has a 1.
        let expected = position & self.mask.wrapping_add(1) == 0;
        (flags.phase == expected).then_some(entry)
    }

    /// Returns the next completion, of whichever ring has one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<[u8; Cdesc::SIZE]> {
        for _ in 0..self.rings.len() {
            let index = self.next;
            let ring = *self.rings.get(index)?;
            self.next = index.wrapping_add(1);
            if self.next >= self.rings.len() {
                self.next = 0;
            }
            if let Some(entry) = self.pending(ring, ring.consumed) {
                self.rings.get_mut(index)?.consumed = ring.consumed.wrapping_add(1);
                self.total = self.total.wrapping_add(1);
                // The device writes the phase last.
                dma_mb(Read);
                return Some(self.entries.read(entry));
            }
        }
        None
    }

    /// Returns whether there is a completion.
    pub(crate) fn has_some(&self) -> bool {
        let mut rings = self.rings.iter();
        rings.any(|ring| self.pending(*ring, ring.consumed).is_some())
    }

    /// Returns how many completions were ever consumed, modulo 2^16.
    pub(crate) fn total(&self) -> u16 {
        self.total
    }

    /// Changes each completion that was not consumed yet.
    pub(crate) fn amend(&self, change: impl Fn(Cdesc) -> Cdesc) {
        for ring in &self.rings {
            let positions = (0..=self.mask).map(|ahead| ring.consumed.wrapping_add(ahead));
            for entry in positions.map_while(|position| self.pending(*ring, position)) {
                dma_mb(Read);
                let completion = change(Cdesc::decode(&self.entries.read(entry)));
                self.entries.write(entry, &completion.encode());
            }
        }
    }
}
