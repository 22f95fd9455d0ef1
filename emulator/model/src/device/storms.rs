// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Many events at once.

use std::time::Duration;

use efa_hw::aenq::AenqGroup;

use super::Device;
use crate::{Host, QueueError, StormError, TraceEvent, storm::Storms};

/// A kind of asynchronous event: its group and syndrome.
type Kind = (u16, u16);

/// A kind of completion event: its event queue and completion queue.
type Notice = (u16, u16);

/// What storms.
#[derive(Debug, Default)]
pub(super) struct AllStorms {
    events: Storms<Kind>,
    notices: Storms<Notice>,
}

impl AllStorms {
    /// How many events are to come.
    pub(super) fn left(&self) -> u64 {
        self.events.left().saturating_add(self.notices.left())
    }
}

impl Device {
    /// Posts an asynchronous event many times, each as soon as the driver has consumed what was in its place. One place is
    /// left to keep-alives. A reset ends it.
    ///
    /// # Errors
    ///
    /// Too many kinds of events are under way.
    pub fn storm(&mut self, group: u16, syndrome: u16, count: u64) -> Result<(), StormError> {
        self.storms.events.add((group, syndrome), count)
    }

    /// Posts an event that a completion queue has something new many times: so many as fit into half of the event queue, each
    /// time that the driver has armed it. A reset, and the end of the event queue, ends it.
    ///
    /// # Errors
    ///
    /// There is no such queue, or too many kinds of events are under way.
    pub fn storm_of_completion_events(
        &mut self,
        eqn: Option<u16>,
        cqn: u16,
        count: u64,
    ) -> Result<(), StormError> {
        let eqn = self.firmware.resources.event_queue(eqn, cqn)?;
        self.storms.notices.add((eqn, cqn), count)
    }

    /// Posts what there is room for.
    pub(super) fn blow(&mut self, host: &mut dyn Host, now: Duration) {
        let mut vector = None;
        while let Some(((group, syndrome), count)) = self
            .storms
            .events
            .take(|_| self.aenq.room().saturating_sub(1))
        {
            if group == u16::from(AenqGroup::FatalError) {
                self.fatal_error = true;
            }
            for _ in 0..count {
                match self.aenq.post(host, now, group, syndrome) {
                    Ok(raise) => vector = raise.or(vector),
                    Err(error) => self.protocol_error(host, error.into()),
                }
            }
            host.trace(&TraceEvent::Storm {
                group,
                syndrome,
                posted: count,
                left: self.storms.events.left(),
            });
        }
        if let Some(vector) = vector {
            self.interrupts.raise(host, vector);
        }
        loop {
            let resources = &self.firmware.resources;
            let Some(((eqn, cqn), count)) = self
                .storms
                .notices
                .take(|(eqn, _)| resources.storm_room(eqn))
            else {
                return;
            };
            match self.firmware.resources.post_events(host, eqn, cqn, count) {
                Ok(Some(vector)) => host.interrupt(vector),
                Ok(None) => {}
                Err(error) => {
                    self.storms.notices.end((eqn, cqn));
                    if let QueueError::Dma(error) = error {
                        self.protocol_error(host, error.into());
                    }
                }
            }
        }
    }
}
