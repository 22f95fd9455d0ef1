// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registration of drivers with their bus.

use core::marker::PhantomPinned;

use pin_init::PinInit;

use crate::{
    error::{Error, Result},
    str::CStr,
    types::Opaque,
    ThisModule,
};

/// Layout of the C structure for a kind of driver.
///
/// # Safety
///
/// The structure must have a `device_driver` at the offset.
pub unsafe trait DriverLayout {
    /// The C structure.
    type DriverType: Default;
    /// The data of a device that is bound.
    type DriverData<'bound>;
    /// Offset of the `device_driver` in the structure.
    const DEVICE_DRIVER_OFFSET: usize;
}

/// Registration of a kind of driver.
///
/// # Safety
///
/// A driver must be registered from [`RegistrationOps::register`] until [`RegistrationOps::unregister`].
pub unsafe trait RegistrationOps: DriverLayout {
    /// Registers a driver.
    ///
    /// # Safety
    ///
    /// The driver must not move until it is unregistered.
    ///
    /// # Errors
    ///
    /// Errors of the bus.
    unsafe fn register(
        driver: &Opaque<Self::DriverType>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result;

    /// Unregisters a driver.
    ///
    /// # Safety
    ///
    /// The driver must be registered.
    unsafe fn unregister(driver: &Opaque<Self::DriverType>);
}

/// A driver that is registered with its bus.
pub struct Registration<T: RegistrationOps> {
    driver: Opaque<T::DriverType>,
    _pinned: PhantomPinned,
}

// SAFETY: All tasks are in one thread.
unsafe impl<T: RegistrationOps> Send for Registration<T> {}
// SAFETY: As above.
unsafe impl<T: RegistrationOps> Sync for Registration<T> {}

impl<T: RegistrationOps> Registration<T> {
    /// Registers a driver. The bus of the shim supports one.
    pub fn new(name: &'static CStr, module: &'static ThisModule) -> impl PinInit<Self, Error> {
        // SAFETY: All fields are initialized.
        unsafe {
            pin_init::__internal::from_closure(move |slot: *mut Self| {
                (&raw mut (*slot).driver).write(Opaque::new(T::DriverType::default()));
                T::register(&(*slot).driver, name, module)
            })
        }
    }
}

impl<T: RegistrationOps> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: The driver was registered.
        unsafe { T::unregister(&self.driver) };
    }
}
