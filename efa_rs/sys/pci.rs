// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI functions: what [`kernel::pci`] lacks for a driver with a `shutdown` callback.
//!
//! To be replaced by [`kernel::pci::Driver`] once it has `shutdown`, and by a counterpart of
//! `enable_device_mem` that undoes it.

use core::{
    marker::PhantomData,
    mem::offset_of,
    pin::Pin, //
};

use kernel::{
    bindings,
    device::{
        self,
        Core,
        CoreInternal,
        DeviceContext, //
    },
    driver,
    pci,
    prelude::*,
    str::CStr,
    sync::aref::ARef,
    types::Opaque, //
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

/// Takes the function's right to access memory on its own away.
pub(crate) fn clear_master(pdev: &pci::Device) {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    unsafe { bindings::pci_clear_master(as_raw(pdev)) }
}

/// A function whose memory decoding is enabled; disabled when dropped.
pub(crate) struct Enabled {
    pdev: ARef<pci::Device>,
}

impl Enabled {
    /// Enables memory decoding, and lets the function be a bus master.
    ///
    /// # Errors
    ///
    /// Those of `pci_enable_device_mem`.
    pub(crate) fn new(pdev: &pci::Device<Core<'_>>) -> Result<Self> {
        pdev.enable_device_mem()?;
        let enabled = Self { pdev: pdev.into() };
        pdev.set_master();
        Ok(enabled)
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        // SAFETY: The device is valid and was enabled by `new`.
        unsafe { bindings::pci_disable_device(as_raw(&self.pdev)) }
    }
}

/// A driver of PCI devices. Unlike a [`pci::Driver`], it is told when the system goes down.
pub(crate) trait Driver: 'static {
    /// What `probe` makes.
    type Data<'bound>: Send + 'bound;

    /// The devices that the driver is for.
    const ID_TABLE: pci::IdTable<()>;

    /// Called for each of these devices.
    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// Called when the system halts, reboots or starts another kernel. The device must be quiet
    /// when this returns; nothing is unbound.
    fn shutdown<'bound>(dev: &'bound pci::Device<Core<'_>>, this: Pin<&'bound Self::Data<'bound>>);
}

/// A [`Driver`] as one that [`pci::Adapter`] knows.
struct Known<T: Driver>(PhantomData<T>);

impl<T: Driver> pci::Driver for Known<T> {
    type IdInfo = ();
    type Data<'bound> = T::Data<'bound>;
    const ID_TABLE: pci::IdTable<()> = T::ID_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<T::Data<'bound>, Error> + 'bound {
        T::probe(pdev)
    }
}

/// [`pci::Adapter`] with a `shutdown` callback.
pub(crate) struct Adapter<T: Driver>(PhantomData<T>);

// SAFETY: The types and the offset are those of `pci::Adapter`, which does the work.
unsafe impl<T: Driver> driver::DriverLayout for Adapter<T> {
    type DriverType = bindings::pci_driver;
    type DriverData<'bound> = T::Data<'bound>;
    const DEVICE_DRIVER_OFFSET: usize = offset_of!(bindings::pci_driver, driver);
}

// SAFETY: Registering and unregistering are those of `pci::Adapter`.
unsafe impl<T: Driver> driver::RegistrationOps for Adapter<T> {
    unsafe fn register(
        pdrv: &Opaque<bindings::pci_driver>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        // SAFETY: The driver is not registered yet, so nobody else accesses it.
        unsafe { (*pdrv.get()).shutdown = Some(Self::shutdown_callback) };

        // SAFETY: The caller upholds the same requirements.
        unsafe { <pci::Adapter<Known<T>> as driver::RegistrationOps>::register(pdrv, name, module) }
    }

    unsafe fn unregister(pdrv: &Opaque<bindings::pci_driver>) {
        // SAFETY: The caller upholds the same requirements.
        unsafe { <pci::Adapter<Known<T>> as driver::RegistrationOps>::unregister(pdrv) }
    }
}

impl<T: Driver> Adapter<T> {
    extern "C" fn shutdown_callback(pdev: *mut bindings::pci_dev) {
        // SAFETY: The PCI core calls this with a valid device that is bound to this driver, and
        // holds the device's lock, so that it stays bound.
        let pdev = unsafe { &*pdev.cast::<pci::Device<CoreInternal<'_>>>() };
        let dev: &device::Device<CoreInternal<'_>> = pdev.as_ref();

        // SAFETY: A bound device has been probed, which stored a `T::Data`.
        let data = unsafe { dev.drvdata_borrow::<T::Data<'_>>() };

        T::shutdown(pdev, data);
    }
}
