// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Asynchronous events and completion events, single ones and storms.

use std::time::Duration;

use efa_hw::aenq::AenqGroup;

use super::Device;
use crate::{Host, QueueError, StormError, TraceEvent, admin::late::Answer};

impl Device {
    /// Posts an asynchronous event, whether or not the driver has enabled its group. A fatal error also sets its bit in the
    /// device's status.
    pub fn post_event(&mut self, host: &mut dyn Host, now: Duration, group: u16, syndrome: u16) {
        if !self.is_alive() {
            return;
        }
        if group == u16::from(AenqGroup::FatalError) {
            self.fatal_error = true;
        }
        self.push_event(host, now, group, syndrome);
    }

    /// Posts an asynchronous event in the session after the next reset, once that has completed `after_commands` commands. The
    /// device's status does not change.
    pub fn post_event_late(&mut self, group: u16, syndrome: u16, after_commands: u64) {
        self.late.keep(Answer::Event { group, syndrome }, after_commands);
    }

    /// Posts an asynchronous event without a change of the device's status.
    pub(super) fn push_event(&mut self, host: &mut dyn Host, now: Duration, group: u16, syndrome: u16) {
        let vector = self.aenq.post(host, now, group, syndrome).unwrap_or_else(|error| {
            self.report(host, error);
            None
        });
        host.trace(&TraceEvent::Event { group, syndrome, posted: vector.is_some() });
        if let Some(vector) = vector {
            self.interrupts.raise(host, vector);
        }
    }

    /// Posts a completion event to event queue `eqn`, or by default to that of the completion queue. If `eqn` is given, the
    /// completion queue need not exist.
    ///
    /// # Errors
    ///
    /// The queue does not exist, or its memory can't be written.
    pub fn post_completion_event(&mut self, host: &mut dyn Host, eqn: Option<u16>, cqn: u16) -> Result<(), QueueError> {
        let eqn = self.data.resources.event_queue(eqn, cqn)?;
        if let Some(vector) = self.data.resources.eqs.post(host, eqn, cqn, 1)? {
            host.interrupt(vector);
        }
        Ok(())
    }

    /// Posts a keep-alive event if one is due, and returns the due time of the next one.
    pub(super) fn keep_alive(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        let period = self.data.attributes.keep_alive_ms;
        let wanted = period != 0 && self.features.aenq_groups & AenqGroup::KeepAlive.mask() != 0;
        let period = wanted.then(|| Duration::from_millis(period.into()));
        let (due, next) = self.aenq.keep_alive(now, period);
        if due {
            self.post_event(host, now, AenqGroup::KeepAlive.into(), 0);
        }
        next
    }

    /// Posts an asynchronous event `count` times, each as soon as its queue has room. One entry stays free for keep-alive
    /// events. A reset ends the storm.
    ///
    /// # Errors
    ///
    /// Too many kinds of events have storms already.
    pub fn storm(&mut self, group: u16, syndrome: u16, count: u64) -> Result<(), StormError> {
        self.storms.events.add((group, syndrome), count)
    }

    /// Posts a completion event `count` times: each time that the driver arms the event queue, at most half of its entries. A
    /// reset or the destruction of the event queue ends the storm.
    ///
    /// # Errors
    ///
    /// The queue does not exist, or too many kinds of events have storms already.
    pub fn storm_of_completion_events(&mut self, eqn: Option<u16>, cqn: u16, count: u64) -> Result<(), StormError> {
        let eqn = self.data.resources.event_queue(eqn, cqn)?;
        self.storms.notices.add((eqn, cqn), count)
    }

    /// Posts the events of storms for which their queues have room.
    pub(super) fn post_storms(&mut self, host: &mut dyn Host, now: Duration) {
        let mut vector = None;
        while let Some(((group, syndrome), count)) = self.storms.events.take(|_| self.aenq.room().saturating_sub(1)) {
            if group == u16::from(AenqGroup::FatalError) {
                self.fatal_error = true;
            }
            for _ in 0..count {
                match self.aenq.post(host, now, group, syndrome) {
                    Ok(raise) => vector = raise.or(vector),
                    Err(error) => self.report(host, error),
                }
            }
            host.trace(&TraceEvent::Storm { group, syndrome, posted: count, left: self.storms.events.left() });
        }
        if let Some(vector) = vector {
            self.interrupts.raise(host, vector);
        }
        loop {
            let resources = &self.data.resources;
            let Some(((eqn, cqn), count)) = self.storms.notices.take(|(eqn, _)| resources.eqs.storm_room(eqn)) else {
                return;
            };
            match self.data.resources.eqs.post(host, eqn, cqn, count) {
                Ok(Some(vector)) => host.interrupt(vector),
                Ok(None) => {}
                Err(error) => {
                    self.storms.notices.end((eqn, cqn));
                    if let QueueError::Dma(error) = error {
                        self.report(host, error);
                    }
                }
            }
        }
    }
}
