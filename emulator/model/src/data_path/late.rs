// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions that a rule makes late, or holds.
//!
//! The data path has no clock. The delay of a completion is known when its work request ends; the time only when the device runs
//! next, which is at once.

use std::{collections::BTreeMap, time::Duration};

use efa_hw::io::Cdesc;

use crate::{Then, faults::then::HELD};

/// Most completions that are late or held. What would be one more comes at once.
const MAX_LATE: usize = 1024;

/// A completion, and what is wrong with it.
#[derive(Debug)]
pub(super) struct Faulty {
    /// The completion queue and its sub-queue.
    pub(super) cq: (u16, u16),
    pub(super) completion: Cdesc,
    pub(super) fault: Then,
}

/// Completions that are late or held.
#[derive(Debug, Default)]
pub(crate) struct LateCompletions {
    /// Those for which the clock has not been looked at, and how late they are to be.
    fresh: Vec<(Duration, u64, Faulty)>,
    /// The others by when they come, and in the order in which they were made late.
    waiting: BTreeMap<(Duration, u64), Faulty>,
    made: u64,
}

impl LateCompletions {
    fn len(&self) -> usize {
        self.fresh.len() + self.waiting.len()
    }

    /// How many are late and not held.
    pub(crate) fn late(&self) -> usize {
        self.fresh.len() + self.waiting.range(..(HELD, 0)).count()
    }

    /// The number of the next completion that waits, of a work request or of a command: they are released in this order.
    pub(crate) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
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
        let number = self.number();
        match delay {
            HELD => {
                self.waiting.insert((HELD, number), faulty);
            }
            _ => self.fresh.push((delay, number, faulty)),
        }
        Ok(())
    }

    /// Those that are held: their numbers, and the names under which they are.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u64, &str)> {
        let held = self.waiting.range((HELD, 0)..);
        held.filter_map(|((_, number), faulty)| Some((*number, faulty.fault.hold.as_deref()?)))
    }

    /// Lets one that is held come when the device is run next.
    pub(crate) fn release(&mut self, number: u64) {
        if let Some(faulty) = self.waiting.remove(&(HELD, number)) {
            self.waiting.insert((Duration::ZERO, number), faulty);
        }
    }

    /// Takes the next completion that is to come by now.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Faulty> {
        for (delay, number, faulty) in self.fresh.drain(..) {
            let due = now.saturating_add(delay);
            self.waiting.insert((due, number), faulty);
        }
        let next = self.waiting.first_entry()?;
        (next.key().0 <= now).then(|| next.remove())
    }

    /// When the next one comes.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let due = self.waiting.keys().next().map(|(due, _)| *due);
        due.filter(|due| *due != HELD)
    }

    /// Forgets those of a queue pair.
    pub(super) fn forget(&mut self, qp: u16) {
        self.fresh
            .retain(|(_, _, faulty)| faulty.completion.qp_num != qp);
        self.waiting
            .retain(|_, faulty| faulty.completion.qp_num != qp);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.fresh.clear();
        self.waiting.clear();
    }
}
