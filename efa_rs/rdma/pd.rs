// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use kernel::prelude::*;

use super::{
    device::Device,
    udata::Udata, //
};

/// A protection domain of a device with data `D`.
#[vtable]
pub(crate) trait ProtectionDomain<D>: Sized + Send + Sync {
    /// Creates a protection domain.
    fn alloc(_device: &Device<D>, _udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Destroys the protection domain.
    fn dealloc(&self, _device: &Device<D>) {}
}
