// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of userspace, pinned and mapped for the device.

use core::{
    marker::PhantomData,
    mem::{
        offset_of,
        MaybeUninit, //
    },
    ptr::NonNull, //
};

use kernel::{
    bindings,
    error::from_err_ptr,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*, //
};

use super::device::dev;
use crate::ffi;

/// Pinned memory; unpinned when dropped.
///
/// # Invariants
///
/// `raw` is owned, and so is a reference to its device, which unpinning needs. The device that does
/// its DMA is bound for `'a`.
pub(crate) struct Umem<'a> {
    raw: NonNull<ffi::ib_umem>,
    registration: PhantomData<&'a ()>,
}

// SAFETY: Pinned memory may be released by any task.
unsafe impl Send for Umem<'_> {}

// SAFETY: A shared reference only allows reads.
unsafe impl Sync for Umem<'_> {}

// The core returns DMA buffers in a structure of their own, which begins with an `ib_umem`.
const _: () = assert!(offset_of!(ffi::ib_umem_dmabuf, umem) == 0);

impl<'a> Umem<'a> {
    /// Takes ownership of the result of a core function: an error, null for none, or memory.
    ///
    /// # Safety
    ///
    /// `raw` must be an error pointer, null, or owned by the caller. Its device must be valid, and of a
    /// registration whose data is valid for `'a`.
    pub(super) unsafe fn from_raw(raw: *mut ffi::ib_umem) -> Result<Option<Self>> {
        let Some(raw) = NonNull::new(from_err_ptr(raw)?) else {
            return Ok(None);
        };
        // SAFETY: The caller guarantees that the memory is valid.
        let device = unsafe { (*raw.as_ptr()).ibdev };
        // SAFETY: The caller guarantees that the device is valid.
        let dev = unsafe { dev(device) };
        // SAFETY: The driver core's part of a valid device is valid.
        unsafe { bindings::get_device(dev) };
        // INVARIANT: The caller guarantees it. The reference has just been taken.
        Ok(Some(Self {
            raw,
            registration: PhantomData,
        }))
    }

    /// Pins `length` bytes at `start` of the current process.
    ///
    /// # Safety
    ///
    /// `device` must be valid, and of a registration whose data is valid for `'a`.
    pub(super) unsafe fn get_va(
        device: *mut ffi::ib_device,
        start: u64,
        length: u64,
        access: c_int,
    ) -> Result<Self> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        let size = length as usize;
        let no_attrs = core::ptr::null();
        // SAFETY: The caller guarantees that the device is valid. The core checks the addresses.
        let raw = unsafe { ffi::ib_umem_get_attr_or_va(device, no_attrs, 0, start, size, access) };
        // SAFETY: The memory is owned, and of this device. The caller guarantees that the device is valid.
        unsafe { Self::from_raw(raw) }?.ok_or(EINVAL)
    }

    /// Pins `length` bytes at `offset` of a DMA buffer. `revoked` is called with `context` when the exporter revokes them,
    /// or else when they are unpinned.
    ///
    /// # Safety
    ///
    /// `device` must be valid, and of a registration whose data is valid for `'a`. `revoked` must
    /// be callable with `context` as long as the memory is pinned, and while it is being unpinned.
    pub(super) unsafe fn get_dmabuf(
        device: *mut ffi::ib_device,
        fd: c_int,
        offset: u64,
        length: u64,
        access: c_int,
        revoked: unsafe extern "C" fn(*mut c_void),
        context: *mut c_void,
    ) -> Result<Self> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        let (offset, size) = (offset as usize, length as usize);
        // SAFETY: The caller guarantees that the device is valid. The core checks the rest.
        let raw = from_err_ptr(unsafe {
            ffi::ib_umem_dmabuf_get_pinned_revocable_and_lock(device, offset, size, fd, access)
        })?;
        // SAFETY: The memory was returned with this lock held. The caller guarantees the callback.
        unsafe { ffi::ib_umem_dmabuf_set_revoke_locked(raw, Some(revoked), context) };
        // SAFETY: The memory is valid, and was returned with this lock held.
        unsafe { ffi::ib_umem_dmabuf_revoke_unlock(raw) };
        // SAFETY: The memory is owned, of this device, and starts with an `ib_umem`. The caller guarantees
        // that the device is valid.
        unsafe { Self::from_raw(raw.cast()) }?.ok_or(EINVAL)
    }

    /// Returns whether the memory is contiguous for the device. Like a division, this stores `iova`.
    pub(crate) fn is_contiguous(&mut self) -> bool {
        // SAFETY: By the type invariant the memory is pinned, and owned by this, which is borrowed exclusively.
        unsafe { ffi::efa_umem_is_contiguous(self.raw.as_ptr()) }
    }

    /// Returns the DMA address of the first byte.
    pub(crate) fn start(&self) -> u64 {
        // SAFETY: By the type invariant the memory is pinned, and owned by this.
        unsafe { ffi::efa_umem_start(self.raw.as_ptr()) }
    }

    /// Divides the memory into pages of the largest size in the bit mask `page_sizes` that fits.
    /// `iova` is the device's address of the first byte. Returns `None` if no size fits.
    pub(crate) fn pages(&mut self, page_sizes: u64, iova: u64) -> Option<Pages<'_>> {
        // SAFETY: `self` is borrowed exclusively. Memory that may be revoked is in a `Revocable`,
        // which never lends it mutably.
        unsafe { self.divide(page_sizes, iova) }
    }

    /// Like [`Self::pages`], divides memory to which there may be other references.
    ///
    /// # Safety
    ///
    /// It must not be divided concurrently. The exporter of a DMA buffer must not have revoked it, and must
    /// not do so while the pages are used.
    pub(super) unsafe fn divide(&self, page_sizes: u64, iova: u64) -> Option<Pages<'_>> {
        let raw = self.raw.as_ptr();
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        // SAFETY: By the type invariant `raw` is valid. The caller guarantees that its pages are
        // valid. It also guarantees that nothing else divides it, as this stores `iova`.
        let page_size = unsafe { ffi::ib_umem_find_best_pgsz(raw, page_sizes as usize, iova) };
        if page_size == 0 {
            return None;
        }

        let mut iter = MaybeUninit::uninit();
        // SAFETY: By the type invariant `raw` is valid. The core has found the page size.
        let count = unsafe { ffi::efa_umem_num_blocks(raw, page_size) };
        // SAFETY: By the type invariant `raw` is valid. The caller guarantees valid pages.
        unsafe { ffi::efa_umem_iter_start(iter.as_mut_ptr(), raw, page_size) };
        Some(Pages {
            page_size: page_size as u64,
            count,
            // SAFETY: `efa_umem_iter_start` has initialized the iterator.
            iter: unsafe { iter.assume_init() },
            umem: PhantomData,
        })
    }
}

impl Drop for Umem<'_> {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: By the type invariant the memory is valid.
        let device = unsafe { (*raw).ibdev };
        // SAFETY: By the type invariant the memory is owned.
        unsafe { ffi::ib_umem_release(raw) };
        // SAFETY: By the type invariant the device is valid.
        let dev = unsafe { dev(device) };
        // SAFETY: By the type invariant the reference is owned.
        unsafe { bindings::put_device(dev) };
    }
}

/// The pages of a [`Umem`], which is not revoked, and an iterator over their addresses.
pub(crate) struct Pages<'u> {
    page_size: u64,
    count: usize,
    iter: ffi::ib_block_iter,
    umem: PhantomData<&'u Umem<'u>>,
}

impl Pages<'_> {
    /// Returns the size of a page in bytes, a power of two.
    pub(crate) fn page_size(&self) -> u64 {
        self.page_size
    }

    /// Returns the number of pages.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Writes the next DMA addresses into `pages`, and returns their number.
    pub(crate) fn fill(&mut self, pages: &mut [u64]) -> usize {
        // SAFETY: The iterator is that of a borrowed `Umem`, whose pages are valid by the
        // requirements of `divide`. The slice has the given length.
        unsafe { ffi::efa_umem_iter_fill(&mut self.iter, pages.as_mut_ptr(), pages.len()) }
    }
}
