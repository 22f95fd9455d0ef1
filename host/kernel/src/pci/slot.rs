// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The bus for tests: a slot, and the operations of the PCI core on its function.

use sim::RawLock;

use crate::{
    bindings,
    error::{to_result, Result},
};

/// The warning about handlers or work that run after [`Slot::remove`].
pub const AFTER_THE_END: &str = "handlers or work run after the end";

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
        let result = f();
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
            // The function was without power, and has been detected again.
            self.pdev.error_state = bindings::pci_channel_io_normal;
            sim::device(|device| device.function_reset());
        }
        let was_clean = self.is_clean();
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
                crate::warn(AFTER_THE_END.to_owned());
            }
        });
        self.is_bound = false;
    }

    /// Resets the function, as writing to `reset` in sysfs does.
    pub fn reset(&self) {
        let handlers = self.handlers();
        // SAFETY: The device is valid. The driver's functions are called if it is bound.
        self.locked(|| unsafe {
            if self.is_bound {
                handlers.reset_prepare.unwrap()(self.raw());
            }
            bindings::pcie_reset_flr(self.raw(), false);
            if self.is_bound {
                handlers.reset_done.unwrap()(self.raw());
            }
        });
    }

    /// Suspends and resumes the function. `power_off` emulates the loss of power in the device.
    pub fn sleep(&self, power_off: impl FnOnce()) {
        // SAFETY: The device is bound, and the driver's table constant.
        self.locked(|| unsafe {
            let power = &*self.driver().driver.pm;
            let dev = &raw mut (*self.raw()).dev;
            assert_eq!(power.suspend.unwrap()(dev), 0);
            power_off();
            assert_eq!(power.resume.unwrap()(dev), 0);
        });
    }

    /// Isolates the function because of an error, which is not reported to the driver yet.
    pub fn freeze(&self) {
        // SAFETY: The device is valid.
        unsafe { (*self.raw()).error_state = bindings::pci_channel_io_frozen };
    }

    /// Reports a bus error to the driver. `reset` emulates a reset that the driver requests, unless the bus can't reset the
    /// function. Then its state stays, as in `pcie_do_recovery`.
    pub fn bus_error(&self, is_permanent: bool, reset: impl FnOnce()) {
        let handlers = self.handlers();
        let frozen = bindings::pci_channel_io_frozen;
        // SAFETY: The device is bound.
        self.locked(|| unsafe {
            // The bus has lost the function for good.
            if (*self.raw()).error_state == bindings::pci_channel_io_perm_failure {
                return;
            }
            (*self.raw()).error_state = frozen;
            let answer = handlers.error_detected.unwrap()(self.raw(), frozen);
            if is_permanent {
                // Accesses by the function do not get through.
                bindings::pci_clear_master(self.raw());
                handlers.error_detected.unwrap()(self.raw(), bindings::pci_channel_io_perm_failure);
            } else if answer == bindings::pci_ers_result_PCI_ERS_RESULT_NEED_RESET {
                reset();
                handlers.slot_reset.unwrap()(self.raw());
                (*self.raw()).error_state = bindings::pci_channel_io_normal;
                handlers.resume.unwrap()(self.raw());
            }
        });
    }

    /// Reports an error of a function on the same bus, whose driver has no error handlers. The link works.
    pub fn neighbour_error(&self) {
        let detected = self.handlers().error_detected.unwrap();
        // SAFETY: The device is bound.
        self.locked(|| unsafe {
            detected(self.raw(), bindings::pci_channel_io_normal);
            detected(self.raw(), bindings::pci_channel_io_perm_failure);
        });
    }

    /// Shuts the function down, as a reboot does.
    pub fn shutdown(&self) {
        // SAFETY: The device is bound.
        self.locked(|| unsafe { self.driver().shutdown.unwrap()(self.raw()) });
    }
}
