// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Contexts: one for each process that has a device open.

use core::marker::PhantomData;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    device::Device,
    mmap::{
        Mapping,
        MmapEntry,
        MmapKeys, //
    },
    udata::Udata, //
};

/// The context of a process, of a device with data `D`.
#[vtable]
pub(crate) trait Ucontext<D>: Sized + Send + Sync {
    /// Creates a context for a process that opens the device.
    fn alloc(_device: &Device<D>, _udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Destroys the context. Nothing that was made in it is left.
    fn dealloc(&self, _device: &Device<D>) {}
}

/// The context that a verb is called in, with the provider's data `U`.
///
/// `'a` is that of the registration, and invariant: what processes map must be valid for no less.
pub(crate) struct Context<'c, 'a, U> {
    data: &'c U,
    keys: &'c Arc<MmapKeys>,
    registration: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl<'c, 'a, U> Context<'c, 'a, U> {
    /// Makes a context of its parts.
    ///
    /// # Safety
    ///
    /// `keys` must be those of a context of a registration whose data is valid for `'a`.
    pub(super) unsafe fn new(data: &'c U, keys: &'c Arc<MmapKeys>) -> Self {
        Self {
            data,
            keys,
            registration: PhantomData,
        }
    }

    /// Returns the provider's data.
    pub(crate) fn data(&self) -> &'c U {
        self.data
    }

    /// Lets the process map `length` bytes.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory, or no key is left.
    pub(crate) fn insert_mmap(&self, mapping: Mapping<'a>, length: usize) -> Result<MmapEntry> {
        // SAFETY: By the requirement of `new`, the mapping is valid as long as the registration,
        // with which its contexts end.
        unsafe { MmapKeys::insert(self.keys, mapping, length) }
    }
}
