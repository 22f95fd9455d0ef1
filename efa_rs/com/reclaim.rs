// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Getting memory back that the device must not use any more, whatever it takes.

use kernel::{
    device::Bound,
    pci,
    prelude::*,
    sync::Arc, //
};

use super::{
    admin_queue::AdminQueue,
    error::CommandError,
    health::{
        Cause,
        Health, //
    },
    lent::Epoch, //
};
use crate::sys::{
    self,
    log, //
};

/// What takes memory back in one session. It may be kept by memory that is in quarantine, and so has
/// nothing of the session but this.
pub(crate) struct Reclaim<'bound> {
    pub(super) admin: Arc<AdminQueue<'bound>>,
    pub(super) epoch: Arc<Epoch<'bound>>,
    pub(super) health: Arc<Health>,
    pub(super) pdev: &'bound pci::Device<Bound>,
}

impl<'bound> Reclaim<'bound> {
    /// Has the device let go of memory by a command, and returns whether it has. If it does not, it is
    /// stopped.
    pub(crate) fn by(
        &self,
        command: impl FnOnce(&AdminQueue<'bound>) -> Result<(), CommandError>,
    ) -> bool {
        let has_let_go = command(&self.admin).is_ok();
        if !has_let_go {
            self.by_force();
        }
        has_let_go
    }

    /// Has the device stopped, and waits until it is: at most as long as verbs wait for that. Then it is
    /// no bus master any more.
    pub(crate) fn by_force(&self) {
        if self.epoch.is_halted() {
            return;
        }
        self.health.report(Cause::MemoryHeld);
        if !self.epoch.is_over() {
            log::failed(
                self.pdev.as_ref(),
                "The device could not be stopped in time; its DMA is disabled",
                &ETIME,
            );
            sys::pci::clear_master(self.pdev);
        }
    }
}
