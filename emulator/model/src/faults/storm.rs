// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Storms: many events of a kind, each posted as soon as its queue has room.

use std::collections::VecDeque;

use crate::QueueError;

/// Limit on the kinds of events that have storms at a time.
const MAX_KINDS: usize = 64;

/// A storm can't be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StormError {
    /// Too many kinds of events have storms already.
    #[error("{MAX_KINDS} kinds of events have storms already")]
    TooManyKinds,
    /// The queue for the events does not exist.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A kind of asynchronous event, its group and syndrome; or of completion event, its event queue and completion queue.
type Kind = (u16, u16);

/// Numbers of events still to post, by their kinds, in the order of the requests.
#[derive(Debug, Default)]
pub(crate) struct Storms(VecDeque<(Kind, u64)>);

impl Storms {
    /// Number of events still to post.
    pub(crate) fn left(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, left)| sum.saturating_add(*left))
    }

    /// Adds events of a kind.
    pub(crate) fn add(&mut self, kind: Kind, count: u64) -> Result<(), StormError> {
        if let Some((_, left)) = self.0.iter_mut().find(|(other, _)| *other == kind) {
            *left = left.saturating_add(count);
        } else if self.0.len() < MAX_KINDS {
            self.0.push_back((kind, count));
        } else {
            return Err(StormError::TooManyKinds);
        }
        Ok(())
    }

    /// Removes events of the first kind with room, and returns the kind and their number. `room` returns the room for a kind.
    pub(crate) fn take(&mut self, mut room: impl FnMut(Kind) -> u64) -> Option<(Kind, u64)> {
        self.0.retain(|(_, left)| *left > 0);
        self.0.iter_mut().find_map(|(kind, left)| {
            let count = room(*kind).min(*left);
            *left -= count;
            (count > 0).then_some((*kind, count))
        })
    }

    /// Drops the events of a kind.
    pub(crate) fn end(&mut self, kind: Kind) {
        self.0.retain(|(other, _)| *other != kind);
    }
}

/// All storms of a device.
#[derive(Debug, Default)]
pub(crate) struct AllStorms {
    pub(crate) events: Storms,
    pub(crate) notices: Storms,
}

impl AllStorms {
    /// Number of events still to post.
    pub(crate) fn left(&self) -> u64 {
        self.events.left().saturating_add(self.notices.left())
    }
}
