// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI memory regions that are reserved and not mapped, as only userspace maps them.
//!
//! To be replaced by [`kernel::pci::Bar`] once a BAR can be requested without a mapping.

use kernel::{
    bindings,
    device::Bound,
    error::to_result,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::Arc, //
};

use super::pci::as_raw;

/// A memory BAR that this driver has reserved.
///
/// # Invariants
///
/// Region `bar` of `pdev` is `length` bytes at the physical address `start`; it was requested, and is
/// released only by the drop of this value.
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
    /// - [`EBUSY`] if somebody else has reserved it.
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

    /// Returns the pages from that of `offset` on, of which `length` bytes have to be in the BAR.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if they are not.
    pub(crate) fn pages(self: &Arc<Self>, offset: u32, length: usize) -> Result<Pages<'bound>> {
        let page = u64::from(offset) & !(PAGE_SIZE as u64 - 1);
        match page.checked_add(length as u64) {
            // INVARIANT: `start + length` of a resource does not overflow, and this is within.
            Some(end) if end <= self.length => Ok(Pages {
                start: self.start + page,
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

/// Whether the function has a memory BAR with this number.
pub(crate) fn is_memory(pdev: &pci::Device, bar: u8) -> bool {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    let memory =
        unsafe { bindings::pci_select_bars(as_raw(pdev), bindings::IORESOURCE_MEM as usize) };
    // A set of BARs is an `int`, so nothing over 31 can be in it.
    memory & 1i32.checked_shl(bar.into()).unwrap_or(0) != 0
}

/// Pages of a reserved BAR. That stays reserved as long as they are there.
///
/// # Invariants
///
/// `start` is the physical address of pages of `_region`.
pub(crate) struct Pages<'bound> {
    start: u64,
    _region: Arc<Region<'bound>>,
}

impl Pages<'_> {
    /// Returns the physical address of the first page.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }
}
