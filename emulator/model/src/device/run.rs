// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device does as time goes by.

use std::time::Duration;

use super::Device;
use crate::Host;

impl Device {
    /// Whether it is to be [run](Self::run) at once, because of something that the transport has told it.
    pub fn is_urgent(&self) -> bool {
        self.data.is_urgent()
    }

    /// Does what is due, and returns when something will be due next.
    ///
    /// To be called when that time has come, and after each other call that takes the time, which
    /// may have made something due earlier.
    pub fn run(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        self.report_errors(host);
        let doom = self.data.take_doom();
        self.apply(host, now, doom.as_deref());
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
        self.report_errors(host);
        let keep_alive = self.keep_alive(host, now);
        let due = [self.admin.next_due(), keep_alive, late, more.then_some(now)];
        due.into_iter().flatten().min()
    }
}
