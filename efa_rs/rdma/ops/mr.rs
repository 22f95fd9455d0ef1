// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of memory regions.

use kernel::{
    bindings,
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    details,
    Ops, //
};
use crate::{
    ffi,
    rdma::{
        mr::{
            Memory,
            MemoryRegion,
            MrInitAttr, //
        },
        object,
        provider::Provider,
        udata::Udata, //
    },
};

/// A memory region with what is kept of it and the provider's data.
type Object<'a, P> = object::Object<ffi::ib_mr, Kept<'a, P>, <P as Provider>::Mr<'a>>;

/// What is kept of a memory region of the provider `P`.
type Kept<'a, P> =
    KeptOf<'a, <P as Provider>::Data<'a>, <P as Provider>::Pd<'a>, <P as Provider>::Mr<'a>>;

/// What is kept of a memory region `M`: first what the driver's own methods find right behind the
/// core's object.
#[repr(C)]
struct KeptOf<'a, D, Pd, M: MemoryRegion<'a, D, Pd>> {
    shared: M::Shared,
    details: M::Details,
}

impl<P: Provider> Ops<P> {
    pub(super) extern "C" fn reg_user_mr(
        pd: *mut ffi::ib_pd,
        start: u64,
        length: u64,
        iova: u64,
        access: c_int,
        dmah: *mut ffi::ib_dmah,
        udata: *mut ffi::ib_udata,
    ) -> *mut ffi::ib_mr {
        let memory = Memory::Process { start };
        // SAFETY: By the core's promise the domain was created, on a device that is registered during
        // the call; the input is the call's.
        unsafe {
            let attr = MrInitAttr::new((*pd).device, memory, length, iova, access, dmah);
            Self::register(pd, &attr, &Udata::from_raw(udata))
        }
    }

    pub(super) extern "C" fn reg_user_mr_dmabuf(
        pd: *mut ffi::ib_pd,
        offset: u64,
        length: u64,
        iova: u64,
        fd: c_int,
        access: c_int,
        dmah: *mut ffi::ib_dmah,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> *mut ffi::ib_mr {
        let memory = Memory::DmaBuf { fd, offset };
        // SAFETY: By the core's promise the domain was created, on a device that is registered during
        // the call; the attributes are the call's.
        unsafe {
            let attr = MrInitAttr::new((*pd).device, memory, length, iova, access, dmah);
            Self::register(pd, &attr, &Udata::of(attrs))
        }
    }

    /// Makes the object of a memory region, which the core expects the driver to allocate.
    ///
    /// # Safety
    ///
    /// `pd` must be a protection domain of a device that is registered with the provider `P`.
    unsafe fn register(
        pd: *mut ffi::ib_pd,
        attr: &MrInitAttr<'_>,
        udata: &Udata<'_>,
    ) -> *mut ffi::ib_mr {
        let make = || {
            let object = KBox::<Object<'_, P>>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
            let object = KBox::into_raw(object).cast::<ffi::ib_mr>();

            // SAFETY: The object was just allocated, of the size that it takes and zeroed; a box's
            // content does not move. The caller guarantees that the device is registered, and the
            // domain created.
            unsafe {
                let device = Self::device((*pd).device);
                let init = <P::Mr<'_> as MemoryRegion<_, _>>::register_user(
                    device,
                    Self::pd(pd),
                    attr,
                    udata,
                );
                Object::<'_, P>::init(object, init).inspect_err(|_| Self::free(object))?;

                let region = Object::<'_, P>::data(object);
                let keys = region.keys();
                (*object).lkey = keys.lkey;
                (*object).rkey = keys.rkey;
                (*object).length = attr.length;
                Object::<'_, P>::keep(
                    object,
                    KeptOf {
                        shared: region.shared(),
                        details: region.details(),
                    },
                );
            }
            Ok(object)
        };

        make().unwrap_or_else(|error: Error| Error::to_ptr(error))
    }

    /// Frees the memory of a region.
    ///
    /// # Safety
    ///
    /// `mr` must have been allocated by [`Self::register`], and have no data.
    unsafe fn free(mr: *mut ffi::ib_mr) {
        // SAFETY: The caller guarantees that this came from a box of this type, whose fields need no
        // drop.
        drop(unsafe { KBox::from_raw(mr.cast::<Object<'_, P>>()) });
    }

    pub(super) extern "C" fn dereg_mr(mr: *mut ffi::ib_mr, _udata: *mut ffi::ib_udata) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the object was made by `register`; if its destruction
            // succeeds, it is not used after this call.
            unsafe {
                Object::<'_, P>::data(mr).deregister(Self::device((*mr).device))?;
                Object::<'_, P>::drop_data(mr);
                Self::free(mr);
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn fill_res_mr_entry(
        msg: *mut bindings::sk_buff,
        mr: *mut ffi::ib_mr,
    ) -> c_int {
        // SAFETY: By the core's promise the region was created, which has set the details; the message
        // is being built.
        unsafe {
            let kept = Object::<'_, P>::kept(mr);
            let names = <P::Mr<'_> as MemoryRegion<_, _>>::DETAILS;
            details::write(msg, names, kept.details.as_ref())
        }
    }
}
