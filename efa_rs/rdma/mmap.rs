// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that userspace maps by a key that a verb returned.

use core::{
    marker::PhantomData,
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
    page::PAGE_SHIFT,
    prelude::*,
    sync::Arc, //
};

use super::{
    context::Ucontext,
    ops::Ops,
    provider::Provider,
    udata::Udata, //
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

/// Limit on the pieces of memory of one object. A queue pair has two rings with a doorbell each.
const MOST: usize = 4;

/// The memory of an object that its process can map. The keys are removed when this is dropped.
///
/// Existing mappings remain valid until they are unmapped or the context ends.
///
/// # Invariants
///
/// The entries are in a context, which is valid, and are removed by the drop of this only.
#[derive(Default)]
pub(super) struct Mapped([Option<NonNull<Entry>>; MOST]);

impl Mapped {
    /// Lets a process map memory. Returns the key: the offset to pass to `mmap`.
    ///
    /// # Errors
    ///
    /// - [`ENOSPC`] if the object has no room for another piece.
    /// - [`ENOMEM`] if there is no memory, or no key is left.
    ///
    /// # Safety
    ///
    /// `context` must be valid until this is dropped, and `mapping` as long as its device is registered.
    pub(super) unsafe fn insert(
        &mut self,
        context: *mut ffi::ib_ucontext,
        mapping: Mapping<'_>,
    ) -> Result<u64> {
        let mut places = self.0.iter_mut();
        let place = places.find(|place| place.is_none()).ok_or(ENOSPC)?;
        // Userspace can only map the whole memory, whose size is a multiple of the page size.
        let length = mapping.size();
        // SAFETY: Only the lifetime changes. The caller guarantees that the memory outlives the
        // entry, which the core frees before the device is unregistered.
        let mapping = unsafe { transmute::<Mapping<'_>, Mapping<'static>>(mapping) };
        // The core initializes its part, and expects zeroes until then.
        let entry = KBox::<Entry>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        let entry: *mut Entry = KBox::into_raw(entry).cast();
        // SAFETY: The entry was just allocated.
        let room = unsafe { &raw mut (*entry).mapping };
        // SAFETY: There is room for the mapping.
        unsafe { room.write(mapping) };
        // SAFETY: The caller guarantees that the context is valid. `entry` is freed by `mmap_free` only.
        if unsafe { ffi::rdma_user_mmap_entry_insert(context, entry.cast(), length) } != 0 {
            // SAFETY: The core has not taken the entry.
            drop(unsafe { KBox::from_raw(entry) });
            return Err(ENOMEM);
        }
        // INVARIANT: The entry has just been inserted.
        *place = NonNull::new(entry);
        // SAFETY: The entry was not removed.
        Ok(unsafe { ffi::efa_mmap_offset(entry.cast()) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        for entry in self.0.into_iter().flatten() {
            // SAFETY: By the type invariant, the entry is in a valid context, and was not removed. The core calls
            // `mmap_free` after the last mapping.
            unsafe { ffi::rdma_user_mmap_entry_remove(entry.as_ptr().cast()) }
        }
    }
}

/// The context in which an object is created.
///
/// `'a` is the lifetime of the registration. It is invariant, because memory that processes map
/// must be valid for at least as long.
///
/// # Invariants
///
/// `raw` is valid for `'c`, and until the object is destroyed.
pub(crate) struct Context<'c, 'a, P: Provider> {
    raw: *mut ffi::ib_ucontext,
    data: &'c P::Ucontext<'a>,
    mapped: Mapped,
    registration: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl<'c, 'a, P: Provider> Context<'c, 'a, P> {
    /// Returns the provider's data.
    pub(crate) fn data(&self) -> &'c P::Ucontext<'a> {
        self.data
    }

    /// Lets the process map memory of the new object, as a whole, until the object is destroyed. Returns
    /// the key: the offset to pass to `mmap`.
    ///
    /// # Errors
    ///
    /// - [`ENOSPC`] if the object has four pieces of such memory.
    /// - [`ENOMEM`] if there is no memory, or no key is left.
    pub(crate) fn insert_mmap(&mut self, mapping: Mapping<'a>) -> Result<u64> {
        // SAFETY: By the type invariant, the context is valid until the object is destroyed. The mapping is valid
        // as long as the registration. Contexts end before it.
        unsafe { self.mapped.insert(self.raw, mapping) }
    }

    /// Returns the memory that the process can map.
    pub(super) fn into_mapped(self) -> Mapped {
        self.mapped
    }
}

/// Adds the callbacks of mappings to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    if P::Ucontext::HAS_ALLOC {
        ops.mmap = Some(Ops::<P>::mmap);
        ops.mmap_free = Some(Ops::<P>::mmap_free);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Returns the context of the process that calls a verb, which creates an object.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the caller is not a process.
    ///
    /// # Safety
    ///
    /// `udata` must be from a verb of a device that is registered with the provider `P`.
    pub(super) unsafe fn context<'c, 'a: 'c>(udata: &Udata<'c>) -> Result<Context<'c, 'a, P>> {
        // SAFETY: The core embeds the `ib_udata` of a process in the attributes of the call.
        let raw = unsafe { ffi::efa_udata_to_ucontext(udata.as_raw()) };
        if raw.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: `alloc_ucontext` has created the context, which outlives the verb.
        let (data, _) = unsafe { Self::object(raw) };
        // INVARIANT: The core destroys the objects of a context before the context.
        Ok(Context {
            raw,
            data,
            mapped: Mapped::default(),
            registration: PhantomData,
        })
    }

    /// Maps memory into a process, by the key in `vma`.
    ///
    /// # Safety
    ///
    /// `vma` is being created by the process of the context.
    unsafe extern "C" fn mmap(
        context: *mut ffi::ib_ucontext,
        vma: *mut bindings::vm_area_struct,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, both are valid and of one process. All entries of the
            // context were made by `Mapped::insert`, as only this file inserts entries.
            if let Err(error) = unsafe { map(context, vma) } {
                // SAFETY: By the contract, the context is valid.
                P::mmap_failed(unsafe { Self::device_of(context) });
                return Err(error);
            }
            Ok(0)
        })
    }

    /// Frees an entry whose key was removed and that is no longer mapped.
    unsafe extern "C" fn mmap_free(entry: *mut ffi::rdma_user_mmap_entry) {
        // SAFETY: `Mapped::insert` has made the entry as a box. By the contract, this is its last use.
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
/// `context` must be a context all of whose entries were made by [`Mapped::insert`]. `vma` must
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
