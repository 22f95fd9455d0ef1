// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of memory regions.

use kernel::{
    bindings,
    error::from_result,
    ffi::{
        c_int,
        c_uint, //
    },
    prelude::*, //
};

use super::{
    details,
    Ops, //
};
use crate::{
    ffi,
    rdma::{
        kernel_client::KernelClient,
        mr::{
            Access,
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
            Self::register_user(pd, &attr, &Udata::from_raw(udata))
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
            Self::register_user(pd, &attr, &Udata::of(attrs))
        }
    }

    pub(super) extern "C" fn get_dma_mr(pd: *mut ffi::ib_pd, access: c_int) -> *mut ffi::ib_mr {
        // SAFETY: By the core's promise the domain was created, on a device that is registered during
        // the call.
        unsafe {
            let device = Self::device((*pd).device);
            let access = Access::from_raw(access);
            let domain = Self::pd(pd);
            Self::register_kernel(|client| P::Mr::register_dma(device, domain, access, client))
        }
    }

    pub(super) extern "C" fn alloc_mr(
        pd: *mut ffi::ib_pd,
        mr_type: ffi::ib_mr_type,
        max_num_sg: u32,
    ) -> *mut ffi::ib_mr {
        if mr_type != ffi::ib_mr_type_IB_MR_TYPE_MEM_REG {
            return Error::to_ptr(EINVAL);
        }
        // SAFETY: By the core's promise the domain was created, on a device that is registered during
        // the call.
        unsafe {
            let device = Self::device((*pd).device);
            let domain = Self::pd(pd);
            Self::register_kernel(|client| P::Mr::alloc(device, domain, max_num_sg, client))
        }
    }

    pub(super) extern "C" fn map_mr_sg(
        mr: *mut ffi::ib_mr,
        sg: *mut bindings::scatterlist,
        sg_nents: c_int,
        sg_offset: *mut c_uint,
    ) -> c_int {
        // SAFETY: By the core's promise the object was made by `register`. The list is the client's, and
        // valid.
        unsafe {
            Self::mr(mr).clear_pages();
            ffi::ib_sg_to_pages(mr, sg, sg_nents, sg_offset, Some(Self::set_page))
        }
    }

    /// Called by the core for each page of a list.
    extern "C" fn set_page(mr: *mut ffi::ib_mr, addr: u64) -> c_int {
        from_result(|| {
            // SAFETY: It is the region that `map_mr_sg` has passed on.
            unsafe { Self::mr(mr) }.add_page(addr)?;
            Ok(0)
        })
    }

    /// Returns the provider's data of a memory region.
    ///
    /// # Safety
    ///
    /// `mr` must be one of a device that is registered with the provider `P`, and not be deregistered for
    /// `'o`.
    pub(super) unsafe fn mr<'o, 'a>(mr: *mut ffi::ib_mr) -> &'o P::Mr<'a>
    where
        'a: 'o,
    {
        // SAFETY: The caller guarantees that `register` has initialized the data.
        unsafe { Object::<'a, P>::data(mr) }
    }

    /// Registers memory of a program.
    ///
    /// # Safety
    ///
    /// `pd` must be a protection domain of a device that is registered with the provider `P`.
    unsafe fn register_user(
        pd: *mut ffi::ib_pd,
        attr: &MrInitAttr<'_>,
        udata: &Udata<'_>,
    ) -> *mut ffi::ib_mr {
        // SAFETY: The caller guarantees that the device is registered, and the domain created.
        unsafe {
            let device = Self::device((*pd).device);
            let domain = Self::pd(pd);
            Self::register(attr.length, || {
                P::Mr::register_user(device, domain, attr, udata)
            })
        }
    }

    /// Makes a region for a client in the kernel.
    ///
    /// # Safety
    ///
    /// The region must be one of a device that is registered with the provider `P`.
    unsafe fn register_kernel<'a, I>(init: impl FnOnce(KernelClient) -> I) -> *mut ffi::ib_mr
    where
        I: PinInit<P::Mr<'a>, Error>,
    {
        match KernelClient::ANY {
            // SAFETY: The caller guarantees it.
            Some(client) => unsafe { Self::register(0, || init(client)) },
            None => Error::to_ptr(EOPNOTSUPP),
        }
    }

    /// Makes the object of a memory region, which the core expects the driver to allocate.
    ///
    /// `init` is called once there is memory for it: what it has registered could not be taken back.
    ///
    /// # Safety
    ///
    /// The region must be one of a device that is registered with the provider `P`.
    unsafe fn register<'a, I>(length: u64, init: impl FnOnce() -> I) -> *mut ffi::ib_mr
    where
        I: PinInit<P::Mr<'a>, Error>,
    {
        let make = || {
            let object = KBox::<Object<'_, P>>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
            let object = KBox::into_raw(object).cast::<ffi::ib_mr>();

            // SAFETY: The object was just allocated, of the size that it takes and zeroed; a box's
            // content does not move.
            unsafe {
                Object::<'_, P>::init(object, init()).inspect_err(|_| Self::free(object))?;

                let region = Object::<'_, P>::data(object);
                let keys = region.keys();
                (*object).lkey = keys.lkey;
                (*object).rkey = keys.rkey;
                (*object).length = length;
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
        // SAFETY: By the core's promise the object was made by `register`, and is not used after this call.
        unsafe {
            Object::<'_, P>::data(mr).deregister(Self::device((*mr).device));
            Object::<'_, P>::drop_data(mr);
            Self::free(mr);
        }
        0
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
