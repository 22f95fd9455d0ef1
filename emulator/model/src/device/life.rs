// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How a device dies, and is revived.

use std::time::Duration;

use efa_hw::aenq::AenqGroup;

use super::Device;
use crate::{
    Host, TraceEvent,
    death::{Dead, Death, FailedReset},
    reset::Reset,
};

impl Device {
    /// Whether the device does anything.
    pub(super) fn is_alive(&self) -> bool {
        self.dead.is_none()
    }

    /// Fails with `error` if the device does nothing any more.
    pub(super) fn check_alive<E>(&self, error: E) -> Result<(), E> {
        if self.is_alive() { Ok(()) } else { Err(error) }
    }

    /// The device dies: it carries out no command, work request or anything else until a reset revives it.
    pub fn die(&mut self, host: &mut dyn Host, now: Duration, death: Death) {
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
        self.revive();
        self.reset = Reset::None;
    }

    /// Takes the device's power away and gives it back.
    pub fn power_on(&mut self) {
        self.dead = None;
        self.reset();
    }

    /// Does what a dead device still does, and returns when it will do more.
    pub(super) fn stray(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        let dead = self.dead.as_mut()?;
        dead.strays.write(host, now, &mut self.stray_writes)
    }
}
