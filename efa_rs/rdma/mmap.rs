// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that userspace maps by a key that a verb returned.

use core::ptr::NonNull;

use kernel::{
    bindings,
    error::{
        from_result,
        to_result, //
    },
    ffi::c_int,
    page::PAGE_SHIFT,
    prelude::*,
    sync::Arc, //
};

use super::{
    device::provider,
    ops::Ops,
    provider::Provider, //
};
use crate::{
    ffi,
    sys::dma::UserBuffer, //
};

/// What userspace gets to see.
pub(crate) enum Mapping {
    /// Device memory at a physical address, not cached.
    Uncached(u64),
    /// Device memory at a physical address, with writes combined.
    WriteCombining(u64),
    /// Host memory that the device uses as well.
    Buffer(Arc<UserBuffer>),
}

/// The core's entry and what is behind it.
#[repr(C)]
struct Entry {
    core: ffi::rdma_user_mmap_entry,
    mapping: Mapping,
}

/// A key by which userspace can map something; taken back when dropped.
///
/// What is mapped already stays so, and alive, until it is unmapped.
///
/// # Invariants
///
/// `entry` was inserted into the context of the process that the key is for.
pub(crate) struct MmapEntry {
    entry: NonNull<Entry>,
}

// SAFETY: The core guards its entries with locks and reference counts of its own.
unsafe impl Send for MmapEntry {}

// SAFETY: As above; a shared reference only gives access to the key.
unsafe impl Sync for MmapEntry {}

impl MmapEntry {
    /// Lets userspace map `length` bytes.
    ///
    /// # Safety
    ///
    /// `ucontext` must be a valid context that outlives the entry.
    pub(super) unsafe fn insert(
        ucontext: *mut ffi::ib_ucontext,
        mapping: Mapping,
        length: usize,
    ) -> Result<Self> {
        let entry = KBox::new(
            Entry {
                // SAFETY: The core initializes its part, and expects zeroes until then.
                core: unsafe { core::mem::zeroed() },
                mapping,
            },
            GFP_KERNEL,
        )?;
        let entry = KBox::into_raw(entry);

        // SAFETY: The context is valid, and `entry` is freed by `mmap_free` only.
        let inserted = unsafe { ffi::rdma_user_mmap_entry_insert(ucontext, entry.cast(), length) };
        if inserted != 0 {
            // SAFETY: The core has not taken the entry.
            drop(unsafe { KBox::from_raw(entry) });
            return Err(ENOMEM);
        }

        // INVARIANT: The entry has just been inserted.
        Ok(Self {
            entry: NonNull::new(entry).ok_or(ENOMEM)?,
        })
    }

    /// Returns the key: the offset to pass to `mmap`.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: By the type invariant the entry is valid.
        unsafe { ffi::efa_mmap_offset(self.entry.as_ptr().cast()) }
    }
}

impl Drop for MmapEntry {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the entry was inserted; it is removed once. The core calls
        // `mmap_free` when the last mapping is gone.
        unsafe { ffi::rdma_user_mmap_entry_remove(self.entry.as_ptr().cast()) }
    }
}

impl<T: Provider> Ops<T> {
    pub(super) extern "C" fn mmap(
        ucontext: *mut ffi::ib_ucontext,
        vma: *mut bindings::vm_area_struct,
    ) -> c_int {
        // SAFETY: The core passes a context of a registered device, and a mapping that is being
        // made.
        from_result(|| unsafe {
            map(ucontext, vma)
                .inspect_err(|_| provider::<T>((*ucontext).device).mmap_failed())
                .map(|()| 0)
        })
    }

    pub(super) extern "C" fn mmap_free(entry: *mut ffi::rdma_user_mmap_entry) {
        // SAFETY: All entries of this driver were made by `MmapEntry::insert`. This is the last use.
        drop(unsafe { KBox::from_raw(entry.cast::<Entry>()) });
    }
}

/// Maps what the key in `vma` stands for.
///
/// # Safety
///
/// `ucontext` and `vma` must be valid, and of the same process.
unsafe fn map(ucontext: *mut ffi::ib_ucontext, vma: *mut bindings::vm_area_struct) -> Result {
    // SAFETY: The caller guarantees that both are valid. The core checks length and flags.
    let core = unsafe { ffi::rdma_user_mmap_entry_get(ucontext, vma) };
    if core.is_null() {
        return Err(EINVAL);
    }

    // SAFETY: All entries of this driver were made by `MmapEntry::insert`, and the reference that
    // was just taken keeps this one alive. The physical addresses are those of the device's BARs,
    // or of a buffer that the entry, and with it the mapping, keeps alive.
    let result = to_result(unsafe {
        match &(*core.cast::<Entry>()).mapping {
            Mapping::Uncached(address) => {
                ffi::efa_mmap_noncached(ucontext, vma, pfn(*address), core)
            }
            Mapping::WriteCombining(address) => {
                ffi::efa_mmap_writecombine(ucontext, vma, pfn(*address), core)
            }
            Mapping::Buffer(buffer) => ffi::efa_mmap_cached(ucontext, vma, buffer.pfn(), core),
        }
    });

    // SAFETY: Gives back the reference taken above.
    unsafe { ffi::rdma_user_mmap_entry_put(core) };
    result
}

/// Returns the number of the page at a physical address.
fn pfn(address: u64) -> usize {
    // CAST: `usize` has 64 bits on every architecture that has EFA.
    (address >> PAGE_SHIFT) as usize
}
