// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use core::marker::PhantomData;

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    device::Device,
    kernel_client::KernelClient,
    revocable::{
        Hold,
        Revocable, //
    },
    udata::Udata,
    umem::Umem, //
};
use crate::{
    ffi,
    sys::{
        attach::Attachment, //
    },
};

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

    /// Takes what the core passes.
    pub(super) fn from_raw(access: c_int) -> Self {
        // CAST: A set of bits.
        Self(access as u32)
    }

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
pub(super) enum Memory {
    /// Of the current process, from this address on.
    Process { start: u64 },
    /// Of a DMA buffer, from this offset on.
    DmaBuf { fd: c_int, offset: u64 },
}

/// What a new memory region shall be.
pub(crate) struct MrInitAttr<'a> {
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
    registration: PhantomData<&'a ()>,
}

impl<'a> MrInitAttr<'a> {
    /// Makes a request of what the core passes.
    ///
    /// # Safety
    ///
    /// `device` must be valid for as long as the request is used, and of a registration whose data is
    /// valid for `'a`.
    pub(super) unsafe fn new(
        device: *mut ffi::ib_device,
        memory: Memory,
        length: u64,
        iova: u64,
        access: c_int,
        dmah: *mut ffi::ib_dmah,
    ) -> Self {
        Self {
            length,
            iova,
            access: Access::from_raw(access),
            has_dmah: !dmah.is_null(),
            memory,
            device,
            registration: PhantomData,
        }
    }

    /// Pins the memory. `hold`, what the device has of it, is told if it is taken back.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if it was taken back meanwhile.
    /// - Those of pinning memory.
    pub(crate) fn pin<H: Hold + 'a>(
        &self,
        host: Attachment<'a, 'a>,
        hold: H,
    ) -> Result<Revocable<'a, H>> {
        // CAST: A set of bits.
        let access = self.access.bits() as c_int;

        match self.memory {
            Memory::Process { start } => {
                // SAFETY: By the requirement of `new`, the device is valid, and the registration for `'a`.
                let umem = unsafe { Umem::get_va(self.device, start, self.length, access) }?;
                Revocable::of_process(umem, hold)
            }
            Memory::DmaBuf { fd, offset } => {
                // SAFETY: By the requirement of `new`, device and registration are valid; the memory is what
                // `get_dmabuf` has returned.
                unsafe {
                    let umem = Umem::get_dmabuf(self.device, fd, offset, self.length, access)?;
                    Revocable::of_dmabuf(umem, hold, host)
                }
            }
        }
    }
}

/// The keys by which work requests refer to a memory region.
#[derive(Clone, Copy, Default)]
pub(crate) struct MrKeys {
    /// Key for local work requests.
    pub(crate) lkey: u32,
    /// Key for peers.
    pub(crate) rkey: u32,
}

/// A memory region in a protection domain `Pd` of a device with data `D`.
#[vtable]
pub(crate) trait MemoryRegion<'a, D, Pd>: Sized + Send + Sync {
    /// What `rdma resource show` tells of a region, by [`Self::DETAILS`].
    type Details: AsRef<[u64]> + Copy + Default + Send + Sync;

    /// What the driver's own methods, which are written in C, find right behind the core's object.
    type Shared: Copy + Default + Send + Sync;

    /// Names of the details.
    const DETAILS: &'static [&'static CStr] = &[];

    /// Registers memory of a process or of a DMA buffer.
    fn register_user(
        _device: &Device<D>,
        _pd: &Pd,
        _attr: &MrInitAttr<'a>,
        _udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Makes a region of all memory that the device can address, by the addresses that it has for it.
    fn register_dma(
        _device: &Device<D>,
        _pd: &Pd,
        _access: Access,
        _client: KernelClient,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Makes a region of at most so many pages, of which it gets some by work requests of the kernel.
    fn alloc(
        _device: &Device<D>,
        _pd: &Pd,
        _max_pages: u32,
        _client: KernelClient,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Forgets the pages that the next registration by a work request would have. Called in any context.
    fn clear_pages(&self) {}

    /// Adds a page for the next registration by a work request. Called in any context.
    fn add_page(&self, _addr: u64) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Returns the keys.
    fn keys(&self) -> MrKeys {
        MrKeys::default()
    }

    /// Returns the details.
    fn details(&self) -> Self::Details {
        Self::Details::default()
    }

    /// Returns what the driver's own methods find.
    fn shared(&self) -> Self::Shared {
        Self::Shared::default()
    }

    /// Deregisters the memory.
    fn deregister(&self, _device: &Device<D>) {}
}
