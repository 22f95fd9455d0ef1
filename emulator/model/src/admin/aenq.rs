// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The asynchronous event queue.

use std::time::Duration;

use efa_hw::aenq::{AenqEntry, AenqFlags, PHASE_OFFSET};

use super::ring::EventRing;
use crate::{DmaError, Host, queue::Place};

/// The asynchronous event queue.
#[derive(Debug, Default)]
pub(crate) struct Aenq {
    ring: Option<EventRing>,
    /// Events posted, ever.
    produced: u32,
    /// Events that the driver has consumed, ever.
    consumed: u32,
    /// When the next keep-alive event is due.
    keep_alive: Option<Duration>,
    /// Events posted since the reset.
    pub(crate) posted: u64,
}

impl Aenq {
    /// Starts with a new ring, or without one.
    pub(crate) fn configure(&mut self, ring: Option<EventRing>) {
        *self = Self {
            ring,
            ..Self::default()
        };
    }

    /// Where the ring is, if there is one.
    pub(crate) fn place(&self) -> Option<Place> {
        self.ring.as_ref().map(EventRing::place)
    }

    /// For how many events there is room.
    pub(crate) fn room(&self) -> u64 {
        let depth = self.ring.as_ref().map_or(0, EventRing::depth);
        let taken = self.produced.wrapping_sub(self.consumed);
        u32::from(depth).saturating_sub(taken).into()
    }

    /// Takes note of how many events the driver has consumed, if that can be.
    pub(crate) fn consume(&mut self, consumed: u32) -> bool {
        let possible =
            consumed.wrapping_sub(self.consumed) <= self.produced.wrapping_sub(self.consumed);
        if possible {
            self.consumed = consumed;
        }
        possible
    }

    /// Posts an event and returns the vector to raise, or nothing if there is no room for it.
    pub(crate) fn post(
        &mut self,
        host: &mut dyn Host,
        now: Duration,
        group: u16,
        syndrome: u16,
    ) -> Result<Option<u16>, DmaError> {
        if self.room() == 0 {
            return Ok(None);
        }
        let Some(ring) = &mut self.ring else {
            return Ok(None);
        };
        let entry = AenqEntry {
            group,
            syndrome,
            flags: AenqFlags {
                phase: ring.phase(),
            },
            timestamp: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
            data: [0; 48],
        };
        self.produced = self.produced.wrapping_add(1);
        self.posted += 1;
        ring.push(host, &entry.encode(), PHASE_OFFSET)?;
        Ok(Some(ring.vector()))
    }

    /// Whether a keep-alive event is due, and when the next one will be, if they are wanted.
    pub(crate) fn keep_alive(
        &mut self,
        now: Duration,
        period: Option<Duration>,
    ) -> (bool, Option<Duration>) {
        let Some(period) = period.filter(|_| self.ring.is_some()) else {
            self.keep_alive = None;
            return (false, None);
        };
        let due = *self.keep_alive.get_or_insert(now.saturating_add(period));
        if now < due {
            return (false, Some(due));
        }
        let next = now.saturating_add(period);
        self.keep_alive = Some(next);
        (true, Some(next))
    }
}
