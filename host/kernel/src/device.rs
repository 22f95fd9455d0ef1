// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices, and the contexts of references to them.

use core::{marker::PhantomData, ops::Deref, pin::Pin};

use crate::{
    alloc::{flags::GFP_KERNEL, KBox},
    bindings,
    error::{Error, Result},
    init::InPlaceInit,
    str::{CStr, CStrExt},
    types::{ForeignOwnable, Opaque},
};

/// The state of a device that a reference to it guarantees.
pub trait DeviceContext {}

/// No state is guaranteed.
pub struct Normal;
/// The device is bound to its driver.
pub struct Bound;
/// A callback of the driver core is running.
pub struct Core<'a>(PhantomData<&'a ()>);
/// The reference is used by the driver core itself.
pub struct CoreInternal<'a>(PhantomData<&'a ()>);

impl DeviceContext for Normal {}
impl DeviceContext for Bound {}
impl DeviceContext for Core<'_> {}
impl DeviceContext for CoreInternal<'_> {}

/// A device. The shim has no reference counts beyond those of `get_device`.
#[repr(transparent)]
pub struct Device<Ctx: DeviceContext = Normal>(Opaque<bindings::device>, PhantomData<Ctx>);

// SAFETY: All tasks are in one thread.
unsafe impl<Ctx: DeviceContext> Send for Device<Ctx> {}
// SAFETY: As above.
unsafe impl<Ctx: DeviceContext> Sync for Device<Ctx> {}

macro_rules! derefs {
    ($device:ident) => {
        impl Deref for $device<$crate::device::Bound> {
            type Target = $device;

            fn deref(&self) -> &$device {
                // SAFETY: The layout is the same.
                unsafe { &*core::ptr::from_ref(self).cast() }
            }
        }

        impl<'a> Deref for $device<$crate::device::Core<'a>> {
            type Target = $device<$crate::device::Bound>;

            fn deref(&self) -> &Self::Target {
                // SAFETY: The layout is the same.
                unsafe { &*core::ptr::from_ref(self).cast() }
            }
        }

        impl<'a> Deref for $device<$crate::device::CoreInternal<'a>> {
            type Target = $device<$crate::device::Core<'a>>;

            fn deref(&self) -> &Self::Target {
                // SAFETY: The layout is the same.
                unsafe { &*core::ptr::from_ref(self).cast() }
            }
        }
    };
}

pub(crate) use derefs;

derefs!(Device);

impl<Ctx: DeviceContext> Device<Ctx> {
    pub(crate) fn raw(&self) -> *mut bindings::device {
        self.0.get()
    }

    /// Converts a pointer from C to a reference.
    ///
    /// # Safety
    ///
    /// The device must be valid, and in the state of `Ctx`, for `'a`.
    pub unsafe fn from_raw<'a>(dev: *mut bindings::device) -> &'a Self {
        // SAFETY: The caller guarantees it; the layout is the same.
        unsafe { &*dev.cast() }
    }

    /// Returns the name.
    pub fn name(&self) -> &CStr {
        // SAFETY: The device is valid, and so is its name.
        unsafe { CStr::from_char_ptr((*self.raw()).init_name) }
    }
}

impl Device<CoreInternal<'_>> {
    /// Allocates and initializes the driver's data.
    ///
    /// # Errors
    ///
    /// Errors of the initializer, and `ENOMEM`.
    pub fn set_drvdata<T>(&self, data: impl pin_init::PinInit<T, Error>) -> Result {
        let data = KBox::pin_init(data, GFP_KERNEL)?;
        // SAFETY: The device is not shared yet.
        unsafe { (*self.raw()).driver_data = data.into_foreign() };
        Ok(())
    }

    /// Returns the driver's data.
    ///
    /// # Safety
    ///
    /// Data of this type must have been set.
    pub unsafe fn drvdata_borrow<T>(&self) -> Pin<&T> {
        // SAFETY: The caller guarantees that data of this type was set.
        unsafe { Pin::new_unchecked(&*(*self.raw()).driver_data.cast::<T>()) }
    }
}

/// Prints a message about a device.
pub fn print(level: &str, dev: &Device, message: core::fmt::Arguments<'_>) {
    crate::warning::count_message();
    sim::log(format_args!(
        "{} {}: {}",
        dev.name().to_str().unwrap_or("?"),
        level,
        message
    ));
}
