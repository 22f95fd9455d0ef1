// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use core::marker::PhantomData;

use kernel::{
    bindings,
    ffi::c_int,
    prelude::*, //
};

use super::{
    details::Details,
    device::Device,
    mr_attr::{
        Access,
        Memory,
        MrInitAttr,
        MrKeys, //
    },
    object::{
        core_object,
        ObjectOf, //
    },
    ops::Ops,
    provider::Provider,
    udata::Udata, //
};
use crate::ffi;

/// A new memory region, with what the core and the driver's own methods read of it.
pub(crate) struct NewMr<M, S> {
    /// The region.
    pub(crate) region: M,
    /// Its keys.
    pub(crate) keys: MrKeys,
    /// Its data for the driver's own methods.
    pub(crate) shared: S,
}

/// A memory region in a protection domain of the provider `P`.
#[vtable]
pub(crate) trait MemoryRegion<'a, P: Provider>: Sized + Send + Sync {
    /// Data that the driver's own methods, written in C, read right behind the core's object.
    type Shared: Copy + Send + Sync;

    /// Registers memory of a process or of a DMA buffer.
    fn register_user(
        _device: &Device<P::Data<'a>>,
        _pd: &P::Pd<'a>,
        _attr: &MrInitAttr<'a>,
        _udata: &Udata<'_>,
    ) -> Result<NewMr<Self, Self::Shared>> {
        Err(EOPNOTSUPP)
    }

    /// Registers all memory that the device can address, by its DMA addresses.
    #[cfg(kverbs)]
    fn register_dma(
        _device: &Device<P::Data<'a>>,
        _pd: &P::Pd<'a>,
        _access: Access,
    ) -> Result<NewMr<Self, Self::Shared>> {
        Err(EOPNOTSUPP)
    }

    /// Allocates a region of up to `_max_pages` pages, which work requests of the kernel register.
    #[cfg(kverbs)]
    fn alloc(
        _device: &Device<P::Data<'a>>,
        _pd: &P::Pd<'a>,
        _max_pages: u32,
    ) -> Result<NewMr<Self, Self::Shared>> {
        Err(EOPNOTSUPP)
    }

    /// Removes the pages for the next registration by a work request, whose pages have this size in
    /// bytes. Called in any context.
    #[cfg(kverbs)]
    fn clear_pages(&self, _page_size: u32) {}

    /// Adds a page for the next registration by a work request. Called in any context.
    #[cfg(kverbs)]
    fn add_page(&self, _addr: u64) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Adds the values that `rdma resource show` prints.
    ///
    /// # Errors
    ///
    /// Those of [`Details::put`].
    fn details(&self, _details: &mut Details) -> Result {
        Ok(())
    }

    /// Deregisters the memory.
    fn deregister(&self, _device: &Device<P::Data<'a>>) {}
}

/// What a memory region of the provider `P` shares with the driver's own methods.
pub(super) type SharedOf<'a, P> = <<P as Provider>::Mr<'a> as MemoryRegion<'a, P>>::Shared;

core_object!(ib_mr, MemoryRegion, P::Mr<'a>, SharedOf<'a, P>; type Shared = (););

/// Adds the callbacks of memory regions to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    if P::Mr::HAS_REGISTER_USER {
        ops.reg_user_mr = Some(Ops::<P>::reg_user_mr);
        ops.reg_user_mr_dmabuf = Some(Ops::<P>::reg_user_mr_dmabuf);
        ops.dereg_mr = Some(Ops::<P>::dereg_mr);
        ops.fill_res_mr_entry = Some(Ops::<P>::fill_res_mr_entry);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Registers memory of a process.
    ///
    /// `dmah` may be null.
    unsafe extern "C" fn reg_user_mr(
        pd: *mut ffi::ib_pd,
        start: u64,
        length: u64,
        iova: u64,
        access: c_int,
        dmah: *mut ffi::ib_dmah,
        udata: *mut ffi::ib_udata,
    ) -> *mut ffi::ib_mr {
        // SAFETY: By the contract, the input is valid during the call.
        let udata = unsafe { Udata::from_raw(udata) };
        let memory = Memory::Process { start };
        // SAFETY: By the contract, `alloc_pd` has created the domain.
        unsafe { Self::register_user(pd, memory, length, iova, access, dmah, &udata) }
    }

    /// Registers memory of a DMA buffer.
    ///
    /// `dmah` may be null.
    unsafe extern "C" fn reg_user_mr_dmabuf(
        pd: *mut ffi::ib_pd,
        offset: u64,
        length: u64,
        iova: u64,
        fd: c_int,
        access: c_int,
        dmah: *mut ffi::ib_dmah,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> *mut ffi::ib_mr {
        // SAFETY: By the contract, the attributes are valid during the call.
        let udata = unsafe { Udata::of(attrs) };
        let memory = Memory::DmaBuf { fd, offset };
        // SAFETY: By the contract, `alloc_pd` has created the domain.
        unsafe { Self::register_user(pd, memory, length, iova, access, dmah, &udata) }
    }

    /// Registers memory of a process or of a DMA buffer.
    ///
    /// # Safety
    ///
    /// `pd` must be a domain that was created on a device of the provider `P`.
    unsafe fn register_user(
        pd: *mut ffi::ib_pd,
        memory: Memory,
        length: u64,
        iova: u64,
        access: c_int,
        dmah: *mut ffi::ib_dmah,
        udata: &Udata<'_>,
    ) -> *mut ffi::ib_mr {
        // SAFETY: The caller guarantees that `alloc_pd` has created the domain.
        let (pd, device) = unsafe { Self::object(pd) };
        // INVARIANT: The device is that of the domain.
        let attr = MrInitAttr {
            length,
            iova,
            access: Access::from_raw(access),
            has_dmah: !dmah.is_null(),
            memory,
            device: device.as_raw(),
            registration: PhantomData,
        };
        Self::register(length, || P::Mr::register_user(device, pd, &attr, udata))
    }

    /// Allocates the object of a memory region, and creates it. Returns an error pointer if this fails.
    ///
    /// `init` is called after the allocation, because a registration can't be undone here.
    pub(super) fn register<'a>(
        length: u64,
        init: impl FnOnce() -> Result<NewMr<P::Mr<'a>, SharedOf<'a, P>>>,
    ) -> *mut ffi::ib_mr {
        let make = || {
            let object = KBox::<ObjectOf<'a, P, ffi::ib_mr>>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
            let mr: *mut ffi::ib_mr = KBox::into_raw(object).cast();

            // SAFETY: The object was just allocated, and has no data yet.
            let new = init().inspect_err(|_| unsafe { Self::free(mr) })?;
            // SAFETY: The object was just allocated with its size, and does not move.
            unsafe { ObjectOf::<P, ffi::ib_mr>::init(mr, Ok(new.region)) }?;
            // SAFETY: The region has just been initialized.
            unsafe { ObjectOf::<P, ffi::ib_mr>::set_extra(mr, new.shared) };
            // SAFETY: All zeroes are a valid `ib_mr`. Nothing else uses it yet.
            let core = unsafe { &mut *mr };
            core.lkey = new.keys.lkey;
            core.rkey = new.keys.rkey;
            core.length = length;
            Ok(mr)
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
        drop(unsafe { KBox::from_raw(mr.cast::<ObjectOf<'_, P, ffi::ib_mr>>()) });
    }

    /// Deregisters memory.
    pub(super) unsafe extern "C" fn dereg_mr(
        mr: *mut ffi::ib_mr,
        _udata: *mut ffi::ib_udata,
    ) -> c_int {
        // SAFETY: By the contract, `register` has created the region.
        let (region, device) = unsafe { Self::object(mr) };
        region.deregister(device);
        // SAFETY: By the contract, the region is not used any more.
        unsafe { Self::destroy(mr) };
        // SAFETY: `register` has allocated the region. Its data was just dropped.
        unsafe { Self::free(mr) };
        0
    }

    /// Writes the details of a memory region into a message.
    pub(super) unsafe extern "C" fn fill_res_mr_entry(
        msg: *mut bindings::sk_buff,
        mr: *mut ffi::ib_mr,
    ) -> c_int {
        // SAFETY: By the contract, the region was created. It is not destroyed during the call, as the
        // core removes it from its list first.
        let (region, _) = unsafe { Self::object(mr) };
        // SAFETY: By the contract, the message is being built.
        unsafe { Details::fill(msg, |details| region.details(details)) }
    }
}
