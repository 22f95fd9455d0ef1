// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI memory regions that are owned rather than borrowed.
//!
//! [`kernel::pci::Bar`] borrows the bound device, and can only be mapped as a whole and uncached.
//! Here a region can be requested without a mapping (for memory that only userspace maps), and an
//! owner can be shared with interrupt handlers, which must be `'static`. To be replaced by
//! `pci::Bar` once [`kernel::irq::Registration`] accepts handlers that borrow from the device.

use kernel::{
    bindings,
    error::to_result,
    io::{
        self,
        Io,
        Mmio,
        MmioRaw, //
    },
    pci,
    prelude::*,
    sync::aref::ARef, //
};

use super::pci::as_raw;

/// A memory BAR that this driver has reserved.
///
/// # Invariants
///
/// Region `bar` of `pdev` was requested and is released only by the drop of this value.
pub(crate) struct Region {
    pdev: ARef<pci::Device>,
    bar: u32,
}

impl Region {
    /// Reserves memory BAR `bar` under `name`.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the function has no such memory BAR.
    /// - [`EBUSY`] if somebody else has reserved it.
    pub(crate) fn request(
        pdev: &pci::Device<kernel::device::Bound>,
        bar: u32,
        name: &'static CStr,
    ) -> Result<Self> {
        // SAFETY: `as_raw` returns a valid `struct pci_dev`.
        let memory_bars =
            unsafe { bindings::pci_select_bars(as_raw(pdev), bindings::IORESOURCE_MEM as usize) };
        // A set of BARs is an `int`, so nothing over 31 can be in it.
        let bit = 1i32.checked_shl(bar).unwrap_or(0);
        if memory_bars & bit == 0 {
            return Err(ENODEV);
        }

        // SAFETY: As above; `bar` names a memory BAR, and `name` is static.
        to_result(unsafe {
            bindings::pci_request_selected_regions(as_raw(pdev), bit, name.as_char_ptr())
        })?;

        // INVARIANT: The region has just been requested.
        Ok(Self {
            pdev: pdev.into(),
            bar,
        })
    }

    /// Maps the region, uncached, for access by the CPU.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the region has fewer than `SIZE` bytes.
    /// - [`ENOMEM`] if it cannot be mapped.
    pub(crate) fn map<const SIZE: usize>(self) -> Result<Mapping<SIZE>> {
        // CAST: A region that is mapped fits the address space.
        let size = self.pdev.resource_len(self.bar)? as usize;
        if size < SIZE {
            return Err(EINVAL);
        }

        // SAFETY: By the type invariant the region is ours; 0 stands for its whole length.
        let address = unsafe { bindings::pci_iomap(as_raw(&self.pdev), self.bar as i32, 0) };
        if address.is_null() {
            return Err(ENOMEM);
        }

        let io = MmioRaw::new_region(address as usize, size)?;

        // INVARIANT: `address` is the mapping of `size` bytes that was just made.
        Ok(Mapping { io, region: self })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the region was requested, and its bit fits an `int`.
        unsafe { bindings::pci_release_selected_regions(as_raw(&self.pdev), 1 << self.bar) }
    }
}

/// A mapped [`Region`] of at least `SIZE` bytes.
///
/// # Invariants
///
/// `io` is the mapping of `region`, undone only by the drop of this value.
pub(crate) struct Mapping<const SIZE: usize> {
    io: MmioRaw<io::Region<SIZE>>,
    // Dropped after the mapping is undone.
    region: Region,
}

impl<const SIZE: usize> Mapping<SIZE> {
    /// Writes 32 bits at `offset`, which is checked when the call is compiled.
    // For which it has to be inlined.
    #[inline(always)]
    pub(crate) fn write32(&self, value: u32, offset: usize) {
        // SAFETY: By the type invariant, `self.io` is a valid mapping.
        let io = unsafe { Mmio::from_raw(self.io) };

        io.write32(value, offset);
    }
}

impl<const SIZE: usize> Drop for Mapping<SIZE> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, this is the address that `pci_iomap` returned.
        unsafe {
            bindings::pci_iounmap(
                as_raw(&self.region.pdev),
                self.io.addr() as *mut kernel::ffi::c_void,
            )
        }
    }
}
