// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Bitmaps.

use crate::alloc::{flags::Flags, AllocError};

/// A bitmap.
pub struct BitmapVec {
    words: Vec<u64>,
    bits: usize,
}

impl BitmapVec {
    /// Returns a bitmap of `bits` bits, all clear.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is no memory.
    pub fn new(bits: usize, flags: Flags) -> Result<Self, AllocError> {
        flags.allow()?;
        Ok(Self {
            words: vec![0; bits.div_ceil(64)],
            bits,
        })
    }

    fn is_set(&self, bit: usize) -> bool {
        self.words[bit / 64] >> (bit % 64) & 1 != 0
    }

    /// Sets a bit. Panics if it is out of range.
    pub fn set_bit(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    /// Clears a bit. Panics if it is out of range.
    pub fn clear_bit(&mut self, bit: usize) {
        self.words[bit / 64] &= !(1 << (bit % 64));
    }

    /// Returns the first clear bit from `start` on.
    pub fn next_zero_bit(&self, start: usize) -> Option<usize> {
        (start..self.bits).find(|bit| !self.is_set(*bit))
    }
}
