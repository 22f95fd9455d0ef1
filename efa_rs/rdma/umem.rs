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
    error::from_err_ptr,
    ffi::c_int,
    prelude::*, //
};

use super::context::DeviceRef;
use crate::ffi;

/// Pinned memory; unpinned when dropped.
///
/// # Invariants
///
/// `raw` is owned, and of the device that `_device` keeps alive.
pub(crate) struct Umem {
    raw: NonNull<ffi::ib_umem>,
    // Unpinning needs the device's memory.
    _device: DeviceRef,
}

// SAFETY: Pinned memory may be released by any task.
unsafe impl Send for Umem {}

// SAFETY: What can be done with a shared reference only reads.
unsafe impl Sync for Umem {}

// The core gives DMA buffers as a structure of their own.
const _: () = assert!(offset_of!(ffi::ib_umem_dmabuf, umem) == 0);

impl Umem {
    /// Takes over what a function of the core returned: an error, null for none, or memory.
    ///
    /// # Safety
    ///
    /// `raw` must be an error pointer, null, or owned by the caller; `device` must be valid, and the
    /// device that it belongs to.
    pub(super) unsafe fn from_raw(
        device: *mut ffi::ib_device,
        raw: *mut ffi::ib_umem,
    ) -> Result<Option<Self>> {
        let raw = from_err_ptr(raw)?;
        // INVARIANT: The caller guarantees it.
        Ok(NonNull::new(raw).map(|raw| Self {
            raw,
            // SAFETY: The caller guarantees that the device is valid.
            _device: unsafe { DeviceRef::new(device) },
        }))
    }

    /// Pins `length` bytes at `start` of the current process.
    ///
    /// # Safety
    ///
    /// `device` must be valid.
    pub(super) unsafe fn get_va(
        device: *mut ffi::ib_device,
        start: u64,
        length: u64,
        access: c_int,
    ) -> Result<Self> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        // SAFETY: The caller guarantees that the device is valid; the core checks the addresses.
        unsafe {
            let raw = ffi::ib_umem_get_attr_or_va(
                device,
                core::ptr::null(),
                0,
                start,
                length as usize,
                access,
            );
            Self::from_raw(device, raw)?.ok_or(EINVAL)
        }
    }

    /// Pins `length` bytes at `offset` of a DMA buffer.
    ///
    /// # Safety
    ///
    /// `device` must be valid.
    pub(super) unsafe fn get_dmabuf(
        device: *mut ffi::ib_device,
        fd: c_int,
        offset: u64,
        length: u64,
        access: c_int,
    ) -> Result<Self> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        // SAFETY: The caller guarantees that the device is valid; the core checks the rest.
        unsafe {
            let raw = ffi::ib_umem_dmabuf_get_pinned(
                device,
                offset as usize,
                length as usize,
                fd,
                access,
            )
            // It starts with the memory proper.
            .cast();
            Self::from_raw(device, raw)?.ok_or(EINVAL)
        }
    }

    /// Returns whether the device sees the memory as one piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { ffi::efa_umem_is_contiguous(self.raw.as_ptr()) }
    }

    /// Returns the address of the first byte as the device sees it.
    pub(crate) fn start(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { ffi::efa_umem_start(self.raw.as_ptr()) }
    }

    /// Returns the largest of `page_sizes`, of which each is a bit, that the memory can be divided
    /// into if the device refers to its first byte as `iova`.
    pub(crate) fn best_page_size(&self, page_sizes: u64, iova: u64) -> Option<u64> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        // SAFETY: By the type invariant.
        match unsafe { ffi::ib_umem_find_best_pgsz(self.raw.as_ptr(), page_sizes as usize, iova) } {
            0 => None,
            size => Some(size as u64),
        }
    }

    /// Returns how many pages of `page_size` the memory has. To be called with what
    /// [`Self::best_page_size`] returned.
    pub(crate) fn page_count(&self, page_size: u64) -> usize {
        // SAFETY: By the type invariant.
        unsafe { ffi::efa_umem_num_blocks(self.raw.as_ptr(), page_size as usize) }
    }

    /// Goes over the addresses of the pages as the device sees them. To be called with what
    /// [`Self::best_page_size`] returned.
    pub(crate) fn pages(&self, page_size: u64) -> Pages<'_> {
        let mut iter = MaybeUninit::uninit();
        // SAFETY: By the type invariant; the function initializes the iterator.
        let iter = unsafe {
            ffi::efa_umem_iter_start(iter.as_mut_ptr(), self.raw.as_ptr(), page_size as usize);
            iter.assume_init()
        };
        Pages {
            iter,
            umem: PhantomData,
        }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the memory is owned.
        unsafe { ffi::ib_umem_release(self.raw.as_ptr()) }
    }
}

/// The addresses of a [`Umem`]'s pages.
pub(crate) struct Pages<'a> {
    iter: ffi::ib_block_iter,
    umem: PhantomData<&'a Umem>,
}

impl Pages<'_> {
    /// Writes the next addresses into `pages`, and returns how many there were.
    pub(crate) fn fill(&mut self, pages: &mut [u64]) -> usize {
        // SAFETY: The iterator is that of a `Umem` that is borrowed, and the slice is as long as
        // given.
        unsafe { ffi::efa_umem_iter_fill(&mut self.iter, pages.as_mut_ptr(), pages.len()) }
    }
}
