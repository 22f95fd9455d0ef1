// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device does to the outside world.

use crate::TraceEvent;

/// The outside world, as a device sees it.
pub trait Host {
    /// Reads host memory.
    ///
    /// # Errors
    ///
    /// Fails if not all of it is mapped for the device.
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError>;

    /// Writes host memory. The host sees the writes of successive calls in their order.
    ///
    /// # Errors
    ///
    /// Fails if not all of it is mapped for the device.
    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError>;

    /// Whether the host lets the device access memory at all.
    fn is_bus_master(&self) -> bool {
        true
    }

    /// Reads the device's own memory, which the host writes as the memory BAR. What is beyond its end is zero.
    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]);

    /// Raises an interrupt, given by its entry in the MSI-X table.
    fn interrupt(&mut self, vector: u16);

    /// Takes note of something that happened.
    fn trace(&mut self, event: &TraceEvent);
}

/// Host memory is not mapped for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host memory at {address:#x}, {length} bytes, is not mapped for the device")]
pub struct DmaError {
    /// Bus address of the access.
    pub address: u64,
    /// Length of the access in bytes.
    pub length: usize,
}
