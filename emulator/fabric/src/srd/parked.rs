// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Parts of messages for which the peer's queue pair was not ready.
//!
//! Parked parts are not in flight, so that they do not block other packets. That of the oldest message is retried after a while,
//! which becomes longer with each failure. When any packet for the queue pair is delivered, the next oldest ones follow it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

/// Time before the first retry.
const FIRST_WAIT: Duration = Duration::from_micros(500);

/// Maximum time between two retries.
const LONGEST_WAIT: Duration = Duration::from_millis(8);

/// Number of parts that follow a delivered one, so that a queue pair that is ready again gets all of them soon.
const FOLLOW: usize = 2;

/// A part of a message. Those of older messages come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) message: u64,
    pub(super) offset: u32,
    pub(super) length: u32,
}

/// Parked parts of a connection, by queue pair of the peer.
#[derive(Debug, Default)]
pub(super) struct Parked {
    by_qp: HashMap<u16, Waiting>,
    /// Time of the next retry for each queue pair with a waiting part.
    timers: BTreeSet<(Duration, u16)>,
}

#[derive(Debug)]
struct Waiting {
    /// Empty while the last part is being retried.
    parts: BTreeSet<Part>,
    wait: Duration,
    due: Duration,
}

impl Parked {
    /// Parks a part.
    pub(super) fn park(&mut self, now: Duration, peer_qp: u16, part: Part) {
        let waiting = self.by_qp.entry(peer_qp).or_insert_with(|| Waiting {
            parts: BTreeSet::new(),
            wait: FIRST_WAIT,
            due: now + FIRST_WAIT,
        });
        let before = waiting.due;
        // Before `due`, refusals are of parts that were sent before the first refusal was known.
        if waiting.due <= now {
            waiting.wait = (waiting.wait * 2).min(LONGEST_WAIT);
            waiting.due = now + waiting.wait;
        }
        waiting.parts.insert(part);
        let due = waiting.due;
        self.timers.remove(&(before, peer_qp));
        self.timers.insert((due, peer_qp));
    }

    /// Adds the parts that follow a delivery to a queue pair to `parts`.
    pub(super) fn delivered(&mut self, now: Duration, peer_qp: u16, parts: &mut VecDeque<Part>) {
        let Some(waiting) = self.by_qp.get_mut(&peer_qp) else {
            return;
        };
        self.timers.remove(&(waiting.due, peer_qp));
        waiting.wait = FIRST_WAIT;
        waiting.due = now + FIRST_WAIT;
        parts.extend((0..FOLLOW).map_while(|_| waiting.parts.pop_first()));
        if waiting.parts.is_empty() {
            self.by_qp.remove(&peer_qp);
        } else {
            self.timers.insert((waiting.due, peer_qp));
        }
    }

    /// Adds the parts whose retry is due to `parts`.
    pub(super) fn take_due(&mut self, now: Duration, parts: &mut VecDeque<Part>) {
        while let Some((due, peer_qp)) = self.timers.first().copied() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            let Some(waiting) = self.by_qp.get_mut(&peer_qp) else {
                continue;
            };
            parts.extend(waiting.parts.pop_first());
            // The next retry, unless an acknowledgement comes earlier.
            waiting.wait = (waiting.wait * 2).min(LONGEST_WAIT);
            waiting.due = now + waiting.wait;
            if !waiting.parts.is_empty() {
                self.timers.insert((waiting.due, peer_qp));
            }
        }
    }

    /// Removes the parts of all messages except those that `is_kept` selects.
    pub(super) fn retain(&mut self, is_kept: impl Fn(u64) -> bool) {
        let timers = &mut self.timers;
        self.by_qp.retain(|peer_qp, waiting| {
            waiting.parts.retain(|part| is_kept(part.message));
            if waiting.parts.is_empty() {
                timers.remove(&(waiting.due, *peer_qp));
            }
            !waiting.parts.is_empty()
        });
    }

    /// Returns the time of the next retry.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.timers.first().map(|timer| timer.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(message: u64) -> Part {
        Part { message, offset: 0, length: 1 }
    }

    fn messages(parts: &mut VecDeque<Part>) -> Vec<u64> {
        parts.drain(..).map(|part| part.message).collect()
    }

    #[test]
    fn intervals_between_retries_increase() {
        let (mut parked, mut parts) = (Parked::default(), VecDeque::new());
        let mut now = Duration::from_secs(1);
        for message in 0..3 {
            parked.park(now, 7, part(message));
        }
        let mut waits = Vec::new();
        for _ in 0..7 {
            let due = parked.next_due().unwrap();
            waits.push((due - now).as_micros());
            parked.take_due(due - Duration::from_nanos(1), &mut parts);
            assert!(parts.is_empty());
            now = due;
            parked.take_due(now, &mut parts);
            assert_eq!(messages(&mut parts), [0]);
            parked.park(now, 7, part(0));
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
    }

    #[test]
    fn a_failure_at_the_time_of_a_retry_postpones_it() {
        let (mut parked, mut parts) = (Parked::default(), VecDeque::new());
        let now = Duration::from_secs(1);
        parked.park(now, 7, part(0));
        let late = now + FIRST_WAIT;
        parked.park(late, 7, part(1));
        assert_eq!(parked.next_due(), Some(late + 2 * FIRST_WAIT));
        parked.take_due(late, &mut parts);
        assert!(parts.is_empty());
    }

    #[test]
    fn a_delivery_resumes_the_oldest_messages() {
        let (mut parked, mut parts) = (Parked::default(), VecDeque::new());
        let now = Duration::from_secs(1);
        for message in [1, 0, 2] {
            parked.park(now, 7, part(message));
        }
        parked.delivered(now, 8, &mut parts);
        assert!(parts.is_empty());
        parked.delivered(now, 7, &mut parts);
        assert_eq!(messages(&mut parts), [0, 1]);
        parked.delivered(now, 7, &mut parts);
        assert_eq!(messages(&mut parts), [2]);
        assert_eq!(parked.next_due(), None);
    }

    #[test]
    fn a_failed_message_is_not_retried() {
        let mut parked = Parked::default();
        let now = Duration::from_secs(1);
        parked.park(now, 7, part(0));
        parked.park(now, 8, part(1));
        parked.retain(|message| message != 0);
        assert_eq!((parked.by_qp.len(), parked.timers.len()), (1, 1));
    }
}
