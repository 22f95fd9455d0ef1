// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Contexts: one for each process that has a device open.

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    device::Device,
    object::{
        core_object,
        ObjectOf, //
    },
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

core_object!(ib_ucontext, Ucontext, P::Ucontext<'a>, ());

/// Adds the callbacks of contexts to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    ops.size_ib_ucontext = ObjectOf::<P, ffi::ib_ucontext>::SIZE;
    if P::Ucontext::HAS_ALLOC {
        // With it, the core destroys programs' objects before it unregisters a device.
        ops.disassociate_ucontext = Some(Ops::<P>::disassociate_ucontext);
        ops.alloc_ucontext = Some(Ops::<P>::alloc_ucontext);
        ops.dealloc_ucontext = Some(Ops::<P>::dealloc_ucontext);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Creates a context.
    unsafe extern "C" fn alloc_ucontext(
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
    unsafe extern "C" fn dealloc_ucontext(context: *mut ffi::ib_ucontext) {
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
    unsafe extern "C" fn disassociate_ucontext(_context: *mut ffi::ib_ucontext) {}
}
