// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory shared by the CPU, the device, and userspace.
//!
//! [`Entries`] is a layer over [`kernel::dma::Coherent`] in which no index can be out of bounds, so
//! that rings need no failing accesses in interrupt handlers. [`UserBuffer`], which the kernel
//! crate lacks, is memory whose pages userspace may keep after the driver has freed it.

use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};

use kernel::{
    alloc::flags::__GFP_NOWARN,
    bindings,
    device::{
        Bound,
        Core,
        Device, //
    },
    dma::{
        attrs,
        Coherent,
        Device as _,
        DmaAddress,
        DmaMask, //
    },
    ffi::c_void,
    page::PAGE_SIZE,
    pci,
    prelude::*, //
};

use super::{
    atomic::{
        dma_rmb,
        read_once, //
    },
    device::as_raw,
    words::{
        each_word,
        WORD, //
    },
};
use crate::ffi;

/// A power of two of `N`-byte entries in coherent memory, all zero at first.
///
/// `N` is a multiple of 8. Accesses copy whole entries or single bytes with volatile semantics.
/// There are no references to the memory, as the device may change it at any time.
///
/// # Invariants
///
/// `entries` has `mask + 1` elements, a power of two.
pub(crate) struct Entries<'bound, const N: usize> {
    entries: Coherent<[[u8; N]]>,
    mask: u32,
    // Coherent memory must be freed while the device is bound.
    bound: PhantomData<&'bound Device<Bound>>,
}

impl<'bound, const N: usize> Entries<'bound, N> {
    /// Allocates `count` zeroed entries.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if `count` is no power of two.
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn zeroed(dev: &'bound Device<Bound>, count: u32) -> Result<Self> {
        if !count.is_power_of_two() {
            return Err(EINVAL);
        }
        // Clients choose the count, so that too large a count must not cause a warning.
        let flags = GFP_KERNEL | __GFP_NOWARN;
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        let entries = Coherent::<[u8; N]>::zeroed_slice(dev, count as usize, flags)?;

        // INVARIANT: `zeroed_slice` returned `count` entries.
        Ok(Self {
            entries,
            mask: count - 1,
            bound: PhantomData,
        })
    }

    /// Returns the number of entries.
    pub(crate) fn count(&self) -> u32 {
        self.mask + 1
    }

    /// Returns the address of the first entry as the device sees it.
    pub(crate) fn dma_address(&self) -> DmaAddress {
        self.entries.dma_address()
    }

    /// Returns a pointer to the words of the entry at `index`, which wraps.
    fn words(&self, index: u32) -> *mut u64 {
        const { assert!(N % WORD == 0) };
        let base = self.entries.as_mut_ptr().cast::<[u8; N]>();

        // SAFETY: By the type invariant the masked index is within the allocation. That starts at a
        // page, so that entries of whole words are aligned to them.
        unsafe { base.add((index & self.mask) as usize).cast() }
    }

    /// Reads the entry at `index`, which wraps, after what was read before.
    #[inline(always)]
    pub(crate) fn read(&self, index: u32) -> [u8; N] {
        // The device writes the byte last by which the caller knows that the entry is complete.
        dma_rmb();
        let words = self.words(index);
        let mut entry = [0; N];
        each_word(&mut entry, |number, bytes| {
            // SAFETY: The entry has `N / WORD` words, of which this is one.
            let word = unsafe { words.add(number) };
            // SAFETY: The word is aligned, and every value is valid.
            *bytes = unsafe { read_once(word) }.to_ne_bytes();
        });
        entry
    }

    /// Reads byte `OFFSET` of the entry at `index`, which wraps.
    #[inline]
    pub(crate) fn read_byte<const OFFSET: usize>(&self, index: u32) -> u8 {
        const { assert!(OFFSET < N) };

        // SAFETY: The entry has `N` bytes, which are more than `OFFSET`.
        let byte = unsafe { self.words(index).cast::<u8>().add(OFFSET) };
        // SAFETY: The byte is in the entry, and every value is valid.
        unsafe { read_once(byte) }
    }

    /// Writes the entry at `index`, which wraps.
    ///
    /// If tasks write an entry at the same time, each word is from one of them. In the kernel's
    /// memory model, a volatile access of a word is atomic.
    #[inline(always)]
    pub(crate) fn write(&self, index: u32, entry: &[u8; N]) {
        let words = self.words(index);
        each_word(&mut { *entry }, |number, bytes| {
            // SAFETY: The entry has `N / WORD` words, of which this is one.
            let word = unsafe { words.add(number) };
            // SAFETY: The word is aligned. A volatile write that races with the device is what the
            // kernel does for `WRITE_ONCE`.
            unsafe { ptr::write_volatile(word, u64::from_ne_bytes(*bytes)) };
        });
    }
}

/// Memory that userspace maps and the device uses: whole pages, physically contiguous, all zero at
/// first.
///
/// # Invariants
///
/// `memory` has `size` bytes, a multiple of the page size, which the device sees at `dma_address`.
pub(crate) struct UserBuffer<'bound> {
    dev: &'bound Device<Bound>,
    memory: Memory,
    size: usize,
    dma_address: DmaAddress,
}

/// The memory of a [`UserBuffer`].
enum Memory {
    /// Pages with their own reference counts, mapped for the device. Pages that userspace has
    /// mapped outlive the buffer.
    Pages(NonNull<c_void>),
    /// Coherent memory, where the platform would bounce such pages.
    Coherent(Coherent<[[u8; PAGE_SIZE]]>),
}

/// The form in which userspace can map a [`UserBuffer`].
pub(crate) enum UserMemory {
    /// By pages with reference counts, from this kernel address on.
    Pages(NonNull<c_void>),
    /// By page frame numbers, from this one on. The mapping must not outlive the buffer.
    Pfn(usize),
}

// SAFETY: The pages are owned, and may be freed by any task.
unsafe impl Send for UserBuffer<'_> {}

// SAFETY: A shared reference gives access to addresses only.
unsafe impl Sync for UserBuffer<'_> {}

impl<'bound> UserBuffer<'bound> {
    /// Allocates at least `size` bytes.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the device does no DMA.
    /// - [`ENOMEM`] if there is no memory, or `size` is 0.
    pub(crate) fn zeroed(dev: &'bound Device<Bound>, size: usize) -> Result<Self> {
        let size = match size {
            0 => return Err(ENOMEM),
            size => size.checked_next_multiple_of(PAGE_SIZE).ok_or(ENOMEM)?,
        };
        if let Some(pages) = Self::map_pages(dev, size)? {
            return Ok(pages);
        }

        let memory = Coherent::zeroed_slice_with_attrs(
            dev,
            size / PAGE_SIZE,
            // Userspace chooses the size, so that too large a size must not cause a warning.
            GFP_KERNEL | __GFP_NOWARN,
            attrs::DMA_ATTR_FORCE_CONTIGUOUS,
        )?;
        // INVARIANT: That many pages were allocated.
        Ok(Self {
            dev,
            dma_address: memory.dma_address(),
            memory: Memory::Coherent(memory),
            size,
        })
    }

    /// Allocates and maps `size` bytes of pages. Returns `None` if the device can't use them
    /// without bouncing.
    fn map_pages(dev: &'bound Device<Bound>, size: usize) -> Result<Option<Self>> {
        let raw = as_raw(dev);
        // SAFETY: `raw` is a valid device.
        if unsafe { (*raw).dma_mask.is_null() } {
            return Err(EINVAL);
        }

        // SAFETY: There is no precondition.
        let pages = unsafe { ffi::efa_alloc_user_pages(size) };
        let pages = NonNull::new(pages).ok_or(ENOMEM)?;
        let mut dma_address = 0;
        // SAFETY: `raw` is a valid device, and `pages` are `size` bytes that were just allocated.
        let mapped = unsafe { ffi::efa_dma_map(raw, pages.as_ptr(), size, &mut dma_address) };
        if mapped != 0 {
            // SAFETY: The pages were just allocated, and have no other user.
            unsafe { bindings::free_pages_exact(pages.as_ptr(), size) };
            return Ok(None);
        }

        // INVARIANT: The pages were just mapped.
        Ok(Some(Self {
            dev,
            memory: Memory::Pages(pages),
            size,
            dma_address,
        }))
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the address of the first byte as the device sees it.
    pub(crate) fn dma_address(&self) -> DmaAddress {
        self.dma_address
    }

    /// Returns the form in which userspace can map it.
    pub(crate) fn user_memory(&self) -> UserMemory {
        match &self.memory {
            Memory::Pages(pages) => UserMemory::Pages(*pages),
            Memory::Coherent(memory) => {
                // SAFETY: This is kernel memory that is mapped, contiguously.
                UserMemory::Pfn(unsafe { ffi::efa_coherent_to_pfn(memory.as_mut_ptr().cast()) })
            }
        }
    }
}

impl Drop for UserBuffer<'_> {
    fn drop(&mut self) {
        if let Memory::Pages(pages) = &self.memory {
            // SAFETY: By the type invariant the device sees this many bytes at this address, where
            // `map_pages` has mapped them. It is bound, so that the mapping is still there.
            unsafe { ffi::efa_dma_unmap(as_raw(self.dev), self.dma_address, self.size) };
            // SAFETY: The pages are owned, have this size, and are not mapped for the device any
            // more. Userspace mappings hold references to their pages.
            unsafe { bindings::free_pages_exact(pages.as_ptr(), self.size) };
        }
    }
}

/// Sets the width of the addresses that the device can use for DMA, and lifts the limit on the
/// size of one mapping's segments.
///
/// Called from `probe`, after the allocations with addresses of at most 32 bits and before all
/// others.
///
/// # Errors
///
/// - [`EINVAL`] if `bits` is not from 32 to 64.
/// - [`EIO`] if the platform cannot address the device with that width.
pub(crate) fn set_address_width(pdev: &pci::Device<Core<'_>>, bits: u8) -> Result {
    if !(32..=64).contains(&bits) {
        return Err(EINVAL);
    }
    let mask = DmaMask::try_new(u32::from(bits))?;

    // SAFETY: Only a probe has a `Core` device, whose driver has started nothing yet that would
    // allocate or map DMA memory at the same time.
    unsafe { pdev.dma_set_mask_and_coherent(mask) }?;
    // SAFETY: The probe still runs, and nothing allocates or maps DMA memory during this call.
    unsafe { pdev.dma_set_max_seg_size(u32::MAX) };
    Ok(())
}
