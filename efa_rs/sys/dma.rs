// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Coherent memory as an array of fixed-size entries that CPU and device both access.
//!
//! A layer over [`kernel::dma::Coherent`] in which no index can be out of bounds, so that rings
//! need no failing accesses in interrupt handlers.

use core::ptr;

use kernel::{
    alloc::flags::__GFP_NOWARN,
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
    page::PAGE_SIZE,
    pci,
    prelude::*, //
};

use crate::ffi;

/// Bytes that are read or written at once.
const WORD: usize = size_of::<u64>();

/// A power of two of `N`-byte entries in coherent memory, all zero at first.
///
/// `N` is a multiple of 8. Accesses copy whole entries or single bytes with volatile semantics: the device may change the
/// memory at any time, so nobody gets a reference to it.
///
/// # Invariants
///
/// `entries` has `mask + 1` elements, a power of two.
pub(crate) struct Entries<const N: usize> {
    entries: Coherent<[[u8; N]]>,
    mask: u32,
}

impl<const N: usize> Entries<N> {
    /// Allocates `count` zeroed entries.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if `count` is no power of two.
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn zeroed(dev: &Device<Bound>, count: u32) -> Result<Self> {
        if !count.is_power_of_two() {
            return Err(EINVAL);
        }
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        let entries = Coherent::<[u8; N]>::zeroed_slice(dev, count as usize, GFP_KERNEL)?;

        // INVARIANT: `zeroed_slice` returned `count` entries.
        Ok(Self {
            entries,
            mask: count - 1,
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

    /// Reads the entry at `index`, which wraps.
    #[inline]
    pub(crate) fn read(&self, index: u32) -> [u8; N] {
        let words = self.words(index);
        let mut entry = [0; N];

        for (i, bytes) in entry.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: The entry has `N / WORD` words, and every value is valid. A volatile read
            // that races with the device is what the kernel does for `READ_ONCE`.
            let word = unsafe { ptr::read_volatile(words.add(i)) };
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        entry
    }

    /// Reads byte `OFFSET` of the entry at `index`, which wraps.
    #[inline]
    pub(crate) fn read_byte<const OFFSET: usize>(&self, index: u32) -> u8 {
        const { assert!(OFFSET < N) };

        // SAFETY: As for `read`; the byte is within the entry.
        unsafe { ptr::read_volatile(self.words(index).cast::<u8>().add(OFFSET)) }
    }

    /// Writes the entry at `index`, which wraps.
    #[inline]
    pub(crate) fn write(&self, index: u32, entry: &[u8; N]) {
        let words = self.words(index);

        for (i, bytes) in entry.chunks_exact(WORD).enumerate() {
            let mut word = [0; WORD];
            word.copy_from_slice(bytes);
            // SAFETY: As for `read`, with `WRITE_ONCE`.
            unsafe { ptr::write_volatile(words.add(i), u64::from_ne_bytes(word)) };
        }
    }
}

/// Coherent memory that userspace maps: whole pages, physically contiguous, all zero at first.
pub(crate) struct UserBuffer {
    pages: Coherent<[[u8; PAGE_SIZE]]>,
}

impl UserBuffer {
    /// Allocates at least `size` bytes.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory, or `size` is 0.
    pub(crate) fn zeroed(dev: &Device<Bound>, size: usize) -> Result<Self> {
        if size == 0 {
            return Err(ENOMEM);
        }
        let pages = Coherent::zeroed_slice_with_attrs(
            dev,
            size.div_ceil(PAGE_SIZE),
            // Userspace chooses the size; one that is too large is no reason for a warning.
            GFP_KERNEL | __GFP_NOWARN,
            attrs::DMA_ATTR_FORCE_CONTIGUOUS,
        )?;
        Ok(Self { pages })
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.pages.size()
    }

    /// Returns the address of the first byte as the device sees it.
    pub(crate) fn dma_address(&self) -> DmaAddress {
        self.pages.dma_address()
    }

    /// Returns the number of the first page.
    pub(crate) fn pfn(&self) -> usize {
        // SAFETY: The memory is kernel memory that is mapped, contiguously.
        unsafe { ffi::efa_coherent_to_pfn(self.pages.as_mut_ptr().cast()) }
    }
}

/// Sets the width of the addresses that the device can use for DMA, and lifts the limit on the
/// size of one mapping's segments.
///
/// To be called from `probe`, between the allocations that need no more than 32 bits of address
/// and all others.
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

    // SAFETY: This driver allocates and maps DMA memory in `probe`, one step after the other, and
    // in callbacks of what `probe` registers as its last step: never at the same time as this.
    unsafe { pdev.dma_set_mask_and_coherent(mask)? };
    // SAFETY: As above.
    unsafe { pdev.dma_set_max_seg_size(u32::MAX) };
    Ok(())
}
