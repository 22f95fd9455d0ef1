// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Revoking memory from the device.

use kernel::sync::Arc;

use super::{
    admin_queue::AdminQueue,
    error::CommandError,
    health::Cause,
    lent::Epoch, //
};

/// What revokes memory in one session.
pub(crate) struct Reclaim<'bound> {
    pub(super) admin: Arc<AdminQueue<'bound>>,
    pub(super) epoch: Arc<Epoch<'bound>>,
}

impl<'bound> Reclaim<'bound> {
    /// Has the device release memory by a command, and returns whether it has. If it does not, it is halted.
    pub(crate) fn by(
        &self,
        command: impl FnOnce(&AdminQueue<'bound>) -> Result<(), CommandError>,
    ) -> bool {
        let is_released = command(&self.admin).is_ok();
        if !is_released {
            self.by_force();
        }
        is_released
    }

    /// Halts the device.
    pub(crate) fn by_force(&self) {
        self.epoch.halt(Cause::MemoryHeld);
    }
}
