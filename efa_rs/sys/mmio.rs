// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI memory regions that are reserved without a mapping. Userspace maps them, and the kernel maps
//! parts of them.
//!
//! To be replaced by [`kernel::pci::Bar`] once a BAR can be requested without a mapping, and its
//! parts can be mapped with write combining.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    bindings,
    device::Bound,
    error::to_result,
    ffi::c_void,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::Arc, //
};

use super::{
    pci::as_raw,
    words::{
        each_word,
        WORD, //
    },
};
use crate::ffi;

/// A memory BAR that this driver has reserved.
///
/// # Invariants
///
/// Region `bar` of `pdev` is `length` bytes at the physical address `start`; it was requested, and
/// is released only by the drop of this value.
pub(crate) struct Region<'bound> {
    pdev: &'bound pci::Device<Bound>,
    bar: u32,
    start: u64,
    length: u64,
}

impl<'bound> Region<'bound> {
    /// Reserves memory BAR `bar` under `name`.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the function has no such memory BAR.
    /// - [`EBUSY`] if another driver has reserved it.
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn request(
        pdev: &'bound pci::Device<Bound>,
        bar: u8,
        name: &'static CStr,
    ) -> Result<Arc<Self>> {
        if !is_memory(pdev, bar) {
            return Err(ENODEV);
        }
        let bar = u32::from(bar);
        let (start, length) = (pdev.resource_start(bar)?, pdev.resource_len(bar)?);

        // SAFETY: `as_raw` returns a valid `struct pci_dev`, whose BAR this is; `name` is static.
        to_result(unsafe {
            bindings::pci_request_selected_regions(as_raw(pdev), 1 << bar, name.as_char_ptr())
        })?;

        // INVARIANT: The region has just been requested.
        let region = Self {
            pdev,
            bar,
            start,
            length,
        };
        Ok(Arc::new(region, GFP_KERNEL)?)
    }

    /// Returns all pages of the BAR.
    ///
    /// # Errors
    ///
    /// Those of [`Self::pages`].
    pub(crate) fn all_pages(self: &Arc<Self>) -> Result<Pages<'bound>> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        self.pages(0, self.length as usize)
    }

    /// Returns whole pages for `length` bytes, starting with the page of `offset`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the BAR does not have these pages, or does not start at a page.
    pub(crate) fn pages(self: &Arc<Self>, offset: u32, length: usize) -> Result<Pages<'bound>> {
        let page = u64::from(offset) & !(PAGE_SIZE as u64 - 1);
        // Where pages are larger than 4 KiB, a small BAR may be in the middle of one.
        let is_aligned = self.start % PAGE_SIZE as u64 == 0;
        let length = length.checked_next_multiple_of(PAGE_SIZE).ok_or(EINVAL)?;
        match page.checked_add(length as u64) {
            // INVARIANT: `start + length` of a resource does not overflow, and this is within.
            Some(end) if end <= self.length && is_aligned => Ok(Pages {
                start: self.start + page,
                length,
                _region: self.clone(),
            }),
            _ => Err(EINVAL),
        }
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the region was requested, and its bit fits an `int`.
        unsafe { bindings::pci_release_selected_regions(as_raw(self.pdev), 1 << self.bar) }
    }
}

/// Returns whether the function has a memory BAR with this number.
pub(crate) fn is_memory(pdev: &pci::Device, bar: u8) -> bool {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    let memory =
        unsafe { bindings::pci_select_bars(as_raw(pdev), bindings::IORESOURCE_MEM as usize) };
    // A set of BARs is an `int`, which has no BAR above 31.
    memory & 1i32.checked_shl(bar.into()).unwrap_or(0) != 0
}

/// Pages of a reserved BAR, which stays reserved as long as this value exists.
///
/// # Invariants
///
/// `start` is the physical address of `length` bytes of `_region`, at the start of a page.
pub(crate) struct Pages<'bound> {
    start: u64,
    length: usize,
    _region: Arc<Region<'bound>>,
}

impl Pages<'_> {
    /// Returns the physical address of the first page.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Returns the total size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.length
    }
}

impl<'bound> Pages<'bound> {
    /// Maps the pages with write combining, which may reorder writes, or else uncached.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no room in the kernel's address space.
    pub(crate) fn map(self, combines_writes: bool) -> Result<Window<'bound>> {
        let base = if combines_writes {
            // SAFETY: By the type invariant these are pages of a BAR that is reserved by this
            // driver, which allows write combining.
            unsafe { ffi::efa_ioremap_wc(self.start, self.length) }
        } else {
            // SAFETY: By the type invariant these are pages of a BAR that this driver reserved.
            unsafe { bindings::ioremap(self.start, self.length) }
        };
        let base = NonNull::new(base.cast()).ok_or(ENOMEM)?;

        // INVARIANT: The pages were just mapped.
        Ok(Window { base, pages: self })
    }
}

/// Pages of a reserved BAR that the kernel writes to.
///
/// # Invariants
///
/// At `base`, which starts at a page, all bytes of `pages` are mapped.
pub(crate) struct Window<'bound> {
    base: NonNull<u8>,
    pages: Pages<'bound>,
}

// SAFETY: The mapping belongs to the kernel, and not to a task.
unsafe impl Send for Window<'_> {}

// SAFETY: Writes to a device may come from any CPU.
unsafe impl Sync for Window<'_> {}

impl<'bound> Window<'bound> {
    /// Returns the 32-bit register at an offset.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is outside of the window, or not aligned.
    pub(crate) fn doorbell(self: &Arc<Self>, offset: usize) -> Result<Doorbell<'bound>> {
        match offset.checked_add(size_of::<u32>()) {
            // INVARIANT: It is in the mapping.
            Some(end) if end <= self.pages.length && offset % size_of::<u32>() == 0 => {
                Ok(Doorbell {
                    // SAFETY: This is in the mapping.
                    register: unsafe { self.base.add(offset) }.cast(),
                    _window: self.clone(),
                })
            }
            _ => Err(EINVAL),
        }
    }

    /// Returns `count` slots, a power of two, of `size` bytes each from an offset on.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if they are outside of the window, or not of whole words.
    pub(crate) fn slots(self, offset: usize, size: usize, count: u32) -> Result<Slots<'bound>> {
        let end = size
            .checked_mul(count as usize)
            .and_then(|length| length.checked_add(offset));
        let is_whole = (offset | size) % WORD == 0 && size != 0 && count.is_power_of_two();
        match end {
            // INVARIANT: They are in the mapping, and of whole words.
            Some(end) if end <= self.pages.length && is_whole => Ok(Slots {
                // SAFETY: This is in the mapping.
                base: unsafe { self.base.add(offset) },
                size,
                mask: count - 1,
                _window: self,
            }),
            _ => Err(EINVAL),
        }
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is a mapping, which has no user any more.
        unsafe { bindings::iounmap(self.base.as_ptr().cast()) }
    }
}

/// A 32-bit register.
///
/// # Invariants
///
/// `register` is an aligned word of `_window`.
pub(crate) struct Doorbell<'bound> {
    register: NonNull<c_void>,
    _window: Arc<Window<'bound>>,
}

// SAFETY: The mapping belongs to the kernel, and not to a task.
unsafe impl Send for Doorbell<'_> {}

// SAFETY: Several tasks may write to a register at the same time.
unsafe impl Sync for Doorbell<'_> {}

impl Doorbell<'_> {
    /// Writes to the register, after earlier writes to memory.
    #[inline]
    pub(crate) fn ring(&self, value: u32) {
        // SAFETY: By the type invariant the register is aligned, and mapped as long as the window exists.
        unsafe { bindings::writel(value, self.register.as_ptr()) }
    }

    /// Writes to the register after earlier writes to memory and [`Slots`], before later accesses.
    #[inline]
    pub(crate) fn ring_ordered(&self, value: u32) {
        // SAFETY: By the type invariant the register is aligned, and mapped as long as the window exists.
        unsafe { ffi::efa_ring_ordered(value, self.register.as_ptr()) }
    }
}

/// A ring of slots in memory of the device.
///
/// # Invariants
///
/// From `base` on, `_window` has `mask + 1` slots, a power of two, of `size` bytes in whole words.
pub(crate) struct Slots<'bound> {
    base: NonNull<u8>,
    size: usize,
    mask: u32,
    _window: Window<'bound>,
}

// SAFETY: The mapping belongs to the kernel, and not to a task.
unsafe impl Send for Slots<'_> {}

// SAFETY: A shared reference gives access to the number of slots only.
unsafe impl Sync for Slots<'_> {}

impl Slots<'_> {
    /// Returns the number of slots.
    pub(crate) fn count(&self) -> u32 {
        self.mask.wrapping_add(1)
    }

    /// Returns the slot at `index`, which wraps.
    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> Slot<'_> {
        // It is within the window, so that this does not wrap.
        let offset = ((index & self.mask) as usize).wrapping_mul(self.size);
        // INVARIANT: A slot is mapped and of whole words. This value borrows all of them.
        Slot {
            // SAFETY: By the type invariant the slot of the masked index is in the window.
            place: unsafe { self.base.add(offset) },
            room: self.size,
            slots: PhantomData,
        }
    }
}

/// The unwritten part of a slot.
///
/// # Invariants
///
/// At `place`, `room` bytes of whole words are mapped for `'s`, which only this value writes to.
pub(crate) struct Slot<'s> {
    place: NonNull<u8>,
    room: usize,
    slots: PhantomData<&'s mut [u64]>,
}

impl<'s> Slot<'s> {
    /// Returns the number of unwritten bytes.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Splits off the first `N` bytes. Returns `None` if there are fewer.
    #[inline]
    pub(crate) fn split_off<const N: usize>(&mut self) -> Option<Slot<'s>> {
        const { assert!(N % WORD == 0) };
        let place = self.place;
        self.room = self.room.checked_sub(N)?;
        // SAFETY: There were `N` bytes.
        self.place = unsafe { place.add(N) };
        // INVARIANT: These bytes are whole words, and not part of `self` any more.
        Some(Slot {
            place,
            room: N,
            slots: PhantomData,
        })
    }

    /// Writes the next `N` bytes. Returns `None` if there are fewer left.
    #[inline(always)]
    pub(crate) fn write<const N: usize>(&mut self, bytes: &[u8; N]) -> Option<()> {
        let Slot { place, .. } = self.split_off::<N>()?;
        let words = place.cast::<u64>();
        each_word(&mut { *bytes }, |number, bytes| {
            // SAFETY: By the type invariant there is room for all words of `bytes`.
            let word = unsafe { words.add(number) };
            // SAFETY: By the type invariant this is mapped, and aligned. A volatile write is what
            // `__raw_writeq` is.
            unsafe { word.write_volatile(u64::from_ne_bytes(*bytes)) };
        });
        Some(())
    }
}
