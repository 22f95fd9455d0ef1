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
    /// Number of events that the driver has consumed, modulo 2^32.
    consumed: u32,
    /// Due time of the next keep-alive event.
    keep_alive: Option<Duration>,
}

impl Aenq {
    /// Replaces or removes the ring, and clears all state.
    pub(crate) fn configure(&mut self, ring: Option<EventRing>) {
        *self = Self { ring, ..Self::default() };
    }

    /// Memory of the ring, if there is one.
    pub(crate) fn place(&self) -> Option<Place> {
        self.ring.as_ref().map(EventRing::place)
    }

    /// Number of free entries in the ring.
    pub(crate) fn room(&self) -> u64 {
        let depth = self.ring.as_ref().map_or(0, EventRing::depth);
        u64::from(depth).saturating_sub(self.taken().into())
    }

    /// Number of events posted since the ring was configured.
    pub(crate) fn posted(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| ring.written)
    }

    /// Number of events that the driver has not consumed.
    fn taken(&self) -> u32 {
        // CAST: the doorbell counts modulo 2^32.
        (self.posted() as u32).wrapping_sub(self.consumed)
    }

    /// Records the number of events that the driver has consumed. Ignores an impossible number and returns false.
    pub(crate) fn consume(&mut self, consumed: u32) -> bool {
        let valid = consumed.wrapping_sub(self.consumed) <= self.taken();
        if valid {
            self.consumed = consumed;
        }
        valid
    }

    /// Posts an event and returns the vector to raise, or `None` if the ring is full or missing.
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
            flags: AenqFlags { phase: ring.phase() },
            timestamp: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
            data: [0; 48],
        };
        ring.push(host, &entry.encode(), PHASE_OFFSET)?;
        Ok(Some(ring.vector()))
    }

    /// Returns whether a keep-alive event is due, and the due time of the next one. They are disabled if `period` is `None`.
    pub(crate) fn keep_alive(&mut self, now: Duration, period: Option<Duration>) -> (bool, Option<Duration>) {
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
