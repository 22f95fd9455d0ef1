// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Contexts: one for each process that has a device open.

use core::marker::PhantomData;

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    device::Device,
    mmap::{
        Mapped,
        Mapping, //
    },
    object::core_object,
    ops::Ops,
    provider::Provider,
    udata::Udata, //
};
use crate::ffi;

/// A process's context of a device of the provider `P`.
#[vtable]
pub(crate) trait Ucontext<'a, P: Provider>: Sized + Send + Sync {
    /// Creates a context for a process that opens the device.
    fn alloc(_device: &Device<P::Data<'a>>, _udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Destroys the context. Its objects were destroyed before.
    fn dealloc(&self, _device: &Device<P::Data<'a>>) {}
}

/// The context in which an object is created.
///
/// `'a` is the lifetime of the registration. It is invariant, because memory that processes map
/// must be valid for at least as long.
///
/// # Invariants
///
/// `raw` is valid for `'c`, and until the object is destroyed.
pub(crate) struct Context<'c, 'a, P: Provider> {
    raw: *mut ffi::ib_ucontext,
    data: &'c P::Ucontext<'a>,
    mapped: Mapped,
    registration: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl<'c, 'a, P: Provider> Context<'c, 'a, P> {
    /// Returns the provider's data.
    pub(crate) fn data(&self) -> &'c P::Ucontext<'a> {
        self.data
    }

    /// Lets the process map memory of the new object, as a whole, until the object is destroyed. Returns
    /// the key: the offset to pass to `mmap`.
    ///
    /// # Errors
    ///
    /// - [`ENOSPC`] if the object has four pieces of such memory.
    /// - [`ENOMEM`] if there is no memory, or no key is left.
    pub(crate) fn insert_mmap(&mut self, mapping: Mapping<'a>) -> Result<u64> {
        // SAFETY: By the type invariant, the context is valid until the object is destroyed. The mapping is valid
        // as long as the registration. Contexts end before it.
        unsafe { self.mapped.insert(self.raw, mapping) }
    }

    /// Returns the memory that the process can map.
    pub(super) fn into_mapped(self) -> Mapped {
        self.mapped
    }
}

core_object!(ib_ucontext, Ucontext, P::Ucontext<'a>, ());

impl<P: Provider> Ops<P> {
    /// Returns the context of the process that calls a verb, which creates an object.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the caller is not a process.
    ///
    /// # Safety
    ///
    /// `udata` must be from a verb of a device that is registered with the provider `P`.
    pub(super) unsafe fn context<'c, 'a: 'c>(udata: &Udata<'c>) -> Result<Context<'c, 'a, P>> {
        // SAFETY: The core embeds the `ib_udata` of a process in the attributes of the call.
        let raw = unsafe { ffi::efa_udata_to_ucontext(udata.as_raw()) };
        if raw.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: `alloc_ucontext` has created the context, which outlives the verb.
        let (data, _) = unsafe { Self::object(raw) };
        // INVARIANT: The core destroys the objects of a context before the context.
        Ok(Context {
            raw,
            data,
            mapped: Mapped::default(),
            registration: PhantomData,
        })
    }

    /// Creates a context.
    pub(super) unsafe extern "C" fn alloc_ucontext(
        context: *mut ffi::ib_ucontext,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the core has set the device of the new context.
            let device = unsafe { Self::device_of(context) };
            // SAFETY: By the contract, `udata` is valid during the call.
            let udata = unsafe { Udata::from_raw(udata) };
            let init = P::Ucontext::alloc(device, &udata);
            // SAFETY: By the contract, the context is new.
            unsafe { Self::create(context, init) }
        })
    }

    /// Destroys a context.
    pub(super) unsafe extern "C" fn dealloc_ucontext(context: *mut ffi::ib_ucontext) {
        // SAFETY: By the contract, `alloc_ucontext` has created the context.
        let (data, device) = unsafe { Self::object(context) };
        data.dealloc(device);
        // SAFETY: By the contract, the context is not used any more.
        unsafe { Self::destroy(context) };
    }

    /// Does nothing: its presence lets the core disassociate contexts.
    ///
    /// The core destroys the objects first, and then undoes the mappings, before it calls this. An
    /// entry for a mapping keeps its memory until then.
    pub(super) unsafe extern "C" fn disassociate_ucontext(_context: *mut ffi::ib_ucontext) {}
}
