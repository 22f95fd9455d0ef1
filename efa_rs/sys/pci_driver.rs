// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Drivers of PCI devices.
//!
//! To be replaced by [`kernel::pci::Driver`] once it has shutdown, error handlers, power management
//! and work that ends with the binding.

use core::{
    marker::PhantomData,
    mem::offset_of,
    pin::Pin, //
};

use kernel::{
    bindings,
    device::{
        self,
        Bound,
        Core,
        CoreInternal, //
    },
    driver,
    ffi::c_int,
    pci,
    prelude::*,
    str::CStr,
    types::Opaque, //
};

use super::{
    attach::{
        Attachment,
        Binding, //
    },
    pci::error_state,
    sysfs,
    work::{
        Running,
        Waker, //
    },
};

/// A driver of PCI devices.
///
/// The bus calls all but [`Self::work`] and [`Self::monitor`] one at a time, with the device's lock
/// held.
pub(crate) trait Driver: 'static {
    /// The data of a device, created by `probe`.
    type Data<'bound>: Send + Sync + 'bound;

    /// A file of each device in sysfs.
    type File: sysfs::File;

    /// The devices that the driver supports.
    const ID_TABLE: pci::IdTable<()>;

    /// Called for each of these devices.
    ///
    /// `binding` is for values that last as long as the binding.
    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        binding: Binding<'bound>,
        wakers: Wakers,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// Called at the end of the probe, which fails if this does.
    fn start<'bound>(this: Pin<&Self::Data<'bound>>) -> Result;

    /// Called after [`Wakers::work`] was woken, at any time between `probe` and `unbind`.
    fn work<'bound>(this: Pin<&Self::Data<'bound>>);

    /// Called after [`Wakers::monitor`] was woken, at any time between `probe` and the end of
    /// `unbind`, also while one of the other functions runs.
    fn monitor<'bound>(this: Pin<&Self::Data<'bound>>);

    /// Called when the device is unbound. Must call `end_work`, which waits until the work is over.
    fn unbind<'bound>(this: Pin<&Self::Data<'bound>>, end_work: &dyn Fn());

    /// Called when the system halts, reboots or starts another kernel. The device must be quiescent
    /// when this returns; devices are not unbound.
    fn shutdown<'bound>(this: Pin<&Self::Data<'bound>>);

    /// Called before the bus resets or powers down the function, or when it is inaccessible. The
    /// driver must not use it until [`Self::restart`].
    fn quiesce<'bound>(this: Pin<&Self::Data<'bound>>);

    /// Called after [`Self::quiesce`], when the function can be used again, as after power on.
    fn restart<'bound>(this: Pin<&Self::Data<'bound>>);

    /// Called after [`Self::quiesce`] if the function can't be used again.
    fn lost<'bound>(this: Pin<&Self::Data<'bound>>);
}

/// Handles that request the two kinds of a driver's work.
#[derive(Clone)]
pub(crate) struct Wakers {
    /// Requests [`Driver::work`].
    pub(crate) work: Waker,
    /// Requests [`Driver::monitor`].
    pub(crate) monitor: Waker,
}

/// A driver's data and its work.
#[pin_data]
pub(crate) struct Adapted<'bound, T: Driver> {
    // Both are dropped before the data, which the work uses.
    working: Running,
    monitoring: Running,
    #[pin]
    data: T::Data<'bound>,
}

impl<'bound, T: Driver> Adapted<'bound, T> {
    fn new<'a>(
        data: impl PinInit<T::Data<'bound>, Error> + 'a,
        wakers: Wakers,
    ) -> impl PinInit<Self, Error> + 'a
    where
        'bound: 'a,
    {
        try_pin_init!(&this in Self {
            data <- data,
            monitoring: {
                // SAFETY: `this` points to the memory of the value that is being initialized.
                let data = unsafe { &raw const (*this.as_ptr()).data };
                // SAFETY: The data, which is `Sync`, is initialized, pinned, and dropped only after
                // this field, as it is declared later.
                unsafe { Running::new(&wakers.monitor, Self::monitor, data.cast()) }
            },
            working: {
                // SAFETY: `this` points to the memory of the value that is being initialized.
                let data = unsafe { &raw const (*this.as_ptr()).data };
                // SAFETY: The data is as said for `monitoring`.
                unsafe { Running::new(&wakers.work, Self::work, data.cast()) }
            },
            _: {
                wakers.monitor.wake();
                // SAFETY: All fields are initialized.
                let adapted = unsafe { this.as_ref() };
                // SAFETY: The value is being initialized where it stays.
                T::start(unsafe { Pin::new_unchecked(adapted) }.data())?;
            },
        }? Error)
    }

    /// Callback of the work queue.
    ///
    /// # Safety
    ///
    /// `data` must point to pinned data of the driver, which is valid during the call.
    unsafe fn work(data: *const ()) {
        // SAFETY: By the requirement of this function, this is valid data.
        let data = unsafe { &*data.cast() };
        // SAFETY: By the requirement of this function, the data is pinned.
        T::work(unsafe { Pin::new_unchecked(data) });
    }

    /// Callback of the work queue.
    ///
    /// # Safety
    ///
    /// As for [`Self::work`].
    unsafe fn monitor(data: *const ()) {
        // SAFETY: By the requirement of this function, this is valid data.
        let data = unsafe { &*data.cast() };
        // SAFETY: By the requirement of this function, the data is pinned.
        T::monitor(unsafe { Pin::new_unchecked(data) });
    }

    fn data(self: Pin<&Self>) -> Pin<&T::Data<'bound>> {
        // SAFETY: The data is structurally pinned.
        unsafe { self.map_unchecked(|this| &this.data) }
    }
}

/// A [`Driver`] as a [`pci::Driver`], for [`pci::Adapter`].
struct Known<T: Driver>(PhantomData<T>);

impl<T: Driver> pci::Driver for Known<T> {
    type IdInfo = ();
    type Data<'bound> = Adapted<'bound, T>;
    const ID_TABLE: pci::IdTable<()> = T::ID_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Adapted<'bound, T>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let dev: &'bound device::Device<Bound> = pdev.as_ref();
            // SAFETY: `'bound` is the lifetime of the binding, which the driver core makes longer
            // than that of the driver's data and of the device's resources.
            let binding = unsafe { Attachment::new(dev) }?;
            let wakers = Wakers {
                work: Waker::new()?,
                monitor: Waker::new()?,
            };
            Ok(Adapted::new(
                T::probe(pdev, binding, wakers.clone()),
                wakers,
            ))
        })
    }

    fn unbind<'bound>(_pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Adapted<'bound, T>>) {
        T::unbind(this.data(), &|| this.working.stop());
        this.working.stop();
        this.monitoring.stop();
    }
}

/// [`pci::Adapter`] with the callbacks that it lacks.
///
/// # Contract of the callbacks
///
/// Only the bus and the driver core call them, for a device that is bound to this driver. They hold
/// the device's lock, so that it stays bound during the call.
pub(crate) struct Adapter<T: Driver>(PhantomData<T>);

// SAFETY: The types and the offset are those of `pci::Adapter`, which does the work.
unsafe impl<T: Driver> driver::DriverLayout for Adapter<T> {
    type DriverType = bindings::pci_driver;
    type DriverData<'bound> = Adapted<'bound, T>;
    const DEVICE_DRIVER_OFFSET: usize = offset_of!(bindings::pci_driver, driver);
}

// SAFETY: Registering and unregistering are those of `pci::Adapter`.
unsafe impl<T: Driver> driver::RegistrationOps for Adapter<T> {
    unsafe fn register(
        pdrv: &Opaque<bindings::pci_driver>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        // SAFETY: The driver is initialized and not registered yet, so nothing else accesses it.
        let raw = unsafe { &mut *pdrv.get() };
        raw.shutdown = Some(Self::shutdown_callback);
        raw.err_handler = &raw const *Self::ERROR_HANDLERS;
        raw.driver.pm = &raw const *Self::POWER;
        raw.dev_groups = sysfs::Groups::<T::File>::TABLE.as_ptr().cast_mut();

        // SAFETY: The caller upholds the same requirements.
        unsafe { <pci::Adapter<Known<T>> as driver::RegistrationOps>::register(pdrv, name, module) }
    }

    unsafe fn unregister(pdrv: &Opaque<bindings::pci_driver>) {
        // SAFETY: The caller upholds the same requirements.
        unsafe { <pci::Adapter<Known<T>> as driver::RegistrationOps>::unregister(pdrv) }
    }
}

impl<T: Driver> Adapter<T> {
    /// Callbacks of the bus for errors and resets.
    const ERROR_HANDLERS: &'static bindings::pci_error_handlers = &bindings::pci_error_handlers {
        error_detected: Some(Self::error_detected_callback),
        slot_reset: Some(Self::slot_reset_callback),
        resume: Some(Self::restart_callback),
        reset_prepare: Some(Self::quiesce_callback),
        reset_done: Some(Self::restart_callback),
        // SAFETY: In a table of functions, null stands for an absent function.
        ..unsafe { core::mem::zeroed() }
    };

    /// Callbacks for sleep and hibernation. The bus saves and restores the configuration.
    const POWER: &'static bindings::dev_pm_ops = &bindings::dev_pm_ops {
        suspend: Some(Self::power_down_callback),
        resume: Some(Self::power_up_callback),
        freeze: Some(Self::power_down_callback),
        thaw: Some(Self::power_up_callback),
        poweroff: Some(Self::power_down_callback),
        restore: Some(Self::power_up_callback),
        // SAFETY: In a table of functions, null stands for an absent function.
        ..unsafe { core::mem::zeroed() }
    };

    /// Calls `f` with the driver's data.
    ///
    /// # Safety
    ///
    /// `dev` must be a device that is bound to this driver, and stay so during the call.
    unsafe fn with_data<R>(
        dev: *mut bindings::device,
        f: impl for<'bound> FnOnce(Pin<&T::Data<'bound>>) -> R,
    ) -> R {
        // SAFETY: The caller guarantees that the device is valid; `device::Device` is a transparent
        // wrapper of the C structure.
        let dev = unsafe { &*dev.cast::<device::Device<CoreInternal<'_>>>() };

        // SAFETY: A bound device has been probed, which stored this type.
        let this = unsafe { dev.drvdata_borrow::<Adapted<'_, T>>() };
        f(this.data())
    }

    /// Calls `f` with the driver's data of a PCI device.
    ///
    /// # Safety
    ///
    /// `pdev` must be a device that is bound to this driver, and stay so during the call.
    unsafe fn with_pci_data<R>(
        pdev: *mut bindings::pci_dev,
        f: impl for<'bound> FnOnce(Pin<&T::Data<'bound>>) -> R,
    ) -> R {
        // SAFETY: The caller guarantees that the PCI device is valid.
        let dev = unsafe { &raw mut (*pdev).dev };
        // SAFETY: The caller guarantees that the device is bound to this driver during the call.
        unsafe { Self::with_data(dev, f) }
    }

    /// Quiesces a device when the system halts.
    ///
    /// # Safety
    ///
    /// The contract of [`Adapter`] holds.
    unsafe extern "C" fn shutdown_callback(pdev: *mut bindings::pci_dev) {
        // SAFETY: By the contract, the device is bound, and stays so during its shutdown.
        unsafe { Self::with_pci_data(pdev, |this| T::shutdown(this)) };
    }

    /// Stops the use of a device after an error, and returns the bus's next recovery step.
    ///
    /// # Safety
    ///
    /// The contract of [`Adapter`] holds.
    unsafe extern "C" fn error_detected_callback(
        pdev: *mut bindings::pci_dev,
        state: bindings::pci_channel_state_t,
    ) -> bindings::pci_ers_result_t {
        // The link works, so that the bus proceeds to `resume`. The driver's health check finds out
        // whether the device works.
        if state == bindings::pci_channel_io_normal {
            return bindings::pci_ers_result_PCI_ERS_RESULT_CAN_RECOVER;
        }
        // SAFETY: By the contract, the device is valid.
        let now = unsafe { error_state(pdev) };

        let on_error = |this: Pin<&T::Data<'_>>| {
            if now == bindings::pci_channel_io_normal {
                // The bus gives up the recovery because of another function. If it has quiesced
                // this one, it has also reset it.
                T::restart(this);
                return bindings::pci_ers_result_PCI_ERS_RESULT_DISCONNECT;
            }
            T::quiesce(this);
            if state == bindings::pci_channel_io_frozen {
                bindings::pci_ers_result_PCI_ERS_RESULT_NEED_RESET
            } else {
                T::lost(this);
                bindings::pci_ers_result_PCI_ERS_RESULT_DISCONNECT
            }
        };
        // SAFETY: By the contract, the device stays bound during the call, even if it was lost.
        unsafe { Self::with_pci_data(pdev, on_error) }
    }

    /// Restores the configuration of a device that the bus has reset.
    ///
    /// # Safety
    ///
    /// The contract of [`Adapter`] holds.
    unsafe extern "C" fn slot_reset_callback(
        pdev: *mut bindings::pci_dev,
    ) -> bindings::pci_ers_result_t {
        // A reset because of another function on the bus is not preceded by `error_detected`. Before
        // the driver has noticed it, the function must not be a bus master: it has lost addresses.
        // SAFETY: By the contract, the device is bound, which a reset does not change.
        unsafe { Self::with_pci_data(pdev, |this| T::quiesce(this)) };
        // SAFETY: By the contract, the device is valid. Its driver may restore its configuration.
        unsafe { bindings::pci_restore_state(pdev) };
        bindings::pci_ers_result_PCI_ERS_RESULT_RECOVERED
    }

    /// Stops the use of a device before the bus resets it.
    ///
    /// # Safety
    ///
    /// The contract of [`Adapter`] holds.
    unsafe extern "C" fn quiesce_callback(pdev: *mut bindings::pci_dev) {
        // SAFETY: By the contract, the device is bound, and stays so while its use is stopped.
        unsafe { Self::with_pci_data(pdev, |this| T::quiesce(this)) }
    }

    /// Starts the use of a device again after a reset.
    ///
    /// # Safety
    ///
    /// The contract of [`Adapter`] holds.
    unsafe extern "C" fn restart_callback(pdev: *mut bindings::pci_dev) {
        // SAFETY: By the contract, the device is bound, and stays so while the driver restarts it.
        unsafe { Self::with_pci_data(pdev, |this| T::restart(this)) }
    }

    /// Stops the use of a device before it loses power.
    ///
    /// # Safety
    ///
    /// The contract of [`Adapter`] holds.
    unsafe extern "C" fn power_down_callback(dev: *mut bindings::device) -> c_int {
        // SAFETY: By the contract, the device is bound, and stays so while its use is stopped.
        unsafe { Self::with_data(dev, |this| T::quiesce(this)) };
        0
    }

    /// Starts the use of a device again when it has power.
    ///
    /// # Safety
    ///
    /// The contract of [`Adapter`] holds.
    unsafe extern "C" fn power_up_callback(dev: *mut bindings::device) -> c_int {
        // SAFETY: By the contract, the device is bound, which a loss of power does not change.
        unsafe { Self::with_data(dev, |this| T::restart(this)) };
        0
    }
}
