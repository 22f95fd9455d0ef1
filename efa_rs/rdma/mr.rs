// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    details::{
        Described,
        Details,
        MR_DETAILS, //
    },
    device::{
        dma_device,
        provider, //
    },
    object::Object,
    ops::{
        Ops,
        Pd, //
    },
    provider::Provider,
    udata::Udata,
    umem::Umem, //
};
use crate::ffi;

/// A memory region with its provider's data.
type Mr<T> = Object<Described<ffi::efa_mr_object, MR_DETAILS>, <T as Provider>::Mr>;

/// What a memory region may be used for, besides sending from it.
#[derive(Clone, Copy)]
pub(crate) struct Access(u32);

impl Access {
    /// Receiving into it, and reading into it from a peer.
    pub(crate) const LOCAL_WRITE: u32 = ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
    /// Writing to it by a peer.
    pub(crate) const REMOTE_WRITE: u32 = ffi::ib_access_flags_IB_ACCESS_REMOTE_WRITE;
    /// Reading from it by a peer.
    pub(crate) const REMOTE_READ: u32 = ffi::ib_access_flags_IB_ACCESS_REMOTE_READ;

    /// Returns the flags, all that the caller has given.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// Returns the flags that a driver may not ignore.
    pub(crate) fn required(self) -> u32 {
        self.0 & !ffi::ib_access_flags_IB_ACCESS_OPTIONAL
    }
}

/// Which memory a region consists of.
enum Memory {
    /// Of the current process, from this address on.
    Process { start: u64 },
    /// Of a DMA buffer, from this offset on.
    DmaBuf { fd: c_int, offset: u64 },
}

/// What a new memory region shall be.
pub(crate) struct MrRequest {
    /// Length in bytes.
    pub(crate) length: u64,
    /// Address by which work requests refer to the first byte.
    pub(crate) iova: u64,
    /// What it may be used for.
    pub(crate) access: Access,
    /// Whether hints on where to keep its data are given.
    pub(crate) has_dmah: bool,
    memory: Memory,
    device: *mut ffi::ib_device,
}

impl MrRequest {
    /// Makes a request of what the core passes.
    ///
    /// # Safety
    ///
    /// `pd` must be valid, and its device registered, for as long as the request is used.
    unsafe fn new(
        pd: *mut ffi::ib_pd,
        memory: Memory,
        length: u64,
        iova: u64,
        access: c_int,
        dmah: *mut ffi::ib_dmah,
    ) -> Self {
        Self {
            length,
            iova,
            // CAST: A set of bits.
            access: Access(access as u32),
            has_dmah: !dmah.is_null(),
            memory,
            // SAFETY: The caller guarantees it.
            device: unsafe { (*pd).device },
        }
    }

    /// Returns the device that does the DMA.
    pub(crate) fn dma_device(&self) -> &Device<Bound> {
        // SAFETY: The device is registered while the verb runs, for which this value is made.
        unsafe { dma_device(self.device) }
    }

    /// Pins the memory.
    ///
    /// # Errors
    ///
    /// Those of pinning memory.
    pub(crate) fn pin(&self) -> Result<Umem> {
        // CAST: A set of bits.
        let access = self.access.bits() as c_int;

        // SAFETY: The device is valid while the verb runs, for which this value is made.
        unsafe {
            match self.memory {
                Memory::Process { start } => Umem::get_va(self.device, start, self.length, access),
                Memory::DmaBuf { fd, offset } => {
                    Umem::get_dmabuf(self.device, fd, offset, self.length, access)
                }
            }
        }
    }
}

/// A memory region as its provider has made it.
pub(crate) struct NewMr<T> {
    /// The provider's data.
    pub(crate) data: T,
    /// Key by which local work requests refer to it.
    pub(crate) lkey: u32,
    /// Key by which peers refer to it.
    pub(crate) rkey: u32,
    /// What to tell of it.
    pub(crate) details: Details<MR_DETAILS>,
    /// The interconnects that it is reached by, for the driver's own method.
    pub(crate) interconnects: Interconnects,
}

/// Interconnects that a memory region is reached by: which ids are valid, and the ids.
#[derive(Default)]
pub(crate) struct Interconnects {
    /// Which of the others are valid.
    pub(crate) validity: u16,
    /// For receiving into it.
    pub(crate) recv: u16,
    /// For answering reads of it.
    pub(crate) rdma_read: u16,
    /// For writes to it.
    pub(crate) rdma_recv: u16,
}

impl<T: Provider> Ops<T> {
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
        // SAFETY: See the documentation of `ops`.
        unsafe {
            let request = MrRequest::new(pd, memory, length, iova, access, dmah);
            register::<T>(pd, &request, &Udata::from_raw(udata))
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
        // SAFETY: See the documentation of `ops`.
        unsafe {
            let request = MrRequest::new(pd, memory, length, iova, access, dmah);
            let udata = ffi::efa_attrs_to_udata(attrs);
            register::<T>(pd, &request, &Udata::from_raw(udata))
        }
    }

    pub(super) extern "C" fn dereg_mr(mr: *mut ffi::ib_mr, _udata: *mut ffi::ib_udata) -> c_int {
        from_result(|| {
            let object = mr.cast();

            // SAFETY: See the documentation of `ops`. The object was made by `register`; if its
            // destruction succeeds, the core does not use it after this call.
            unsafe {
                provider::<T>((*mr).device).dereg_mr(Mr::<T>::data(object), (*mr).lkey)?;
                drop(Mr::<T>::take(object));
                drop(KBox::from_raw(mr.cast::<Mr<T>>()));
            }
            Ok(0)
        })
    }
}

/// Makes the object of a memory region, which the core expects the driver to allocate.
///
/// # Safety
///
/// `pd` must be a protection domain of a device that is registered with the provider `T`.
unsafe fn register<T: Provider>(
    pd: *mut ffi::ib_pd,
    request: &MrRequest,
    udata: &Udata<'_>,
) -> *mut ffi::ib_mr {
    let make = || {
        // SAFETY: The caller guarantees it.
        let (provider, pd) = unsafe { (provider::<T>((*pd).device), Pd::<T>::data(pd)) };
        // First, as what the device has registered can't always be undone.
        let object = KBox::<Mr<T>>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        let new = provider.reg_user_mr(pd, request, udata)?;
        let object = KBox::into_raw(object).cast::<ffi::efa_mr_object>();

        // SAFETY: The object was just allocated, of the size that it takes and zeroed.
        unsafe {
            (*object).core.lkey = new.lkey;
            (*object).core.rkey = new.rkey;
            (*object).core.length = request.length;
            (*object).validity = new.interconnects.validity;
            (*object).recv_ic_id = new.interconnects.recv;
            (*object).rdma_read_ic_id = new.interconnects.rdma_read;
            (*object).rdma_recv_ic_id = new.interconnects.rdma_recv;
            Described::describe(object, new.details);
            Mr::<T>::init(object.cast(), new.data);
        }
        Ok(object.cast())
    };

    match make() {
        Ok(mr) => mr,
        Err(error) => Error::to_ptr(error),
    }
}
