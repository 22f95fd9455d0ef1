// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The parts of the device's BARs that processes map.

use kernel::{
    page::PAGE_SIZE,
    pci,
    prelude::*, //
};

use crate::rdma::Mapping;

/// Where BARs are in physical memory.
pub(super) struct Bars {
    doorbells: Bar,
    memory: Bar,
}

/// A BAR.
struct Bar {
    start: u64,
    length: u64,
}

impl Bar {
    fn new(pdev: &pci::Device, bar: u8) -> Result<Self> {
        Ok(Self {
            start: pdev.resource_start(bar.into())?,
            length: pdev.resource_len(bar.into())?,
        })
    }

    /// Returns the physical address of the page that `offset` is in, of which `length` bytes have
    /// to be in the BAR.
    fn pages(&self, offset: u32, length: usize) -> Result<u64> {
        let page = u64::from(offset) & !(PAGE_SIZE as u64 - 1);
        match page.checked_add(length as u64) {
            Some(end) if end <= self.length => Ok(self.start + page),
            _ => Err(EINVAL),
        }
    }
}

impl Bars {
    /// Finds the BARs of a device.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no such BAR.
    pub(super) fn new(pdev: &pci::Device, doorbells: u8, memory: u8) -> Result<Self> {
        Ok(Self {
            doorbells: Bar::new(pdev, doorbells)?,
            memory: Bar::new(pdev, memory)?,
        })
    }

    /// Returns the page of the doorbell at an offset that the device has given.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is not in the BAR.
    pub(super) fn doorbell(&self, offset: u32) -> Result<Mapping> {
        Ok(Mapping::Uncached(self.doorbells.pages(offset, PAGE_SIZE)?))
    }

    /// Returns the pages of a send queue of `length` bytes, of which the first is in the page of an
    /// offset that the device has given.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if they are not in the BAR.
    pub(super) fn send_queue(&self, offset: u32, length: usize) -> Result<Mapping> {
        Ok(Mapping::WriteCombining(self.memory.pages(offset, length)?))
    }
}

/// Returns the part of an offset that is within its page.
pub(super) fn offset_in_page(offset: u32) -> u32 {
    // CAST: A page has fewer than 2^32 bytes.
    offset % PAGE_SIZE as u32
}
