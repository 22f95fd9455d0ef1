// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How a device dies and is revived, is reset, and is pulled out and plugged in.

use std::time::Duration;

use efa_hw::aenq::AenqGroup;

use super::Device;
use crate::{
    Host, Then, TraceEvent,
    admin::{
        aenq::Aenq, features::Features, interrupts::Interrupts, late::Late, registers::Registers,
        reset::Reset,
    },
    faults::{
        death::{Dead, Death, FailedReset, Strays},
        storm::AllStorms,
    },
};

impl Device {
    /// Whether the device does anything.
    pub fn is_alive(&self) -> bool {
        self.plugged && self.dead.is_none() && !self.data.is_doomed()
    }

    /// Whether the device is in its slot.
    pub fn is_plugged(&self) -> bool {
        self.plugged
    }

    /// The device is pulled out of its slot: nothing reaches it any more, and it does nothing. What it knew is lost.
    pub fn unplug(&mut self, host: &mut dyn Host) {
        if self.plugged {
            host.trace(&TraceEvent::Unplugged);
            self.power_on(host);
            self.plugged = false;
        }
    }

    /// The device is plugged into its slot, where it finds power.
    pub fn plug(&mut self, host: &mut dyn Host) {
        if !self.plugged {
            host.trace(&TraceEvent::Plugged);
            self.power_on(host);
        }
    }

    /// What a rule makes happen to the device itself.
    pub(super) fn apply(&mut self, host: &mut dyn Host, now: Duration, fault: Option<&Then>) {
        if let Some(death) = fault.and_then(|fault| fault.die) {
            self.die(host, now, death);
        }
        if fault.is_some_and(|fault| fault.unplug) {
            self.unplug(host);
        }
    }

    /// Fails with `error` if the device does nothing any more.
    pub(super) fn check_alive<E>(&self, error: E) -> Result<(), E> {
        if self.is_alive() { Ok(()) } else { Err(error) }
    }

    /// The device dies: it carries out no command, work request or anything else until a reset revives it. One that is not
    /// plugged in can't.
    pub fn die(&mut self, host: &mut dyn Host, now: Duration, death: Death) {
        if !self.plugged {
            return;
        }
        // One that is dead already does not come back to life to tell it again.
        if !death.silent {
            if self.is_alive() {
                self.post_event(host, now, AenqGroup::FatalError.into(), 0);
            }
            self.fatal_error = true;
        }
        host.trace(&TraceEvent::Death {
            silent: death.silent,
        });
        host.quiesce();
        let rings = [self.admin.place(), self.aenq.place()];
        let places = rings.into_iter().flatten();
        let places = places.chain(self.data.resources.written_places());
        self.dead = Some(Dead::new(death, places));
    }

    /// What a reset does to a dead device: forgets all that the driver did, and returns how the reset fails, if it does.
    pub(super) fn revive(&mut self, host: &mut dyn Host) -> Option<FailedReset> {
        self.forget(host);
        let dead = self.dead.as_mut()?;
        let failure = dead.reset();
        match failure {
            Some(_) => self.fatal_error = dead.is_told(),
            None => self.dead = None,
        }
        failure
    }

    /// Resets the PCI function: the device forgets all that the driver did.
    pub fn reset(&mut self, host: &mut dyn Host) {
        self.resets.of_function += 1;
        self.revive(host);
        if let Some(dead) = &mut self.dead {
            dead.strays = Strays::default();
        }
        self.resets.current = Reset::None;
    }

    /// Takes the device's power away and gives it back. It is plugged in then.
    pub fn power_on(&mut self, host: &mut dyn Host) {
        self.plugged = true;
        self.dead = None;
        self.forget(host);
        self.resets.current = Reset::None;
        self.late = Late::default();
        self.data.resources.forget();
        self.stale = false;
    }

    /// Does what a dead device still does, and returns when it will do more.
    pub(super) fn stray(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        let dead = self.dead.as_mut()?;
        dead.strays.write(host, now, &mut self.stray_writes)
    }

    /// Forgets all that the driver did.
    fn forget(&mut self, host: &mut dyn Host) {
        host.quiesce();
        self.stale |= self.data.resources.counts().uar > 0;
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
