// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions that are registered by work requests.

use core::{
    mem::MaybeUninit,
    ptr::null_mut, //
};

use kernel::{
    bindings,
    ffi::{
        c_int,
        c_uint, //
    },
    new_spinlock_irq,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

use super::{
    buffer::{
        Buffer,
        Slice, //
    },
    device::Owned,
    object::{
        Object,
        Raw, //
    },
    pd::Pd,
    transport::Transport,
};
use crate::{
    ffi,
    rdma::{
        wr_layout::RemoteMemory,
        Access, //
    },
};

/// A memory region of a buffer, which peers may access while it is registered.
#[pin_data]
pub(crate) struct FastRegion<'a> {
    owned: Owned<'a, ffi::ib_mr, Arc<Buffer<'a>>>,
    /// Guards the fields of the core's structure for the next registration.
    #[pin]
    mapping: SpinLockIrq<()>,
}

impl<'a> FastRegion<'a> {
    /// Allocates a region for up to the whole of a buffer.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the buffer is larger than the device's limit for regions.
    /// - `EOPNOTSUPP` if the device has no such regions.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the provider.
    pub(crate) fn new(buffer: &Arc<Buffer<'a>>) -> Result<Arc<Self>> {
        let pages = u32::try_from(buffer.size().div_ceil(PAGE_SIZE)).map_err(|_| EINVAL)?;
        let create = |buffer: &Arc<Buffer<'a>>| {
            let (pd, kind) = (buffer.pd().as_raw(), ffi::ib_mr_type_IB_MR_TYPE_MEM_REG);
            // SAFETY: The buffer keeps the domain alive.
            let raw = unsafe { ffi::ib_alloc_mr(pd, kind, pages) };
            Raw::created(raw)
        };
        let device = buffer.pd().device();
        // SAFETY: The region is new, and needs nothing but the buffer.
        let owned = unsafe { Owned::new(device, buffer.clone(), Object::Mr, create) }?;
        Arc::pin_init(
            pin_init!(Self {
                owned,
                mapping <- new_spinlock_irq!((), "rdma_client_region"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the buffer.
    pub(crate) fn buffer(&self) -> &Arc<Buffer<'a>> {
        &self.owned
    }

    /// Returns the protection domain.
    pub(super) fn pd(&self) -> &Arc<Pd<'a>> {
        self.owned.pd()
    }

    /// Passes `post` a registration of part of the buffer under a new key. Returns address and key
    /// for the peer. The part should begin at a page boundary, which is not checked.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is part of another buffer, or is empty, or the provider rejects it.
    /// - Those of `post`.
    pub(super) fn register(
        &self,
        part: Slice<'_, 'a>,
        access: u32,
        transport: &Transport,
        post: impl FnOnce(&mut ffi::ib_reg_wr) -> Result,
    ) -> Result<RemoteMemory> {
        let (address, length) = part.range();
        if !Arc::ptr_eq(part.buffer(), self.buffer()) || length == 0 {
            return Err(EINVAL);
        }

        let mut list = MaybeUninit::<bindings::scatterlist>::zeroed();
        // SAFETY: There is room for a list of one entry.
        unsafe { bindings::sg_init_table(list.as_mut_ptr(), 1) };
        // SAFETY: All zeroes are an entry, and the function has initialized it.
        let entry = unsafe { list.assume_init_mut() };
        entry.dma_address = address;
        entry.length = length;
        #[cfg(CONFIG_NEED_SG_DMA_LENGTH)]
        {
            entry.dma_length = length;
        }

        let mr = self.owned.as_ptr();
        let _guard = self.mapping.lock();
        // SAFETY: The region and the list are valid, and the lock prevents other changes. The page
        // size fits in a `c_uint`.
        let mapped = unsafe { ffi::ib_map_mr_sg(mr, entry, 1, null_mut(), PAGE_SIZE as c_uint) };
        if mapped != 1 {
            return Err(EINVAL);
        }
        // The core uses other fields of the region at the same time, so there is no reference to it.
        // SAFETY: The region is valid, and nothing else writes the field while the lock is held.
        let lkey = transport.next_key(unsafe { (*mr).lkey });
        // SAFETY: The region is valid, and nothing else writes the field while the lock is held.
        let rkey = transport.next_key(unsafe { (*mr).rkey });
        // SAFETY: The region is valid, and nothing else writes the field while the lock is held.
        unsafe { (*mr).lkey = lkey };
        // SAFETY: The region is valid, and nothing else writes the field while the lock is held.
        unsafe { (*mr).rkey = rkey };
        // SAFETY: The region is valid, and nothing else writes the field while the lock is held.
        let addr = unsafe { (*mr).iova };

        let known = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let wr = &mut ffi::ib_reg_wr::default();
        wr.wr.opcode = ffi::ib_wr_opcode_IB_WR_REG_MR;
        wr.mr = mr;
        wr.key = rkey;
        // CAST: The flags fit in a `c_int`.
        wr.access = (access & known) as c_int;
        post(wr)?;
        Ok(RemoteMemory { addr, rkey })
    }

    /// Passes `post` an invalidation of the registration.
    ///
    /// # Errors
    ///
    /// Those of `post`.
    pub(super) fn invalidate(&self, post: impl FnOnce(&mut ffi::ib_send_wr) -> Result) -> Result {
        let wr = &mut ffi::ib_send_wr::default();
        wr.opcode = ffi::ib_wr_opcode_IB_WR_LOCAL_INV;

        let _guard = self.mapping.lock();
        // SAFETY: The region is valid, and its keys do not change while the lock is held.
        let rkey = unsafe { (*self.owned.as_ptr()).rkey };
        // SAFETY: All variants of the union are integers.
        unsafe { (&raw mut wr.ex).cast::<u32>().write(rkey) };
        post(wr)
    }
}
