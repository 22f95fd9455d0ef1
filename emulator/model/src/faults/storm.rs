// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Storms: many events of a kind, each of which is posted as soon as there is room for it.

use std::collections::VecDeque;

use crate::QueueError;

/// Most kinds of events that storm at a time.
const MAX_KINDS: usize = 64;

/// Events can't storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StormError {
    /// Too many kinds of events do already.
    #[error("{MAX_KINDS} kinds of events are under way already")]
    TooManyKinds,
    /// There is no queue for them.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Events of kinds `K` that are still to come, in the order in which they were asked for.
#[derive(Debug)]
pub(crate) struct Storms<K>(VecDeque<(K, u64)>);

impl<K> Default for Storms<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Copy + PartialEq> Storms<K> {
    /// How many events are to come.
    pub(crate) fn left(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, (_, left)| sum.saturating_add(*left))
    }

    /// Adds events of a kind.
    pub(crate) fn add(&mut self, kind: K, count: u64) -> Result<(), StormError> {
        if let Some((_, left)) = self.0.iter_mut().find(|(other, _)| *other == kind) {
            *left = left.saturating_add(count);
        } else if self.0.len() < MAX_KINDS {
            self.0.push_back((kind, count));
        } else {
            return Err(StormError::TooManyKinds);
        }
        Ok(())
    }

    /// Takes events of the first kind for which there is room; `room` says for how many. Returns the kind, and how many there are.
    pub(crate) fn take(&mut self, mut room: impl FnMut(K) -> u64) -> Option<(K, u64)> {
        self.0.retain(|(_, left)| *left > 0);
        self.0.iter_mut().find_map(|(kind, left)| {
            let count = room(*kind).min(*left);
            *left -= count;
            (count > 0).then_some((*kind, count))
        })
    }

    /// Drops the events of a kind.
    pub(crate) fn end(&mut self, kind: K) {
        self.0.retain(|(other, _)| *other != kind);
    }
}

/// A kind of asynchronous event: its group and syndrome.
type Kind = (u16, u16);

/// A kind of completion event: its event queue and completion queue.
type Notice = (u16, u16);

/// What storms.
#[derive(Debug, Default)]
pub(crate) struct AllStorms {
    pub(crate) events: Storms<Kind>,
    pub(crate) notices: Storms<Notice>,
}

impl AllStorms {
    /// How many events are to come.
    pub(crate) fn left(&self) -> u64 {
        self.events.left().saturating_add(self.notices.left())
    }
}
