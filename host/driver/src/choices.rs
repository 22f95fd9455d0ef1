// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Sources of the decisions in a life: random numbers of a seed, or the bytes of a fuzzer.

use kernel::sim::Rng;

/// A source of decisions.
pub trait Choices {
    /// Returns a number less than `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64;

    /// Returns whether decisions are left.
    fn has_more(&self) -> bool;
}

impl dyn Choices + '_ {
    /// Returns true in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        // An exhausted input of a fuzzer yields zeroes, which must choose the likelier case.
        self.below(n) == n - 1
    }

    /// Returns a chosen element of `values`.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// A generator of random numbers with a limit on the decisions.
pub struct Random {
    /// The generator.
    pub rng: Rng,
    /// Number of decisions left.
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

/// Bytes of a fuzzer's input, followed by zeroes.
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
