// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    device::{
        Device,
        Owned, //
    },
    object::{
        Object,
        Raw, //
    },
};
use crate::ffi;

/// A protection domain: objects that are used together must belong to the same one.
pub(crate) struct Pd<'a>(Owned<'a, ffi::ib_pd>);

impl<'a> Pd<'a> {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the provider.
    pub(crate) fn new(device: &'a Device) -> Result<Arc<Self>> {
        let create = |(): &()| {
            // SAFETY: The device is registered, and the name is static.
            let raw = unsafe { ffi::__ib_alloc_pd(device.as_raw(), 0, device.owner_name()) };
            Raw::created(raw)
        };
        // SAFETY: The domain is new, and needs nothing.
        let owned = unsafe { Owned::new(device, (), Object::Pd, create) }?;
        Ok(Arc::new(Self(owned), GFP_KERNEL)?)
    }

    /// Returns the core's structure.
    pub(super) fn as_raw(&self) -> *mut ffi::ib_pd {
        self.0.as_ptr()
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &'a Device {
        self.0.device()
    }

    /// Returns the local key of all memory that is DMA-mapped for the device.
    pub(super) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: `self` keeps the domain alive, and its key does not change.
        unsafe { (*self.as_raw()).local_dma_lkey }
    }
}
