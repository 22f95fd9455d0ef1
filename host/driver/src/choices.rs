// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Where a life takes its decisions from: random numbers of a seed, or the bytes of a fuzzer.

use kernel::sim::Rng;

/// A source of decisions.
pub trait Choices {
    /// Returns a number less than `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64;

    /// Returns whether there are more decisions to take.
    fn has_more(&self) -> bool;
}

impl dyn Choices + '_ {
    /// Returns true in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        // Bytes that have run out are zero, and choose what happens most.
        self.below(n) == n - 1
    }

    /// Returns one of some values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// Random numbers, of which so many are taken.
pub struct Random {
    /// The numbers.
    pub rng: Rng,
    /// How many actions are left.
    pub actions: u32,
}

impl Choices for Random {
    fn below(&mut self, n: u64) -> u64 {
        self.actions = self.actions.saturating_sub(1);
        self.rng.below(n)
    }

    fn has_more(&self) -> bool {
        self.actions != 0
    }
}

/// Bytes; those that are missing are zero.
pub struct Bytes<'a>(pub &'a [u8]);

impl Choices for Bytes<'_> {
    fn below(&mut self, n: u64) -> u64 {
        let mut value = 0;
        let mut room = 1;
        while room < n {
            let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
            self.0 = rest;
            value = value << 8 | u64::from(*first);
            room <<= 8;
        }
        value % n
    }

    fn has_more(&self) -> bool {
        !self.0.is_empty()
    }
}
