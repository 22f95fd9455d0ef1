// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions that a rule delays or holds.
//!
//! The data path has no clock. The delay of a completion is known when its work request ends. Its due time is only known when the
//! device runs next, which is at once.

use std::{collections::BTreeMap, time::Duration};

use efa_hw::io::Cdesc;

use crate::{Then, faults::then::HELD};

/// Limit on late and held completions. Beyond it, a completion is posted at once.
const MAX_LATE: usize = 1024;

/// A completion, with the completion queue and its sub-queue, and its fault.
pub(super) type Faulty = ((u16, u16), Cdesc, Then);

/// Completions that are late or held.
#[derive(Debug, Default)]
pub(crate) struct LateCompletions {
    /// Late completions without a due time yet: delay, number and completion.
    fresh: Vec<(Duration, u64, Faulty)>,
    /// Other completions, by due time ([`HELD`] if held) and number, that is, in the order in which they were delayed.
    waiting: BTreeMap<(Duration, u64), Faulty>,
    made: u64,
}

impl LateCompletions {
    /// Whether [`MAX_LATE`] completions wait already.
    pub(super) fn is_full(&self) -> bool {
        self.fresh.len() + self.waiting.len() >= MAX_LATE
    }

    /// Returns the number of completions that are late but not held.
    pub(crate) fn late(&self) -> usize {
        self.fresh.len() + self.waiting.range(..(HELD, 0)).count()
    }

    /// Returns a number for the next work request or command whose completion waits. Held completions are released in this order.
    pub(crate) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// Whether a late completion needs the clock for its due time.
    pub(crate) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Delays or holds a completion, unless there are [too many](Self::is_full).
    pub(super) fn add(&mut self, delay: Duration, faulty: Faulty) {
        let number = self.number();
        if delay == HELD {
            self.waiting.insert((HELD, number), faulty);
        } else {
            self.fresh.push((delay, number, faulty));
        }
    }

    /// Returns the numbers of the held completions, and the names under which they are held.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u64, &str)> {
        let held = self.waiting.range((HELD, 0)..);
        held.filter_map(|((_, number), faulty)| Some((*number, faulty.2.hold.as_deref()?)))
    }

    /// Releases a held completion, which is then due when the device runs next.
    pub(crate) fn release(&mut self, number: u64) {
        if let Some(faulty) = self.waiting.remove(&(HELD, number)) {
            self.waiting.insert((Duration::ZERO, number), faulty);
        }
    }

    /// Takes the next completion that is due at `now`.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Faulty> {
        for (delay, number, faulty) in self.fresh.drain(..) {
            let due = now.saturating_add(delay);
            self.waiting.insert((due, number), faulty);
        }
        let next = self.waiting.first_entry()?;
        (next.key().0 <= now).then(|| next.remove())
    }

    /// Returns the next due time.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let due = self.waiting.keys().next().map(|(due, _)| *due);
        due.filter(|due| *due != HELD)
    }

    /// Drops the completions of a queue pair.
    pub(super) fn forget(&mut self, qp: u16) {
        let is_other = |(_, completion, _): &Faulty| completion.qp_num != qp;
        self.fresh.retain(|(_, _, faulty)| is_other(faulty));
        self.waiting.retain(|_, faulty| is_other(faulty));
    }

    /// Drops all completions.
    pub(crate) fn clear(&mut self) {
        self.fresh.clear();
        self.waiting.clear();
    }
}
