// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that userspace maps by a key that a verb returned.

use core::{
    mem::transmute,
    ptr::NonNull, //
};

use kernel::{
    bindings,
    error::{
        from_result,
        to_result, //
    },
    ffi::c_int,
    new_mutex,
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::{
    ops::Ops,
    provider::Provider, //
};
use crate::{
    ffi,
    sys::{
        dma::{
            UserBuffer,
            UserMemory, //
        },
        mmio::Pages, //
    },
};

/// Memory that userspace can map.
pub(crate) enum Mapping<'a> {
    /// Device memory, not cached.
    Uncached(Pages<'a>),
    /// Device memory, with writes combined.
    WriteCombining(Pages<'a>),
    /// Host memory that the device uses as well.
    Buffer(Arc<UserBuffer<'a>>),
}

impl Mapping<'_> {
    /// Returns the size in bytes, a multiple of [`PAGE_SIZE`](kernel::page::PAGE_SIZE).
    fn size(&self) -> usize {
        match self {
            Self::Uncached(pages) | Self::WriteCombining(pages) => pages.size(),
            Self::Buffer(buffer) => buffer.size(),
        }
    }
}

/// The core's entry and the memory behind it.
#[repr(C)]
struct Entry {
    core: ffi::rdma_user_mmap_entry,
    /// Valid as long as the registration, which outlives the entry.
    mapping: Mapping<'static>,
}

/// A context's keys, by which its process maps memory.
#[pin_data]
pub(super) struct MmapKeys {
    #[pin]
    context: Mutex<ContextPtr>,
}

/// The context, or `None` once it is destroyed.
struct ContextPtr(Option<NonNull<ffi::ib_ucontext>>);

// SAFETY: The context is used under the lock around this, and by functions that any task may call.
unsafe impl Send for ContextPtr {}

/// The keys of a context that exists. Their reference to it is cleared by the drop of this.
pub(super) struct OpenKeys(pub(super) Arc<MmapKeys>);

impl OpenKeys {
    /// Makes the keys of a context.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    ///
    /// # Safety
    ///
    /// `context` must be valid until this is dropped.
    pub(super) unsafe fn new(context: NonNull<ffi::ib_ucontext>) -> Result<Self> {
        let keys = Arc::pin_init(
            pin_init!(MmapKeys {
                context <- new_mutex!(ContextPtr(Some(context))),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(keys))
    }
}

impl Drop for OpenKeys {
    fn drop(&mut self) {
        self.0.context.lock().0 = None;
    }
}

impl MmapKeys {
    /// Lets userspace map memory.
    ///
    /// # Safety
    ///
    /// `mapping` must be valid as long as the context's device is registered.
    pub(super) unsafe fn insert(keys: &Arc<Self>, mapping: Mapping<'_>) -> Result<MmapEntry> {
        // Userspace can only map the whole memory, whose size is a multiple of the page size.
        let length = mapping.size();
        // SAFETY: Only the lifetime changes. The caller guarantees that the memory outlives the
        // entry, which the core frees before the device is unregistered.
        let mapping = unsafe { transmute::<Mapping<'_>, Mapping<'static>>(mapping) };
        let entry = KBox::new(
            Entry {
                // The core initializes its part, and expects zeroes until then.
                core: Default::default(),
                mapping,
            },
            GFP_KERNEL,
        )?;

        let context = keys.context.lock();
        let raw = context.0.ok_or(EINVAL)?;
        let entry = KBox::into_raw(entry);
        // SAFETY: The lock keeps the context valid. `entry` is freed by `mmap_free` only.
        let inserted =
            unsafe { ffi::rdma_user_mmap_entry_insert(raw.as_ptr(), entry.cast(), length) };
        if inserted != 0 {
            // SAFETY: The core has not taken the entry.
            drop(unsafe { KBox::from_raw(entry) });
            return Err(ENOMEM);
        }
        drop(context);

        // INVARIANT: The entry has just been inserted.
        Ok(MmapEntry {
            entry: NonNull::new(entry).ok_or(ENOMEM)?,
            keys: keys.clone(),
        })
    }
}

/// A key by which userspace can map memory; removed when dropped.
///
/// Existing mappings remain valid until they are unmapped or the context ends.
///
/// # Invariants
///
/// `entry` was inserted into the context of `keys`, and is removed by the drop of this only.
pub(crate) struct MmapEntry {
    entry: NonNull<Entry>,
    keys: Arc<MmapKeys>,
}

// SAFETY: The core guards its entries with locks and reference counts of its own.
unsafe impl Send for MmapEntry {}

// SAFETY: A shared reference only gives access to the key, which does not change.
unsafe impl Sync for MmapEntry {}

impl MmapEntry {
    /// Returns the key: the offset to pass to `mmap`.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: By the type invariant the entry was not removed.
        unsafe { ffi::efa_mmap_offset(self.entry.as_ptr().cast()) }
    }
}

impl Drop for MmapEntry {
    fn drop(&mut self) {
        // An entry that has outlived its context is leaked: the core would access the context to
        // remove it. The core has logged a warning when it freed the context.
        if self.keys.context.lock().0.is_some() {
            // SAFETY: By the type invariant the entry is in the context, which is valid while the
            // lock is held. The core calls `mmap_free` after the last mapping.
            unsafe { ffi::rdma_user_mmap_entry_remove(self.entry.as_ptr().cast()) }
        }
    }
}

impl<P: Provider> Ops<P> {
    /// Maps memory into a process, by the key in `vma`.
    ///
    /// # Safety
    ///
    /// The contract of [`Ops`] holds. `vma` is being created by the process of the context.
    pub(super) unsafe extern "C" fn mmap(
        context: *mut ffi::ib_ucontext,
        vma: *mut bindings::vm_area_struct,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, both are valid and of one process. All entries of the
            // context were made by `MmapKeys::insert`, as only this file inserts entries.
            if let Err(error) = unsafe { map(context, vma) } {
                // SAFETY: By the contract, the context is valid.
                P::mmap_failed(unsafe { Self::device_of(context) });
                return Err(error);
            }
            Ok(0)
        })
    }

    /// Frees an entry whose key was removed and that is no longer mapped.
    ///
    /// # Safety
    ///
    /// The contract of [`Ops`] holds.
    pub(super) unsafe extern "C" fn mmap_free(entry: *mut ffi::rdma_user_mmap_entry) {
        // SAFETY: `MmapKeys::insert` has made the entry as a box. By the contract, this is its last use.
        drop(unsafe { KBox::from_raw(entry.cast::<Entry>()) });
    }
}

/// Maps the memory to which the key in `vma` refers.
///
/// # Errors
///
/// - [`EINVAL`] if there is no such key.
/// - Those of mapping pages.
///
/// # Safety
///
/// `context` must be a context all of whose entries were made by [`MmapKeys::insert`]. `vma` must
/// be of the same process, and being created.
unsafe fn map(context: *mut ffi::ib_ucontext, vma: *mut bindings::vm_area_struct) -> Result {
    // SAFETY: The caller guarantees that both are valid. The core checks length and flags.
    let core = unsafe { ffi::rdma_user_mmap_entry_get(context, vma) };
    if core.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: The caller guarantees that this is an `Entry`. The reference keeps it alive until it is put.
    let entry = unsafe { &*core.cast::<Entry>() };
    let size = entry.mapping.size();

    let io = |pfn, prot| {
        // SAFETY: The caller guarantees that context and `vma` are valid. The entry keeps the pages alive
        // while they are mapped, or until the core undoes the mapping, which it does before the context ends.
        to_result(unsafe { ffi::rdma_user_mmap_io(context, vma, pfn, size, prot, core) })
    };
    let result = match &entry.mapping {
        Mapping::Uncached(pages) => {
            // SAFETY: The caller guarantees that `vma` is valid.
            io(pfn(pages), unsafe { ffi::efa_pgprot_noncached(vma) })
        }
        Mapping::WriteCombining(pages) => {
            // SAFETY: The caller guarantees that `vma` is valid.
            io(pfn(pages), unsafe { ffi::efa_pgprot_writecombine(vma) })
        }
        Mapping::Buffer(buffer) => match buffer.user_memory() {
            UserMemory::Pages(address) => {
                // SAFETY: The caller guarantees that `vma` is valid. The core has compared its length with that
                // of the entry. The pages have reference counts, which a mapping takes.
                to_result(unsafe { ffi::efa_mmap_pages(vma, address.as_ptr()) })
            }
            // SAFETY: The caller guarantees that `vma` is valid.
            UserMemory::Pfn(pfn) => io(pfn, unsafe { (*vma).vm_page_prot }),
        },
    };

    // SAFETY: Drops the reference taken above. The entry is not used afterwards.
    unsafe { ffi::rdma_user_mmap_entry_put(core) };
    result
}

/// Returns the frame number of the first page.
fn pfn(pages: &Pages<'_>) -> usize {
    // CAST: `usize` has 64 bits on every architecture that has EFA.
    (pages.start() >> PAGE_SHIFT) as usize
}
