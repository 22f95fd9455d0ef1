// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The bus for tests: a slot, and the operations of the PCI core on its function.

use sim::RawLock;

use crate::{
    bindings::{self, Access, Configuration},
    error::{to_result, Result},
};

pub use crate::bindings::Flr;

/// Time between the last callback before sleep, or in a recovery, and the next step of the bus.
const PAUSE: u64 = 1_000_000_000;

/// Votes of the driver of another function behind the same port in a recovery.
#[derive(Clone, Copy)]
pub struct Neighbour {
    /// Its answer to the error.
    pub detected: Vote,
    /// Its answer after a reset.
    pub slot_reset: Vote,
}

impl Neighbour {
    /// There is no other function.
    pub const NONE: Self = Self {
        detected: Vote::None,
        slot_reset: Vote::None,
    };
}

/// A step that a driver requests in a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vote {
    /// None: the others decide.
    None = 1,
    /// No reset.
    CanRecover = 2,
    /// A reset.
    NeedReset = 3,
    /// The function can't be recovered.
    Disconnect = 4,
    /// The function works.
    Recovered = 5,
    /// The driver has no error handlers.
    NoDriver = 6,
}

impl Vote {
    fn of(vote: bindings::pci_ers_result_t) -> Self {
        let all = [
            Self::CanRecover,
            Self::NeedReset,
            Self::Disconnect,
            Self::Recovered,
        ];
        let found = all.into_iter().find(|one| *one as u32 == vote);
        found.expect("a vote of a driver")
    }

    /// Returns the result of two votes, as `merge_result` does.
    fn merge(self, new: Self) -> Self {
        match (self, new) {
            (_, Self::NoDriver) => new,
            (_, Self::None) => self,
            (Self::CanRecover | Self::Recovered, _) | (Self::Disconnect, Self::NeedReset) => new,
            _ => self,
        }
    }
}

/// A slot with a function. Its methods call the registered driver in the order of the kernel's driver core. They
/// hold the lock of the device as it does.
pub struct Slot {
    pdev: Box<bindings::pci_dev>,
    lock: RawLock,
    is_bound: bool,
}

impl Slot {
    /// Creates a slot with a function that has this device id.
    pub fn new(device: u16) -> Self {
        Self {
            pdev: bindings::pci_dev::new(device),
            lock: RawLock::new(),
            is_bound: false,
        }
    }

    /// Sets the duration of a reset of the function in nanoseconds.
    pub fn set_reset_time(&mut self, time: u64) {
        self.pdev.reset_time = time;
    }

    /// Sets the result of function-level resets.
    pub fn set_flr(&mut self, flr: Flr) {
        self.pdev.flr = flr;
    }

    fn raw(&self) -> *mut bindings::pci_dev {
        (&raw const *self.pdev).cast_mut()
    }

    fn driver(&self) -> &'static bindings::pci_driver {
        // SAFETY: The module has registered its driver, and stays loaded.
        unsafe { &*bindings::registered_driver() }
    }

    fn handlers(&self) -> &'static bindings::pci_error_handlers {
        // SAFETY: The driver's table is constant.
        unsafe { &*self.driver().err_handler }
    }

    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        self.lock.lock(true);
        let result = sim::timed("a call of the bus", f);
        self.lock.unlock(true);
        result
    }

    /// Returns whether the function is bound to its driver.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Returns whether a driver has released all resources: the function is disabled, and has no
    /// BARs, vectors or managed resources.
    pub fn is_clean(&self) -> bool {
        self.pdev.is_clean()
    }

    /// Returns the reserved BARs as bits.
    pub fn regions(&self) -> u32 {
        self.pdev.regions
    }

    /// Returns the variables of the uevents so far.
    pub fn uevents(&self) -> Vec<String> {
        self.pdev.dev.kobj.events.borrow().clone()
    }

    /// Binds the function.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    ///
    /// # Panics
    ///
    /// If the driver does not support the device, or if its failed probe leaks resources.
    pub fn probe(&mut self) -> Result {
        let driver = self.driver();
        assert!(driver
            .matches
            .is_some_and(|matches| matches(self.pdev.device.into())));
        if self.pdev.error_state == bindings::pci_channel_io_perm_failure {
            // The function was removed, and has been detected again.
            self.pdev.error_state = bindings::pci_channel_io_normal;
            sim::device(|device| device.function_reset());
            self.pdev.set(Configuration::DETECTED);
            self.pdev.save();
        }
        let was_clean = self.is_clean();
        crate::warning::count_anew();
        let result = self.locked(|| {
            // SAFETY: The device is valid, and not bound.
            let result = to_result(unsafe { driver.probe.unwrap()(self.raw()) });
            if result.is_err() {
                self.pdev.dev.release_resources();
            }
            result
        });
        self.is_bound = result.is_ok();
        if let Err(error) = &result {
            assert!(
                !was_clean || self.is_clean(),
                "a failed probe ({error:?}) leaks resources"
            );
        }
        result
    }

    /// Unbinds the function. Warns if handlers or work run after that.
    pub fn remove(&mut self) {
        let driver = self.driver();
        self.locked(|| {
            // SAFETY: The device is bound; this is the order of the driver core.
            unsafe {
                driver.remove.unwrap()(self.raw());
                driver.post_unbind.unwrap()(self.raw());
                self.pdev.dev.release_resources();
            }
            if sim::under_way() != 0 {
                crate::warn("handlers or work run after the end".to_owned());
            }
        });
        self.is_bound = false;
    }

    /// Gives the function to the bus during `f`, which may take a while.
    fn held<R>(&self, access: Access, f: impl FnOnce() -> R) -> R {
        self.pdev.access.set(access);
        let result = f();
        self.pdev.access.set(Access::All);
        result
    }

    /// Resets the function, as writing to `reset` in sysfs does: `pci_reset_function`.
    ///
    /// # Errors
    ///
    /// Those of the reset. The driver is notified of its end in any case.
    pub fn reset(&self) -> Result {
        if self.pdev.flr == Flr::Unsupported {
            return Err(crate::error::code::ENOTTY);
        }
        let handlers = self.handlers();
        self.locked(|| {
            if self.is_bound {
                // SAFETY: The device is bound.
                unsafe { handlers.reset_prepare.unwrap()(self.raw()) };
            }
            let disabled = |registers| Configuration {
                command: bindings::PCI_COMMAND_INTX_DISABLE as u16,
                ..registers
            };
            let is_readable = self.pdev.is_readable();
            if is_readable {
                self.pdev.save();
                self.pdev.change(disabled);
            }
            let result = self.held(Access::Nothing, || self.pdev.function_level_reset());
            let works = is_readable && self.pdev.is_there() && self.pdev.flr == Flr::Works;
            assert!(result == 0 || !works, "a function that works is reset");
            self.pdev.restore();
            if self.is_bound {
                // SAFETY: As above.
                unsafe { handlers.reset_done.unwrap()(self.raw()) };
            }
            to_result(result)
        })
    }

    /// Calls one function of the driver's power management.
    fn power(&self, which: impl FnOnce(&bindings::dev_pm_ops) -> bindings::Power) {
        // SAFETY: The driver's table is constant.
        let operation = which(unsafe { &*self.driver().driver.pm }).expect("an operation");
        // SAFETY: The device is bound.
        let result = self.locked(|| unsafe { operation(&raw mut (*self.raw()).dev) });
        assert_eq!(result, 0);
    }

    /// The function is in D3 until the machine wakes up. `power_off` emulates the loss of power in the device.
    fn power_down(&self, power_off: impl FnOnce()) {
        self.held(Access::Nothing, || {
            sim::sleep(PAUSE);
            power_off();
            self.pdev.lose_power();
            sim::sleep(PAUSE);
        });
        self.pdev.restore();
    }

    /// Suspends and resumes the function.
    pub fn sleep(&self, power_off: impl FnOnce()) {
        self.pdev.forget_state();
        self.power(|power| power.suspend);
        self.pdev.save_unless_saved();
        self.power_down(power_off);
        self.power(|power| power.resume);
    }

    /// Hibernates the machine, and starts it again: an image is made, and the function loses its power.
    pub fn hibernate(&self, power_off: impl FnOnce()) {
        self.pdev.forget_state();
        self.power(|power| power.freeze);
        self.pdev.save_unless_saved();
        self.held(Access::Nothing, || sim::sleep(PAUSE));
        self.pdev.restore();
        self.power(|power| power.thaw);
        self.pdev.forget_state();
        self.power(|power| power.poweroff);
        self.power_down(power_off);
        self.power(|power| power.restore);
    }

    /// Changes the state of the channel, as `pci_dev_set_io_state` does. Returns whether that is possible.
    fn set_channel(&self, state: bindings::pci_channel_state_t) -> bool {
        // SAFETY: The device is valid.
        let now = unsafe { &mut (*self.raw()).error_state };
        let is_possible = *now != bindings::pci_channel_io_perm_failure;
        if is_possible {
            *now = state;
        }
        is_possible
    }

    /// Isolates the function because of an error, which is not reported to the driver yet.
    pub fn freeze(&self) {
        self.set_channel(bindings::pci_channel_io_frozen);
    }

    /// Marks the function as removed, as hot-plug does before it unbinds it. Its next probe finds it detected again.
    pub fn disconnect(&self) {
        self.set_channel(bindings::pci_channel_io_perm_failure);
    }

    /// Removes the power of the function for a moment, which neither bus nor driver notices.
    pub fn lose_power(&self) {
        self.pdev.lose_power();
    }

    /// Recovers from a fatal or other error of this function or a neighbour: `pcie_do_recovery`. `reset` emulates a reset
    /// of all functions in the device, and returns whether the bus has succeeded.
    pub fn bus_error(&self, is_fatal: bool, neighbour: Neighbour, reset: impl FnOnce() -> bool) {
        let handlers = self.handlers();
        let detected = handlers.error_detected.unwrap();
        let state = if is_fatal {
            bindings::pci_channel_io_frozen
        } else {
            bindings::pci_channel_io_normal
        };
        // SAFETY: The device is bound.
        let detected = |state| self.locked(|| Vote::of(unsafe { detected(self.raw(), state) }));
        let vote = if self.set_channel(state) {
            detected(state)
        } else {
            Vote::Disconnect
        };
        let mut status = Vote::CanRecover.merge(vote).merge(neighbour.detected);
        if status == Vote::CanRecover {
            // No driver has to read registers first.
            status = Vote::Recovered;
        }
        if is_fatal || status == Vote::NeedReset {
            let is_reset = if is_fatal {
                self.held(Access::Configuration, || sim::sleep(PAUSE));
                self.held(Access::Nothing, || {
                    sim::sleep(PAUSE);
                    reset()
                })
            } else {
                // The driver does not know that a neighbour needs a reset. The function is no bus master when it loses
                // the addresses that the driver has written.
                let before = self.pdev.registers.get();
                self.pdev.lose_power();
                let is_reset = reset();
                if !is_reset {
                    self.pdev.set(before);
                    self.pdev.is_lost.set(false);
                }
                is_reset
            };
            if !is_reset {
                status = Vote::Disconnect;
            } else if is_fatal {
                self.pdev.set(Configuration::RESET);
            }
        }
        let normal = bindings::pci_channel_io_normal;
        if status == Vote::NeedReset {
            status = Vote::Recovered.merge(self.locked(|| {
                if self.set_channel(normal) {
                    // SAFETY: As above.
                    let vote = Vote::of(unsafe { handlers.slot_reset.unwrap()(self.raw()) });
                    if self.pdev.is_readable() && !self.pdev.decodes() {
                        crate::warn("slot_reset restores no configuration".into());
                    }
                    vote
                } else {
                    Vote::None
                }
            }));
            status = status.merge(neighbour.slot_reset);
        }
        if status != Vote::Recovered {
            detected(bindings::pci_channel_io_perm_failure);
        } else if self.set_channel(normal) {
            // SAFETY: As above.
            self.locked(|| unsafe { handlers.resume.unwrap()(self.raw()) });
        }
    }

    /// Shuts the function down, as a reboot does.
    pub fn shutdown(&self) {
        // SAFETY: The device is bound.
        self.locked(|| unsafe { self.driver().shutdown.unwrap()(self.raw()) });
    }

    /// Shuts the function down, and starts another kernel, which is about to bind it.
    pub fn kexec(&mut self) {
        self.shutdown();
        self.pdev
            .change(|registers| registers.with_command(bindings::PCI_COMMAND_MASTER, false));
        let left = self.pdev.registers.get();
        // Nothing unbinds the function. Here it frees the memory of the old kernel.
        self.remove();
        self.pdev.error_state = bindings::pci_channel_io_normal;
        self.pdev.set(left.without_msix());
        self.pdev.save();
    }
}
