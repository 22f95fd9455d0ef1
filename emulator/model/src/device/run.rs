// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work of a device that becomes due as time passes.

use std::time::Duration;

use super::Device;
use crate::Host;

impl Device {
    /// Whether the device has to be [run](Self::run) at once, because of a call by the transport: for a fatal fault, or to set the
    /// due times of late completions.
    pub fn is_urgent(&self) -> bool {
        self.data.fatal_fault.is_some() || self.data.late.has_fresh()
    }

    /// Performs the work that is due, and returns the time at which more will be due.
    ///
    /// The caller has to call this at that time, and after each other call with a time, which may have made work due earlier.
    pub fn run(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        self.data.errors.begin();
        let fatal_fault = self.data.fatal_fault.take();
        self.apply(host, now, fatal_fault.as_deref());
        if !self.is_alive() {
            return self.stray(host, now);
        }
        let more = self.execute_commands(host, now);
        self.complete_commands(host, now);
        if !self.is_alive() {
            return self.stray(host, now);
        }
        self.post_storms(host, now);
        let late = self.data.post_late(host, now);
        let keep_alive = self.keep_alive(host, now);
        let due = [self.admin.next_due(), keep_alive, late, more.then_some(now)];
        due.into_iter().flatten().min()
    }
}
