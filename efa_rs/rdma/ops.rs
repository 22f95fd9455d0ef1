// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The functions through which the core calls a [`Provider`].
//!
//! What all functions here rely on, and what their `SAFETY` comments call *the core's promise*: they
//! are called by the core only, with pointers to objects of a device that was registered with the same
//! provider type, and is registered until they return; objects are created before they are used, and
//! not used after they are destroyed.

mod ah;
mod comp_cntr;
mod context;
mod counters;
mod cq;
mod details;
mod device;
mod mr;
mod pd;
mod qp;
mod table;

use core::marker::PhantomData;

use super::{
    device::Device,
    provider::Provider, //
};
use crate::ffi;

/// The functions for the provider `P`.
pub(super) struct Ops<P>(PhantomData<P>);

impl<P: Provider> Ops<P> {
    /// Returns the device behind the core's structure.
    ///
    /// # Safety
    ///
    /// `device` must be registered with the provider `P`, for `'d`.
    unsafe fn device<'d, 'a>(device: *mut ffi::ib_device) -> &'d Device<P::Data<'a>>
    where
        'a: 'd,
    {
        // SAFETY: A registration has allocated the device, and initialized its data before. Whoever
        // uses the data is generic over `'a`, so that any will do.
        unsafe { Device::from_raw(device) }
    }
}
