// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of contexts, and the memory that processes map.

use core::ptr::NonNull;

use kernel::{
    bindings,
    error::from_result,
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};

use super::Ops;
use crate::{
    ffi,
    rdma::{
        context::{
            Context,
            Ucontext, //
        },
        mmap::{
            self,
            MmapKeys, //
        },
        object,
        provider::Provider,
        udata::Udata, //
    },
};

/// A context with its keys and the provider's data.
pub(super) type Object<P> = ObjectOf<<P as Provider>::Ucontext<'static>>;

/// A context with its keys and the data `U`.
type ObjectOf<U> = object::Object<ffi::ib_ucontext, Arc<MmapKeys>, U>;

impl<P: Provider> Ops<P> {
    /// Returns the context of the process that a verb is called by.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is not called by a process.
    ///
    /// # Safety
    ///
    /// `udata` must be from a verb of a device that is registered with the provider `P`.
    pub(super) unsafe fn context<'c, 'a>(
        udata: &Udata<'c>,
    ) -> Result<Context<'c, 'a, P::Ucontext<'a>>>
    where
        'a: 'c,
    {
        // SAFETY: The core embeds a process's `ib_udata` in what it knows of the call.
        let raw = unsafe { ffi::efa_udata_to_ucontext(udata.as_raw()) };
        if raw.is_null() {
            return Err(EINVAL);
        }

        // SAFETY: `alloc_ucontext` has initialized the context, which outlives the verb.
        unsafe {
            let data = ObjectOf::<P::Ucontext<'a>>::data(raw);
            Ok(Context::new(data, ObjectOf::<P::Ucontext<'a>>::kept(raw)))
        }
    }

    pub(super) extern "C" fn alloc_ucontext(
        context: *mut ffi::ib_ucontext,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            let raw = NonNull::new(context).ok_or(EINVAL)?;
            // SAFETY: The core has allocated the object for this call, of the size that the table
            // gives. It calls `dealloc_ucontext`, which closes the keys, before it frees it; if this
            // fails, they are closed here, where no entry can have been made.
            unsafe {
                let device = Self::device((*context).device);
                let udata = Udata::from_raw(udata);
                let keys = MmapKeys::new(raw)?;
                let init = <P::Ucontext<'_> as Ucontext<_>>::alloc(device, &udata);
                ObjectOf::init(context, init).inspect_err(|_| keys.close())?;
                Object::<P>::keep(context, keys);
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn dealloc_ucontext(context: *mut ffi::ib_ucontext) {
        // SAFETY: By the core's promise the object was created by `alloc_ucontext`, and is not used
        // after this call.
        unsafe {
            let device = Self::device((*context).device);
            ObjectOf::<P::Ucontext<'_>>::data(context).dealloc(device);
            ObjectOf::<P::Ucontext<'_>>::drop_data(context);
            Object::<P>::take_kept(context).close();
        }
    }

    pub(super) extern "C" fn disassociate_ucontext(_context: *mut ffi::ib_ucontext) {
        // The core has undone mappings already, and destroys what is in the context next.
    }

    pub(super) extern "C" fn mmap(
        context: *mut ffi::ib_ucontext,
        vma: *mut bindings::vm_area_struct,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the context is one of ours, and the mapping is being made
            // by its process.
            unsafe {
                mmap::map(context, vma)
                    .inspect_err(|_| P::mmap_failed(Self::device((*context).device)))?;
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn mmap_free(entry: *mut ffi::rdma_user_mmap_entry) {
        // SAFETY: By the core's promise the entry is one that was inserted into a context of ours, and
        // this is its last use.
        unsafe { mmap::free(entry) }
    }
}
