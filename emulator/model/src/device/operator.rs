// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Interface for the operator of a device: state, fault injection, and access to queues.

use std::time::Duration;

use super::{Device, state::State};
use crate::{
    Counters, Host, Overrides, Queue, QueueError, Rule, RuleId, Times, When,
    admin::{late::Late, reset::Reset},
    faults::storm::AllStorms,
};

impl Device {
    /// Current state of the device.
    pub fn state(&self) -> State {
        State::from(self)
    }

    /// All counters of the statistics.
    pub fn counters(&self) -> Counters {
        self.data.statistics.counters()
    }

    /// Latencies of admin commands and work requests.
    pub fn times(&self) -> &Times {
        &self.data.times
    }

    /// Adds a fault rule. Drops the oldest rule of its kind if there are too many.
    pub fn inject(&mut self, rule: Rule) -> RuleId {
        match rule.when {
            When::Work { .. } => self.data.faults.inject(rule),
            _ => self.faults.inject(rule),
        }
        self.last_rule += 1;
        self.last_rule
    }

    /// Held completions: their numbers, which increase in the order in which they were held, and their names.
    pub(super) fn held(&self) -> impl Iterator<Item = (u64, &str)> {
        self.admin.held().chain(self.data.late.held())
    }

    /// Releases the `count` oldest completions that are held under a name, or all of them. They are written when the device
    /// runs next. Returns their number. A dead device releases none.
    pub fn release(&mut self, name: &str, count: Option<u64>) -> u64 {
        if !self.is_alive() {
            return 0;
        }
        let most = count.and_then(|count| usize::try_from(count).ok());
        self.release_held(|held| held == name, most.unwrap_or(usize::MAX))
    }

    fn release_held(&mut self, is_wanted: impl Fn(&str) -> bool, most: usize) -> u64 {
        let wanted = self.held().filter(|(_, name)| is_wanted(name));
        let mut numbers: Vec<_> = wanted.map(|(number, _)| number).collect();
        numbers.sort_unstable();
        numbers.truncate(most);
        for number in &numbers {
            self.admin.release(*number);
            self.data.late.release(*number);
        }
        numbers.len() as u64
    }

    /// Puts a queue pair in error without a cause, and flushes its work requests. The interface has no event for that.
    ///
    /// # Errors
    ///
    /// The queue pair does not exist.
    pub fn fail_qp(&mut self, host: &mut dyn Host, qp: u16) -> Result<(), QueueError> {
        self.alive(host, Ok(()), |data, host| data.force_error(host, qp))
    }

    /// Overrides attributes of the device. Earlier overrides of other attributes stay.
    pub fn set(&mut self, overrides: Overrides) {
        self.overrides.merge(overrides);
        self.data.attributes = self.config.attributes();
        self.overrides.apply(&mut self.data.attributes);
    }

    /// Removes all rules, overrides, withheld answers and storms, and releases held completions. A reset that would never end
    /// ends, and the next reset revives a dead device.
    pub fn clear(&mut self) {
        if let Some(dead) = &mut self.dead {
            dead.resets = 1;
        }
        self.faults.clear();
        self.data.faults.clear();
        self.release_held(|_| true, usize::MAX);
        self.late = Late::default();
        self.storms = AllStorms::default();
        self.overrides = Overrides::default();
        self.data.attributes = self.config.attributes();
        if self.resets.current == Reset::Ended(None) {
            self.resets.current = Reset::Ended(Some(Duration::ZERO));
        }
    }

    /// Reads bytes of a queue in host memory.
    ///
    /// # Errors
    ///
    /// The queue does not exist, the range exceeds it, or its memory can't be read.
    pub fn peek(&self, host: &mut dyn Host, queue: Queue, offset: u64, data: &mut [u8]) -> Result<(), QueueError> {
        let place = self.data.resources.place(queue)?;
        let address = place.part(queue, offset, data.len())?;
        Ok(host.dma_read(address, data)?)
    }

    /// Writes bytes of a queue in host memory.
    ///
    /// # Errors
    ///
    /// The queue does not exist, the range exceeds it, or its memory can't be written.
    pub fn poke(&self, host: &mut dyn Host, queue: Queue, offset: u64, data: &[u8]) -> Result<(), QueueError> {
        let place = self.data.resources.place(queue)?;
        let address = place.part(queue, offset, data.len())?;
        Ok(host.dma_write(address, data)?)
    }
}
