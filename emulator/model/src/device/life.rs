// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Life cycle of a device: death and revival, resets, hot-plug and hot-unplug.

use std::time::Duration;

use efa_hw::aenq::AenqGroup;

use super::Device;
use crate::{
    Host, Then, TraceEvent,
    admin::{aenq::Aenq, features::Features, interrupts::Interrupts, late::Late, registers::Registers, reset::Reset},
    data_path::DataPath,
    faults::{
        death::{Dead, Death, FailedReset, Strays},
        storm::AllStorms,
    },
    resources::ResourceCounts,
};

impl Device {
    /// Whether the device works: it is plugged in, not dead, and no fault is about to end it.
    pub fn is_alive(&self) -> bool {
        self.plugged && self.dead.is_none() && self.data.fatal_fault.is_none()
    }

    /// Whether the device is plugged into its slot.
    pub fn is_plugged(&self) -> bool {
        self.plugged
    }

    /// Hot-unplugs the device. It ignores all accesses, performs no work, and loses its state.
    pub fn unplug(&mut self, host: &mut dyn Host) {
        if self.plugged {
            host.trace(&TraceEvent::Unplugged);
            self.power_on(host);
            self.plugged = false;
        }
    }

    /// Hot-plugs the device, which powers it on.
    pub fn plug(&mut self, host: &mut dyn Host) {
        if !self.plugged {
            host.trace(&TraceEvent::Plugged);
            self.power_on(host);
        }
    }

    /// Applies the part of a fault that concerns the whole device: death or unplug.
    pub(super) fn apply(&mut self, host: &mut dyn Host, now: Duration, fault: Option<&Then>) {
        if let Some(death) = fault.and_then(|fault| fault.die) {
            self.die(host, now, death);
        }
        if fault.is_some_and(|fault| fault.unplug) {
            self.unplug(host);
        }
    }

    /// Calls `work` on the data path. Returns `otherwise` unless the device is [alive](Self::is_alive).
    pub(super) fn alive<R>(
        &mut self,
        host: &mut dyn Host,
        otherwise: R,
        work: impl FnOnce(&mut DataPath, &mut dyn Host) -> R,
    ) -> R {
        if !self.is_alive() {
            return otherwise;
        }
        self.data.errors.begin();
        work(&mut self.data, host)
    }

    /// Makes the device dead: it executes no command or work request until a reset revives it. Ignored if it is unplugged.
    pub fn die(&mut self, host: &mut dyn Host, now: Duration, death: Death) {
        if !self.plugged {
            return;
        }
        // A device that is dead already posts no second event.
        if !death.silent {
            if self.is_alive() {
                self.post_event(host, now, AenqGroup::FatalError.into(), 0);
            }
            self.fatal_error = true;
        }
        host.trace(&TraceEvent::Death { silent: death.silent });
        host.quiesce();
        let rings = [self.admin.place(), self.aenq.place()];
        let places = rings.into_iter().flatten();
        let places = places.chain(self.data.resources.written_places());
        self.dead = Some(Dead::new(death, places));
    }

    /// Discards all state of the driver, and lets a dead device count the reset. Returns how the reset fails, if it does.
    pub(super) fn revive(&mut self, host: &mut dyn Host) -> Option<FailedReset> {
        self.forget(host);
        let dead = self.dead.as_mut()?;
        let failure = dead.reset();
        match failure {
            Some(_) => self.fatal_error = !dead.death.silent,
            None => self.dead = None,
        }
        failure
    }

    /// Resets the PCI function, which discards all state of the driver.
    pub fn reset(&mut self, host: &mut dyn Host) {
        self.resets.of_function += 1;
        self.revive(host);
        if let Some(dead) = &mut self.dead {
            dead.strays = Strays::default();
        }
        self.resets.current = Reset::None;
    }

    /// Power-cycles the device, and plugs it in if it is unplugged.
    pub fn power_on(&mut self, host: &mut dyn Host) {
        self.plugged = true;
        self.dead = None;
        self.forget(host);
        self.resets.current = Reset::None;
        self.late = Late::default();
        self.data.resources.forget();
        self.stale = false;
    }

    /// Performs the stray writes of a dead device that are due, and returns the time of the next ones.
    pub(super) fn stray(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        let dead = self.dead.as_mut()?;
        dead.strays.write(host, now, &mut self.stray_writes)
    }

    /// Discards all state of the driver.
    fn forget(&mut self, host: &mut dyn Host) {
        host.quiesce();
        self.stale |= ResourceCounts::from(&self.data.resources).uar > 0;
        self.data.forget();
        self.features = Features::default();
        self.registers = Registers::default();
        self.admin.reset();
        self.aenq = Aenq::default();
        self.interrupts = Interrupts::default();
        self.fatal_error = false;
        self.doorbells = 0;
        self.late.reset();
        self.storms = AllStorms::default();
    }
}
