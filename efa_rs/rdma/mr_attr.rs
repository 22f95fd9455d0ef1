// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes of memory regions: memory, access and keys.

use core::marker::PhantomData;

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    revocable::{
        Hold,
        Revocable, //
    },
    umem::Umem, //
};
use crate::ffi;

/// Allowed uses of a memory region, besides sending from it.
#[derive(Clone, Copy)]
pub(crate) struct Access(u32);

impl Access {
    /// Receiving into the region, and RDMA reads from a peer into it.
    pub(crate) const LOCAL_WRITE: u32 = ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
    /// RDMA writes of a peer to the region.
    pub(crate) const REMOTE_WRITE: u32 = ffi::ib_access_flags_IB_ACCESS_REMOTE_WRITE;
    /// RDMA reads of a peer from the region.
    pub(crate) const REMOTE_READ: u32 = ffi::ib_access_flags_IB_ACCESS_REMOTE_READ;
    /// Writes to the region in any order.
    pub(crate) const RELAXED_ORDERING: u32 = ffi::ib_access_flags_IB_ACCESS_RELAXED_ORDERING;

    pub(super) fn from_raw(access: c_int) -> Self {
        // CAST: A set of bits.
        Self(access as u32)
    }

    /// Returns all flags that the caller has specified.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// Returns the flags that a driver may not ignore.
    pub(crate) fn required(self) -> u32 {
        self.0 & !ffi::ib_access_flags_IB_ACCESS_OPTIONAL
    }
}

/// Memory of a new region.
pub(super) enum Memory {
    /// Memory of the current process, from this address on.
    Process { start: u64 },
    /// Memory of a DMA buffer, from this offset on.
    DmaBuf { fd: c_int, offset: u64 },
}

/// Pinned memory of a new region. `H` is the device's registration of revocable memory.
pub(crate) enum PinnedMemory<'a, H: Hold> {
    /// Memory of a process.
    Process(Umem<'a>),
    /// Memory of a DMA buffer.
    DmaBuf(Revocable<'a, H>),
}

/// Attributes of a new memory region of a process.
///
/// # Invariants
///
/// `device` is valid, and of a registration whose data is valid for `'a`.
pub(crate) struct MrInitAttr<'a> {
    /// Length in bytes.
    pub(crate) length: u64,
    /// Address by which work requests refer to the first byte.
    pub(crate) iova: u64,
    /// Allowed uses.
    pub(crate) access: Access,
    /// Whether there is a DMA handle, which has hints on the placement of data.
    pub(crate) has_dmah: bool,
    pub(super) memory: Memory,
    pub(super) device: *mut ffi::ib_device,
    pub(super) registration: PhantomData<&'a ()>,
}

impl<'a> MrInitAttr<'a> {
    /// Pins the memory. `hold` makes the [`Hold`] that is called when an exporter revokes memory of a DMA buffer.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of pinning memory.
    pub(crate) fn pin<H: Hold + 'a>(
        &self,
        hold: impl FnOnce() -> H,
    ) -> Result<PinnedMemory<'a, H>> {
        // CAST: A set of bits.
        let access = self.access.bits() as c_int;
        let (device, length) = (self.device, self.length);

        match self.memory {
            Memory::Process { start } => {
                // SAFETY: By the type invariant, the device is valid, and the registration for `'a`.
                let umem = unsafe { Umem::get_va(device, start, length, access) }?;
                Ok(PinnedMemory::Process(umem))
            }
            Memory::DmaBuf { fd, offset } => {
                // SAFETY: By the type invariant, the device is valid, and the registration for `'a`.
                let memory = unsafe { Revocable::pin(device, fd, offset, length, access, hold()) }?;
                Ok(PinnedMemory::DmaBuf(memory))
            }
        }
    }
}

/// The keys by which work requests refer to a memory region.
///
/// # Examples
///
/// ```
/// use kernel::rdma::MrKeys;
///
/// let keys = MrKeys { lkey: 7, rkey: 7 };
/// assert_eq!(keys.lkey, keys.rkey);
/// assert_eq!(MrKeys::default().lkey, 0);
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct MrKeys {
    /// Key for local work requests.
    pub(crate) lkey: u32,
    /// Key for peers.
    pub(crate) rkey: u32,
}
