// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI functions and their drivers.

use core::{marker::PhantomData, mem::offset_of, ops::Deref, pin::Pin};

use pin_init::PinInit;

use crate::{
    alloc::KBox,
    bindings,
    device::{derefs, Bound, Core, CoreInternal, DeviceContext, Normal},
    driver,
    error::{
        code::{EBUSY, EINVAL, ENOMEM, ENOSPC},
        to_result, Error, Result,
    },
    ffi::c_int,
    irq::IrqRequest,
    str::CStr,
    types::{ForeignOwnable, Opaque},
    ThisModule,
};

pub mod slot;

/// A PCI function.
#[repr(transparent)]
pub struct Device<Ctx: DeviceContext = Normal>(Opaque<bindings::pci_dev>, PhantomData<Ctx>);

// SAFETY: All tasks are in one thread.
unsafe impl<Ctx: DeviceContext> Send for Device<Ctx> {}
// SAFETY: As above.
unsafe impl<Ctx: DeviceContext> Sync for Device<Ctx> {}

derefs!(Device);

impl<Ctx: DeviceContext> AsRef<crate::device::Device<Ctx>> for Device<Ctx> {
    fn as_ref(&self) -> &crate::device::Device<Ctx> {
        // SAFETY: The device is a field of the function.
        unsafe { &*(&raw const (*self.0.get()).dev).cast() }
    }
}

impl<Ctx: DeviceContext> Device<Ctx> {
    fn raw(&self) -> *mut bindings::pci_dev {
        self.0.get()
    }
}

impl Device {
    /// Returns the bus number, and the number on the bus.
    pub fn dev_id(&self) -> u16 {
        // SAFETY: The device is valid.
        unsafe { (*self.raw()).number }
    }

    /// Returns the vendor: all functions of the shim are Amazon's.
    pub fn vendor_id(&self) -> Vendor {
        Vendor::AMAZON
    }

    /// Returns the device id.
    pub fn device_id(&self) -> u16 {
        // SAFETY: The device is valid.
        unsafe { (*self.raw()).device }
    }

    /// Returns the subsystem's device id, which is that of the function.
    pub fn subsystem_device_id(&self) -> u16 {
        self.device_id()
    }

    /// Returns the address of a BAR.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the number of the BAR is invalid.
    pub fn resource_start(&self, bar: u32) -> Result<u64> {
        self.resource_len(bar)?;
        Ok(bindings::bar_address(bar))
    }

    /// Returns the size of a BAR, 0 if it is missing.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the number of the BAR is invalid.
    pub fn resource_len(&self, bar: u32) -> Result<u64> {
        if bar > 5 {
            return Err(EINVAL);
        }
        Ok(sim::device(|device| device.bar_size(bar)).unwrap_or(0))
    }
}

impl Device<Core<'_>> {
    /// Enables the BARs.
    ///
    /// # Errors
    ///
    /// None in the shim.
    pub fn enable_device_mem(&self) -> Result {
        // SAFETY: The device is valid.
        to_result(unsafe { bindings::pci_enable_device_mem(self.raw()) })
    }

    /// Makes the function a bus master.
    pub fn set_master(&self) {
        // SAFETY: The device is valid.
        unsafe { bindings::pci_set_master(self.raw()) }
    }
}

impl Device<Bound> {
    /// Reserves and maps a BAR of at least `SIZE` bytes.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is smaller, [`EBUSY`] if it is reserved, [`ENOMEM`] if there is no memory.
    pub fn iomap_region_sized<'a, const SIZE: usize>(
        &'a self,
        bar: u32,
        name: &'static CStr,
    ) -> Result<Bar<'a, SIZE>> {
        if self.resource_len(bar)? < SIZE as u64 {
            return Err(EINVAL);
        }
        let _ = name;
        // SAFETY: The device is valid.
        let result = unsafe {
            bindings::pci_request_selected_regions(self.raw(), 1 << bar, core::ptr::null())
        };
        to_result(result).map_err(|_| EBUSY)?;
        if !sim::may_allocate() {
            // SAFETY: The region was just requested.
            unsafe { bindings::pci_release_selected_regions(self.raw(), 1 << bar) };
            return Err(ENOMEM);
        }
        Ok(Bar { pdev: self, bar })
    }

    /// Allocates MSI-X vectors.
    ///
    /// # Errors
    ///
    /// - [`ENOSPC`] if there are fewer than `min`, [`EBUSY`] if some are allocated, [`ENOMEM`] if there is no memory.
    pub fn alloc_irq_vectors(
        &self,
        min: u32,
        max: u32,
        _: IrqTypes,
    ) -> Result<IrqVectorRegistration<'_>> {
        if !sim::may_allocate() {
            return Err(ENOMEM);
        }
        let count = sim::device(|device| device.vectors()).unwrap_or(0).min(max);
        if count < min {
            return Err(ENOSPC);
        }
        // SAFETY: The device is valid.
        let function = unsafe { &*self.raw() };
        if function.vectors.get() != 0 {
            return Err(EBUSY);
        }
        function.set_vectors(count);
        Ok(IrqVectorRegistration { pdev: self, count })
    }
}

/// A mapped BAR.
pub struct Bar<'a, const SIZE: usize> {
    pdev: &'a Device<Bound>,
    bar: u32,
}

impl<const SIZE: usize> crate::io::Io for Bar<'_, SIZE> {
    fn place(&self) -> crate::io::Place {
        crate::io::Place::Bar(self.bar, SIZE)
    }
}

impl<const SIZE: usize> Drop for Bar<'_, SIZE> {
    fn drop(&mut self) {
        // SAFETY: `iomap_region_sized` has requested the region.
        unsafe { bindings::pci_release_selected_regions(self.pdev.raw(), 1 << self.bar) };
    }
}

/// A type of interrupts.
#[derive(Clone, Copy)]
pub enum IrqType {
    /// MSI-X.
    MsiX,
}

/// A set of types of interrupts.
#[derive(Clone, Copy, Default)]
pub struct IrqTypes(());

impl IrqTypes {
    /// Adds a type.
    pub const fn with(self, _: IrqType) -> Self {
        self
    }
}

/// The allocated vectors of a function.
pub struct IrqVectorRegistration<'a> {
    pdev: &'a Device<Bound>,
    count: u32,
}

/// A vector.
pub struct IrqVector<'a>(u32, PhantomData<&'a ()>);

impl IrqVectorRegistration<'_> {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of vectors.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns a vector.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the index is out of bounds.
    pub fn index(&self, index: usize) -> Result<IrqVector<'_>> {
        if index >= self.len() {
            return Err(EINVAL);
        }
        Ok(IrqVector(bindings::FIRST_IRQ + index as u32, PhantomData))
    }
}

impl Drop for IrqVectorRegistration<'_> {
    fn drop(&mut self) {
        // SAFETY: The device is valid.
        unsafe { (*self.pdev.raw()).set_vectors(0) };
    }
}

impl<'a> From<IrqVector<'a>> for IrqRequest<'a> {
    fn from(vector: IrqVector<'a>) -> Self {
        Self {
            irq: vector.0,
            device: PhantomData,
        }
    }
}

/// A vendor id.
#[derive(Clone, Copy)]
pub struct Vendor(pub u16);

impl Vendor {
    /// Amazon.
    pub const AMAZON: Self = Self(0x1d0f);

    /// Returns the number.
    pub const fn as_raw(self) -> u16 {
        self.0
    }
}

/// The id of a device that a driver supports.
#[derive(Clone, Copy)]
pub struct DeviceId {
    /// The vendor id.
    pub vendor: u16,
    /// The device id.
    pub device: u32,
}

impl DeviceId {
    /// Returns the id of a vendor's device.
    pub const fn from_id(vendor: Vendor, device: u32) -> Self {
        Self {
            vendor: vendor.0,
            device,
        }
    }
}

/// The table of the devices of a driver.
pub type IdTable<T> = &'static [(DeviceId, T)];

/// A driver of PCI functions.
pub trait Driver {
    /// Information of the driver in an entry of the table.
    type IdInfo: 'static;
    /// The data of a device that is bound.
    type Data<'bound>: Send + Sync + 'bound;
    /// Devices that the driver supports.
    const ID_TABLE: IdTable<Self::IdInfo>;

    /// Binds a device.
    fn probe<'bound>(
        pdev: &'bound Device<Core<'_>>,
        info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// Unbinds a device. Then its data is dropped, and after that its resources are released.
    fn unbind<'bound>(pdev: &'bound Device<Core<'_>>, this: Pin<&Self::Data<'bound>>);
}

/// Callbacks of the bus for a [`Driver`].
pub struct Adapter<T: Driver>(PhantomData<T>);

// SAFETY: The offset is that of the field `driver`.
unsafe impl<T: Driver> driver::DriverLayout for Adapter<T> {
    type DriverType = bindings::pci_driver;
    type DriverData<'bound> = T::Data<'bound>;
    const DEVICE_DRIVER_OFFSET: usize = offset_of!(bindings::pci_driver, driver);
}

// SAFETY: The driver is registered from the first function to the second one.
unsafe impl<T: Driver> driver::RegistrationOps for Adapter<T> {
    unsafe fn register(
        driver: &Opaque<bindings::pci_driver>,
        name: &'static CStr,
        _: &'static ThisModule,
    ) -> Result {
        // SAFETY: The driver is not shared yet.
        unsafe {
            let driver = &mut *driver.get();
            driver.name = name.as_ptr().cast();
            driver.probe = Some(Self::probe);
            driver.remove = Some(Self::remove);
            driver.post_unbind = Some(Self::post_unbind);
            driver.matches = Some(Self::matches);
        }
        bindings::register_driver(driver.get());
        Ok(())
    }

    unsafe fn unregister(driver: &Opaque<bindings::pci_driver>) {
        bindings::unregister_driver(driver.get());
    }
}

impl<T: Driver> Adapter<T> {
    fn matches(device: u32) -> bool {
        T::ID_TABLE.iter().any(|(id, _)| id.device == device)
    }

    unsafe extern "C" fn probe(pdev: *mut bindings::pci_dev) -> c_int {
        // SAFETY: The bus gives a valid device.
        let pdev: &Device<CoreInternal<'_>> = unsafe { &*pdev.cast() };
        let dev: &crate::device::Device<CoreInternal<'_>> = pdev.as_ref();
        match dev.set_drvdata(T::probe(pdev, None)) {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        }
    }

    unsafe extern "C" fn remove(pdev: *mut bindings::pci_dev) {
        // SAFETY: As above; it was probed.
        unsafe {
            let pdev: &Device<CoreInternal<'_>> = &*pdev.cast();
            let dev: &crate::device::Device<CoreInternal<'_>> = pdev.as_ref();
            T::unbind(pdev, dev.drvdata_borrow::<T::Data<'_>>());
        }
    }

    unsafe extern "C" fn post_unbind(pdev: *mut bindings::pci_dev) {
        // SAFETY: It was probed.
        unsafe {
            let data = core::mem::replace(&mut (*pdev).dev.driver_data, core::ptr::null_mut());
            drop(<Pin<KBox<T::Data<'_>>> as ForeignOwnable>::from_foreign(
                data,
            ));
        }
    }
}
