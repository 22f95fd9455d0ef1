// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The parts of the device's BARs that processes map.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use crate::{
    rdma::Mapping,
    sys::mmio::Region, //
};

#[cfg(kverbs)]
use {
    crate::sys::mmio::{
        Doorbell,
        Slots,
        Window, //
    },
    kernel::sync::SetOnce,
};

/// The reserved BARs.
pub(crate) struct Bars<'bound> {
    /// The BAR with the doorbells of queue pairs and completion queues.
    doorbells: Arc<Region<'bound>>,
    /// The BAR with the send queues.
    memory: Arc<Region<'bound>>,
    /// The kernel's mapping of the doorbells, made for the first client in the kernel.
    #[cfg(kverbs)]
    kernel_doorbells: SetOnce<Arc<Window<'bound>>>,
}

impl<'bound> Bars<'bound> {
    /// Wraps the reserved BARs.
    pub(crate) fn new(doorbells: Arc<Region<'bound>>, memory: Arc<Region<'bound>>) -> Self {
        Self {
            doorbells,
            memory,
            #[cfg(kverbs)]
            kernel_doorbells: SetOnce::new(),
        }
    }

    /// Returns the page of the doorbell at an offset that the device has reported.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is not in the BAR.
    pub(super) fn doorbell(&self, offset: u32) -> Result<Mapping<'bound>> {
        Ok(Mapping::Uncached(self.doorbells.pages(offset, PAGE_SIZE)?))
    }

    /// Returns the pages of a send queue at an offset that the device has reported. `length` counts
    /// from the start of the offset's page.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if they are not in the BAR.
    pub(super) fn send_queue(&self, offset: u32, length: usize) -> Result<Mapping<'bound>> {
        Ok(Mapping::WriteCombining(self.memory.pages(offset, length)?))
    }
}

/// Mappings for clients in the kernel.
#[cfg(kverbs)]
impl<'bound> Bars<'bound> {
    /// Returns the doorbell at an offset that the device has reported. All share one mapping.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is not in the BAR, or not aligned.
    /// - [`ENOMEM`] if there is no room for the mapping.
    pub(super) fn map_doorbell(&self, offset: u32) -> Result<Doorbell<'bound>> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        self.kernel_doorbells()?.doorbell(offset as usize)
    }

    fn kernel_doorbells(&self) -> Result<Arc<Window<'bound>>> {
        if let Some(window) = self.kernel_doorbells.as_ref() {
            return Ok(window.clone());
        }
        let window = Arc::new(self.doorbells.all_pages()?.map(false)?, GFP_KERNEL)?;
        // If two tasks map the doorbells concurrently, one keeps a mapping of its own.
        self.kernel_doorbells.populate(window.clone());
        Ok(window)
    }

    /// Maps a send queue of `count` work requests, a power of two, of `size` bytes each, at an
    /// offset that the device has reported.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is not in the BAR, or not aligned.
    /// - [`ENOMEM`] if there is no room for the mapping.
    pub(super) fn map_send_queue(
        &self,
        offset: u32,
        size: usize,
        count: u32,
    ) -> Result<Slots<'bound>> {
        let first = offset_in_page(offset) as usize;
        let length = size
            .checked_mul(count as usize)
            .and_then(|length| length.checked_add(first))
            .ok_or(EINVAL)?;
        let pages = self.memory.pages(offset, length)?;
        pages.map(true)?.slots(first, size, count)
    }
}

/// Returns the part of an offset that is within its page.
pub(super) fn offset_in_page(offset: u32) -> u32 {
    // CAST: A page has fewer than 2^32 bytes.
    offset % PAGE_SIZE as u32
}
