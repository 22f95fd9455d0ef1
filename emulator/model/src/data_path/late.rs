// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions that a rule makes late.
//!
//! The data path has no clock: how late a completion is to be is known when its work request ends, and when it comes only when the
//! device is run next, which is to be at once.

use std::{collections::BTreeMap, time::Duration};

use efa_hw::io::Cdesc;

use crate::Then;

/// Most completions that are late. What would be one more comes at once.
const MAX_LATE: usize = 1024;

/// A completion, and what is wrong with it.
#[derive(Debug)]
pub(super) struct Faulty {
    /// The completion queue and its sub-queue.
    pub(super) cq: (u16, u16),
    pub(super) completion: Cdesc,
    pub(super) fault: Then,
}

/// Completions that are late.
#[derive(Debug, Default)]
pub(crate) struct LateCompletions {
    /// Those for which the clock has not been looked at, and how late they are to be.
    fresh: Vec<(Duration, Faulty)>,
    /// The others by when they come, and in the order in which they were made late.
    waiting: BTreeMap<(Duration, u64), Faulty>,
    made: u64,
}

impl LateCompletions {
    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.waiting.len()
    }

    /// Whether somebody has to look at the clock.
    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Makes a completion late, or returns it if too many are.
    pub(super) fn add(&mut self, delay: Duration, faulty: Faulty) -> Result<(), Box<Faulty>> {
        if self.len() >= MAX_LATE {
            return Err(Box::new(faulty));
        }
        self.fresh.push((delay, faulty));
        Ok(())
    }

    /// Takes the next completion that is to come by now.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Faulty> {
        for (delay, faulty) in self.fresh.drain(..) {
            let due = now.saturating_add(delay);
            self.waiting.insert((due, self.made), faulty);
            self.made += 1;
        }
        let next = self.waiting.first_entry()?;
        (next.key().0 <= now).then(|| next.remove())
    }

    /// When the next one comes.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.waiting.keys().next().map(|(due, _)| *due)
    }

    /// Forgets those of a queue pair.
    pub(super) fn forget(&mut self, qp: u16) {
        self.fresh
            .retain(|(_, faulty)| faulty.completion.qp_num != qp);
        self.waiting
            .retain(|_, faulty| faulty.completion.qp_num != qp);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.fresh.clear();
        self.waiting.clear();
    }
}
