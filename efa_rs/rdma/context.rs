// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The context that a process calls a verb in.

use core::marker::PhantomData;

use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    prelude::*, //
};

use super::{
    device::dma_device,
    mmap::{
        Mapping,
        MmapEntry, //
    },
    ops::Ucontext,
    provider::Provider,
    udata::Udata, //
};
use crate::ffi;

/// The context of the process that has called a verb.
///
/// # Invariants
///
/// `raw` is a context of a device that is registered with the provider `T`, valid for `'a`.
pub(crate) struct Context<'a, T> {
    raw: *mut ffi::ib_ucontext,
    lifetime: PhantomData<&'a T>,
}

impl<'a, T: Provider> Context<'a, T> {
    /// Returns the context of the process that `udata` is from.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is not from a process.
    ///
    /// # Safety
    ///
    /// `udata` must be from a verb of a device that is registered with the provider `T`.
    pub(super) unsafe fn of(udata: &Udata<'a>) -> Result<Self> {
        // SAFETY: The core embeds a process's `ib_udata` in what it knows of the call.
        let raw = unsafe { ffi::efa_udata_to_ucontext(udata.as_raw()) };
        if raw.is_null() {
            return Err(EINVAL);
        }

        // INVARIANT: The caller guarantees it; the context outlives the verb.
        Ok(Self {
            raw,
            lifetime: PhantomData,
        })
    }

    /// Returns the provider's data.
    pub(crate) fn data(&self) -> &'a T::Ucontext {
        // SAFETY: By the type invariant, and as `alloc_ucontext` has initialized the data.
        unsafe { Ucontext::<T>::data(self.raw) }
    }

    /// Returns the device that does the DMA.
    pub(crate) fn dma_device(&self) -> &'a Device<Bound> {
        // SAFETY: By the type invariant the device is registered.
        unsafe { dma_device((*self.raw).device) }
    }

    /// Lets the process map `length` bytes.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory, or no key is left.
    pub(crate) fn insert_mmap(&self, mapping: Mapping, length: usize) -> Result<MmapEntry> {
        // SAFETY: By the type invariant the context is valid. The objects that entries belong to
        // are destroyed before the context is.
        unsafe { MmapEntry::insert(self.raw, mapping, length) }
    }
}

/// Keeps the memory of a device alive.
pub(super) struct DeviceRef(*mut ffi::ib_device);

// SAFETY: Reference counts may be used by any task.
unsafe impl Send for DeviceRef {}

// SAFETY: As above.
unsafe impl Sync for DeviceRef {}

impl DeviceRef {
    /// Takes a reference.
    ///
    /// # Safety
    ///
    /// `device` must be valid.
    pub(super) unsafe fn new(device: *mut ffi::ib_device) -> Self {
        // SAFETY: The caller guarantees it.
        unsafe { bindings::get_device((*device).__bindgen_anon_1.dev.as_mut()) };
        Self(device)
    }
}

impl Drop for DeviceRef {
    fn drop(&mut self) {
        // SAFETY: Gives back the reference that `new` took.
        unsafe { bindings::put_device((*self.0).__bindgen_anon_1.dev.as_mut()) }
    }
}
