// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Callbacks of memory regions that only clients in the kernel use.

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
    mr::MemoryRegion,
    mr_attr::Access,
    ops::Ops,
    provider::Provider, //
};
use crate::ffi;

/// Adds the callbacks of memory regions of clients in the kernel to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    if P::Mr::HAS_ALLOC {
        ops.alloc_mr = Some(Ops::<P>::alloc_mr);
        ops.map_mr_sg = Some(Ops::<P>::map_mr_sg);
    }
    if P::Mr::HAS_REGISTER_DMA {
        ops.get_dma_mr = Some(Ops::<P>::get_dma_mr);
    }
    if P::Mr::HAS_ALLOC || P::Mr::HAS_REGISTER_DMA {
        ops.dereg_mr = Some(Ops::<P>::dereg_mr);
        ops.fill_res_mr_entry = Some(Ops::<P>::fill_res_mr_entry);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Registers all memory that the device can address.
    unsafe extern "C" fn get_dma_mr(pd: *mut ffi::ib_pd, access: c_int) -> *mut ffi::ib_mr {
        // SAFETY: By the contract, `alloc_pd` has created the domain.
        let (pd, device) = unsafe { Self::object(pd) };
        Self::register(0, || {
            P::Mr::register_dma(device, pd, Access::from_raw(access))
        })
    }

    /// Allocates a region that work requests register.
    unsafe extern "C" fn alloc_mr(
        pd: *mut ffi::ib_pd,
        mr_type: ffi::ib_mr_type,
        max_num_sg: u32,
    ) -> *mut ffi::ib_mr {
        if mr_type != ffi::ib_mr_type_IB_MR_TYPE_MEM_REG {
            return Error::to_ptr(EINVAL);
        }
        // SAFETY: By the contract, `alloc_pd` has created the domain.
        let (pd, device) = unsafe { Self::object(pd) };
        Self::register(0, || P::Mr::alloc(device, pd, max_num_sg))
    }

    /// Sets the pages for the next registration by a work request. Returns the number of list entries that
    /// fit.
    ///
    /// `sg_offset` may be null.
    unsafe extern "C" fn map_mr_sg(
        mr: *mut ffi::ib_mr,
        sg: *mut bindings::scatterlist,
        sg_nents: c_int,
        sg_offset: *mut c_uint,
    ) -> c_int {
        // SAFETY: By the contract, `register` has created the region.
        let (region, _) = unsafe { Self::object(mr) };
        // SAFETY: By the contract, the region is valid. The core has just set its page size.
        region.clear_pages(unsafe { (*mr).page_size });
        // SAFETY: By the contract, region and list are valid. The core calls `set_page` with the region.
        unsafe { ffi::ib_sg_to_pages(mr, sg, sg_nents, sg_offset, Some(Self::set_page)) }
    }

    /// Adds a page of the list of [`Self::map_mr_sg`].
    ///
    /// # Safety
    ///
    /// `mr` must be a region that `register` has created.
    unsafe extern "C" fn set_page(mr: *mut ffi::ib_mr, addr: u64) -> c_int {
        // SAFETY: The caller guarantees that `register` has created the region.
        let (region, _) = unsafe { Self::object(mr) };
        from_result(|| region.add_page(addr).map(|()| 0))
    }
}
