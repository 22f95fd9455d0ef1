// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How a device dies and is revived, and is pulled out and plugged in.

use std::time::Duration;

use efa_hw::aenq::AenqGroup;

use super::Device;
use crate::{
    Host, Then, TraceEvent,
    death::{Dead, Death, FailedReset},
    late::Late,
    reset::Reset,
};

impl Device {
    /// Whether the device does anything.
    pub(super) fn is_alive(&self) -> bool {
        self.plugged && self.dead.is_none()
    }

    /// Whether the device is in its slot.
    pub fn is_plugged(&self) -> bool {
        self.plugged
    }

    /// The device is pulled out of its slot: nothing reaches it any more, and it does nothing. What it knew is lost.
    pub fn unplug(&mut self, host: &mut dyn Host) {
        if self.plugged {
            host.trace(&TraceEvent::Unplugged);
            self.power_on();
            self.plugged = false;
        }
    }

    /// The device is plugged into its slot, where it finds power.
    pub fn plug(&mut self, host: &mut dyn Host) {
        if !self.plugged {
            host.trace(&TraceEvent::Plugged);
            self.power_on();
        }
    }

    /// What a rule makes happen to the device itself.
    pub(super) fn suffer(&mut self, host: &mut dyn Host, now: Duration, fault: Option<&Then>) {
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
        self.firmware.requests.clear();
        let rings = [self.admin.place(), self.aenq.place()];
        self.dead = Some(Dead::new(
            death,
            &self.firmware,
            rings.into_iter().flatten(),
        ));
    }

    /// What a reset does to a dead device: forgets all that the driver did, and returns how the reset fails, if it does.
    pub(super) fn revive(&mut self) -> Option<FailedReset> {
        self.forget();
        let dead = self.dead.as_mut()?;
        let failure = dead.reset();
        match failure {
            Some(_) => self.fatal_error = dead.is_told(),
            None => self.dead = None,
        }
        failure
    }

    /// Resets the PCI function: the device forgets all that the driver did.
    pub fn reset(&mut self) {
        self.function_resets += 1;
        self.revive();
        self.reset = Reset::None;
    }

    /// Takes the device's power away and gives it back. It is plugged in then.
    pub fn power_on(&mut self) {
        self.plugged = true;
        self.dead = None;
        self.forget();
        self.reset = Reset::None;
        self.late = Late::default();
        self.firmware.resources.forget();
        self.stale = false;
    }

    /// Does what a dead device still does, and returns when it will do more.
    pub(super) fn stray(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        let dead = self.dead.as_mut()?;
        dead.strays.write(host, now, &mut self.stray_writes)
    }
}
