// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What the callbacks have in common through which the core calls a [`Provider`].

use core::marker::PhantomData;

use kernel::{
    ffi::c_int,
    prelude::{
        Error,
        PinInit,
        Result, //
    }, //
};

use super::{
    device::Device,
    object::{
        CoreObject,
        ObjectOf, //
    },
    provider::Provider, //
};
use crate::ffi;

/// The callbacks for the provider `P`. Each is in the file of its kind of object.
///
/// # Safety
///
/// The contract of the callbacks: only the core calls them, as documented at `struct ib_device_ops`. During
/// a call:
///
/// - A pointer is valid for the structure of its type, unless it is documented that it may be null.
/// - Devices are registered with this table, or are being registered. Their data is initialized.
/// - Objects are of such devices, and were created by callbacks of this table. Objects that an
///   object refers to are destroyed after it.
/// - A new object has the size in the table, and is zeroed. Nothing else uses it. The core has set
///   its device, and the protection domain if it has one.
/// - An object that is destroyed is not in use, and is not used afterwards. `fill_res_*_entry` is called
///   for an object only after its creation, and before its destruction, with a message that is being built.
///
/// Callbacks are generic over the lifetime of a device's data, because the core does not know it. A
/// provider implements its traits for all lifetimes, so any lifetime that covers the call is valid.
pub(super) struct Ops<P>(PhantomData<P>);

impl<P: Provider> Ops<P> {
    /// Returns the device behind the core's structure.
    ///
    /// # Safety
    ///
    /// `device` must be registered with the provider `P`, or being registered, for `'d`.
    pub(super) unsafe fn device<'d, 'a: 'd>(
        device: *mut ffi::ib_device,
    ) -> &'d Device<P::Data<'a>> {
        // SAFETY: A registration has allocated the device, and has initialized its data.
        unsafe { Device::from_raw(device) }
    }

    /// Returns the device of an object.
    ///
    /// # Safety
    ///
    /// `core` must be valid. Its device must be registered with the provider `P` for `'d`.
    pub(super) unsafe fn device_of<'d, 'a: 'd, C: CoreObject>(
        core: *mut C,
    ) -> &'d Device<P::Data<'a>> {
        // SAFETY: The caller guarantees that the object is valid.
        let device = unsafe { C::device(core) };
        // SAFETY: The caller guarantees that the device is registered for `'d`.
        unsafe { Self::device(device) }
    }

    /// Returns the data of an object, and the object's device.
    ///
    /// # Safety
    ///
    /// `core` must be an object that was created on a device of the provider `P`, and is not destroyed
    /// for `'o`.
    pub(super) unsafe fn object<'o, 'a: 'o, C: CoreObject>(
        core: *mut C,
    ) -> (&'o C::Data<'a, P>, &'o Device<P::Data<'a>>) {
        // SAFETY: The caller guarantees that the object was created, which has initialized its data.
        let data = unsafe { ObjectOf::<P, C>::data(core) };
        // SAFETY: The caller guarantees that the object is valid. Its device outlives it.
        (data, unsafe { Self::device_of(core) })
    }

    /// Initializes a new object, and returns the result of its callback.
    ///
    /// # Errors
    ///
    /// Those of `init`.
    ///
    /// # Safety
    ///
    /// By the contract of [`Ops`], `core` must be new.
    pub(super) unsafe fn create<'a, C: CoreObject<Extra<'a, P> = ()>>(
        core: *mut C,
        init: impl PinInit<C::Data<'a, P>, Error>,
    ) -> Result<c_int> {
        // SAFETY: The caller guarantees that the object is new, and has the size in the table.
        unsafe { ObjectOf::<P, C>::init(core, init) }?;
        Ok(0)
    }

    /// Drops the data of an object that is destroyed, and returns the result of its callback.
    ///
    /// # Safety
    ///
    /// By the contract of [`Ops`], `core` must be an object that is destroyed.
    pub(super) unsafe fn destroy<C: CoreObject>(core: *mut C) -> c_int {
        // SAFETY: The caller guarantees that the object was created, and is not used any more.
        unsafe { ObjectOf::<P, C>::drop_data(core) };
        0
    }
}
