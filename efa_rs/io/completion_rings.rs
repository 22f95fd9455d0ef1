// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The rings of a completion queue, in host memory.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    hw::io::{
        Cdesc,
        CdescFlags,
        CDESC_FLAGS_OFFSET, //
    },
    sys::dma::Entries, //
};

/// The rings of a completion queue, its *sub-queues*, with their consumer counters.
pub(crate) struct CompletionRings<'bound> {
    entries: Arc<Entries<'bound, { Cdesc::SIZE }>>,
    /// Number of entries per ring, a power of two, minus one.
    mask: u32,
    rings: KVec<Ring>,
    /// Index of the ring to poll next.
    next: usize,
    /// Number of completions consumed from all rings, modulo 2^16.
    total: u16,
}

/// A ring.
struct Ring {
    /// Index of its first entry, a multiple of the depth.
    first: u32,
    /// Consumer counter: completions consumed so far. It determines the two fields below.
    cc: u64,
    /// Index of the next entry.
    entry: u32,
    /// Phase of the next entry, once the device has written it.
    phase: bool,
}

impl Ring {
    /// Returns whether the device has written the next entry.
    #[inline]
    fn has_next(&self, entries: &Entries<'_, { Cdesc::SIZE }>) -> bool {
        let flags = CdescFlags::from_raw(entries.read_byte::<CDESC_FLAGS_OFFSET>(self.entry));
        flags.phase == self.phase
    }

    /// Advances to the next entry, and returns the current one with its position.
    #[inline]
    fn advance(&mut self, mask: u32) -> (u32, u64) {
        let (entry, position) = (self.entry, self.cc);
        self.cc = position.wrapping_add(1);
        self.entry = entry.wrapping_add(1);
        // The number of entries is a power of two, and the first one's index a multiple of it.
        if self.entry & mask == 0 {
            self.entry = self.first;
            // The phase toggles with each pass over the ring, and is 1 in the first.
            self.phase = !self.phase;
        }
        (entry, position)
    }

    /// Returns whether the device has written the entry of a position. `mask` is the depth minus one.
    fn is_written(&self, entries: &Entries<'_, { Cdesc::SIZE }>, mask: u32, position: u64) -> bool {
        // CAST: The mask leaves fewer bits.
        let entry = self.first | position as u32 & mask;
        let flags = CdescFlags::from_raw(entries.read_byte::<CDESC_FLAGS_OFFSET>(entry));
        // The phase toggles with each pass over the ring, and is 1 in the first.
        let expected = position & (u64::from(mask) + 1) == 0;
        flags.phase == expected
    }
}

/// A completion that the device has written.
pub(crate) struct Completion {
    /// Its bytes as the device has written them.
    pub(crate) bytes: [u8; Cdesc::SIZE],
    /// Index of its ring.
    ring: usize,
    /// Number of completions before it in its ring.
    position: u64,
}

/// A point in time: the number of completions that the device had written to each ring.
pub(crate) struct Mark(KVec<u64>);

impl Mark {
    /// Returns whether the device has written `completion` after this point.
    #[inline]
    pub(crate) fn is_before(&self, completion: &Completion) -> bool {
        let position = self.0.get(completion.ring);
        position.is_some_and(|position| *position <= completion.position)
    }
}

impl<'bound> CompletionRings<'bound> {
    /// Returns the number of entries that [`Self::new`] needs for `count` rings of `depth` entries.
    pub(crate) fn entries(count: u16, depth: u32) -> Option<u32> {
        u32::from(count)
            .checked_mul(depth)
            .and_then(u32::checked_next_power_of_two)
    }

    /// Creates `count` empty rings of `depth` entries each, a power of two.
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
            let ring = Ring {
                first,
                cc: 0,
                entry: first,
                phase: true,
            };
            rings.push(ring, GFP_KERNEL)?;
        }
        Ok(Self {
            entries,
            mask: depth - 1,
            rings,
            next: 0,
            total: 0,
        })
    }

    /// Advances to the next ring, so that each ring gets its turn.
    #[inline]
    pub(crate) fn pass_over(&mut self) {
        self.next = self.next.wrapping_add(1);
        if self.next >= self.rings.len() {
            self.next = 0;
        }
    }

    /// Removes the next completion of a ring, and advances to other rings if it has none.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let count = self.rings.len();
        let mut index = self.next;
        for _ in 0..count {
            let ring = self.rings.get_mut(index)?;
            if ring.has_next(&self.entries) {
                let (entry, position) = ring.advance(self.mask);
                self.next = index;
                self.total = self.total.wrapping_add(1);
                return Some(Completion {
                    bytes: self.entries.read(entry),
                    ring: index,
                    position,
                });
            }
            index = index.wrapping_add(1);
            if index >= count {
                index = 0;
            }
        }
        None
    }

    /// Returns whether there is a completion.
    pub(crate) fn has_some(&self) -> bool {
        let mut rings = self.rings.iter();
        rings.any(|ring| ring.has_next(&self.entries))
    }

    /// Returns the number of completions consumed, modulo 2^16.
    pub(crate) fn total(&self) -> u16 {
        self.total
    }

    /// Allocates a mark for `count` rings, without a meaning before [`Self::set_mark`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new_mark(count: u16) -> Result<Mark> {
        Ok(Mark(KVec::from_elem(0, count.into(), GFP_KERNEL)?))
    }

    /// Sets a mark to the current time, in a number of steps logarithmic in the depth.
    pub(crate) fn set_mark(&self, mark: &mut Mark) {
        for (ring, end) in self.rings.iter().zip(mark.0.iter_mut()) {
            // The device has written the completions before `low`, but not those from `high` on.
            let (mut low, mut high) = (ring.cc, ring.cc + u64::from(self.mask) + 1);
            while low < high {
                let middle = low + (high - low) / 2;
                if ring.is_written(&self.entries, self.mask, middle) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            *end = low;
        }
    }
}
