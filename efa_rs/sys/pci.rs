// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Abstractions for PCI drivers that [`kernel::pci`] lacks.
//!
//! To be replaced by [`kernel::pci::Driver`] once it has shutdown, error handlers, power management
//! and work that ends with the binding. It also needs counterparts that undo `enable_device_mem`
//! and `set_master`.

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
        CoreInternal,
        DeviceContext, //
    },
    driver,
    error::{
        from_result,
        to_result, //
    },
    ffi::{
        c_char,
        c_int, //
    },
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
    sysfs,
    work::{
        Running,
        Waker, //
    },
};

/// Returns the C structure behind a PCI device.
pub(super) fn as_raw<Ctx: DeviceContext>(pdev: &pci::Device<Ctx>) -> *mut bindings::pci_dev {
    // CAST: `pci::Device` is a transparent wrapper of `Opaque<bindings::pci_dev>`.
    core::ptr::from_ref(pdev).cast_mut().cast()
}

/// Returns the address of the function as text, `dddd:bb:dd.f`.
pub(crate) fn name(pdev: &pci::Device) -> &CStr {
    let dev: &device::Device = pdev.as_ref();
    dev.name()
}

/// The address of a PCI function within its segment.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    /// Bus number.
    pub(crate) bus: u8,
    /// Device number, 0 to 31.
    pub(crate) device: u8,
    /// Function number, 0 to 7.
    pub(crate) function: u8,
}

/// Returns the address of the function.
pub(crate) fn address(pdev: &pci::Device) -> Address {
    let [devfn, bus] = pdev.dev_id().to_le_bytes();

    Address {
        bus,
        device: devfn >> 3,
        function: devfn & 0x7,
    }
}

/// Enables bus mastering, so that the function can access memory.
pub(crate) fn set_master(pdev: &pci::Device<Bound>) {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`, which is bound to this driver.
    unsafe { bindings::pci_set_master(as_raw(pdev)) }
}

/// Disables bus mastering, so that the function can't access memory.
pub(crate) fn clear_master(pdev: &pci::Device<Bound>) {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`, which is bound to this driver.
    unsafe { bindings::pci_clear_master(as_raw(pdev)) }
}

/// State of a function as reported by the bus.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// The function can be used.
    Works,
    /// The bus has isolated it because of an error.
    IsFrozen,
    /// It has failed for good, or was removed.
    IsGone,
}

/// Returns the state of the function as reported by the bus.
pub(crate) fn channel(pdev: &pci::Device<Bound>) -> Channel {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    let state = unsafe { &raw const (*as_raw(pdev)).error_state };
    // SAFETY: The state is part of the valid device. The core writes it at any time, as a whole.
    match unsafe { state.read_volatile() } {
        bindings::pci_channel_io_frozen => Channel::IsFrozen,
        bindings::pci_channel_io_perm_failure => Channel::IsGone,
        _ => Channel::Works,
    }
}

/// Marks the function, which is no bus master, as not reset, or removes the mark. The mark is the
/// INTx disable bit: the function uses MSI-X only.
pub(crate) fn mark_halted(pdev: &pci::Device<Bound>, is_halted: bool) {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`, whose configuration is its driver's.
    unsafe { bindings::pci_intx(as_raw(pdev), c_int::from(!is_halted)) }
}

/// Returns the command register of the function.
pub(super) fn command(pdev: &pci::Device<Bound>) -> u32 {
    let mut command = 0;
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    unsafe {
        bindings::pci_read_config_word(as_raw(pdev), bindings::PCI_COMMAND as c_int, &mut command);
    }
    command.into()
}

/// Returns whether the function still answers on its bus.
pub(crate) fn is_present(pdev: &pci::Device<Bound>) -> bool {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    unsafe { bindings::pci_device_is_present(as_raw(pdev)) }
}

/// Resets the function by FLR if it supports that, and restores its configuration. Afterwards it is
/// idle.
///
/// # Errors
///
/// - `ENOTTY` if the function was inaccessible, or is not ready a minute after the FLR.
/// - Those of `pcie_flr`.
pub(crate) fn function_level_reset(pdev: &pci::Device<Bound>) -> Result {
    let raw = as_raw(pdev);
    // SAFETY: `raw` is a valid `struct pci_dev`. This only checks whether FLR is supported.
    if unsafe { bindings::pcie_reset_flr(raw, true) } != 0 {
        return Ok(());
    }
    // Accesses by userspace wait until the FLR is over. If the bus has locked them out, to reset the
    // function next, it waits for this driver.
    // SAFETY: `raw` is a valid `struct pci_dev`.
    let is_locked = unsafe { bindings::pci_cfg_access_trylock(raw) };
    // SAFETY: This driver may change the saved state of the function, which is bound to it.
    unsafe { bindings::pci_save_state(raw) };
    // SAFETY: This driver may reset the function, which is bound to it.
    let result = to_result(unsafe { bindings::pcie_reset_flr(raw, false) });
    // SAFETY: The configuration that is written is the function's own, which was saved above.
    unsafe { bindings::pci_restore_state(raw) };
    if is_locked {
        // SAFETY: The lock was taken above.
        unsafe { bindings::pci_cfg_access_unlock(raw) };
    }
    result
}

/// Sends a change uevent of the function to userspace, with `facts` of the form `NAME=value`.
pub(crate) fn announce(pdev: &pci::Device<Bound>, facts: &[&CStr; 2]) {
    let [first, second] = facts;
    let mut environment: [*mut c_char; 3] = [
        first.as_char_ptr().cast_mut(),
        second.as_char_ptr().cast_mut(),
        core::ptr::null_mut(),
    ];
    let action = bindings::kobject_action_KOBJ_CHANGE;
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    let kobject = unsafe { &raw mut (*as_raw(pdev)).dev.kobj };
    // SAFETY: The object is that of a registered device. The texts, which the core only reads, are
    // valid during the call, and the list ends with null.
    unsafe { bindings::kobject_uevent_env(kobject, action, environment.as_mut_ptr()) };
}

/// A function whose memory decoding is enabled; disabled when dropped.
pub(crate) struct Enabled<'bound> {
    pdev: &'bound pci::Device<Bound>,
    was_left_halted: bool,
}

impl<'bound> Enabled<'bound> {
    /// Enables memory decoding.
    ///
    /// # Errors
    ///
    /// Those of `pci_enable_device_mem`.
    pub(crate) fn new(pdev: &'bound pci::Device<Core<'_>>) -> Result<Self> {
        let marks = bindings::PCI_COMMAND_INTX_DISABLE | bindings::PCI_COMMAND_MASTER;
        let command = command(pdev);
        // A failed read returns all bits; such a function may have the mark.
        let was_left_halted =
            command == u32::from(u16::MAX) || command & marks == bindings::PCI_COMMAND_INTX_DISABLE;
        pdev.enable_device_mem()?;
        if was_left_halted {
            // The core may have removed the mark, which is valid until a reset succeeds.
            mark_halted(pdev, true);
        }
        Ok(Self {
            pdev,
            was_left_halted,
        })
    }

    /// Returns whether the function was [left halted](mark_halted) by its previous driver.
    pub(crate) fn was_left_halted(&self) -> bool {
        self.was_left_halted
    }
}

impl Drop for Enabled<'_> {
    fn drop(&mut self) {
        // SAFETY: The device is bound, and was enabled by `new`.
        unsafe { bindings::pci_disable_device(as_raw(self.pdev)) }
    }
}

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
        // SAFETY: By the requirement of this function.
        T::work(unsafe { pinned(data) });
    }

    /// Callback of the work queue.
    ///
    /// # Safety
    ///
    /// As for [`Self::work`].
    unsafe fn monitor(data: *const ()) {
        // SAFETY: By the requirement of this function.
        T::monitor(unsafe { pinned(data) });
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

/// Returns a reference to pinned data.
///
/// # Safety
///
/// `data` must point to a pinned `T`, which is valid for `'a`.
unsafe fn pinned<'a, T>(data: *const ()) -> Pin<&'a T> {
    // SAFETY: By the requirement of this function.
    let data = unsafe { &*data.cast() };
    // SAFETY: By the requirement of this function.
    unsafe { Pin::new_unchecked(data) }
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
        let now = unsafe { &raw const (*pdev).error_state };
        // SAFETY: The state is part of the valid device. The core writes it at any time, as a whole.
        let now = unsafe { now.read_volatile() };

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
        from_result(|| {
            // SAFETY: By the contract, the device is bound, and stays so while its use is stopped.
            unsafe { Self::with_data(dev, |this| T::quiesce(this)) };
            Ok(0)
        })
    }

    /// Starts the use of a device again when it has power.
    ///
    /// # Safety
    ///
    /// The contract of [`Adapter`] holds.
    unsafe extern "C" fn power_up_callback(dev: *mut bindings::device) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the device is bound, which a loss of power does not change.
            unsafe { Self::with_data(dev, |this| T::restart(this)) };
            Ok(0)
        })
    }
}
