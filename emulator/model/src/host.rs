// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device does to the outside world.

use std::time::Duration;

use crate::{dma::DmaError, trace::TraceEvent};

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

    /// The time, if there is a clock to measure latencies by. It may be later than what the device was told last.
    fn now(&self) -> Option<Duration> {
        None
    }

    /// Reads the device's own memory, which the host writes as the memory BAR. What is beyond its end is zero.
    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]);

    /// Waits until no copy from or to host memory is under way that was begun for this device.
    ///
    /// A device calls this before it gives up memory, that is, before a driver or program may learn that it can have the
    /// memory back. Nothing is begun meanwhile. Only a host that copies in the background implements this. The caller must
    /// not have begun a copy that it ends only afterwards.
    fn quiesce(&mut self) {}

    /// Raises an interrupt, given by its entry in the MSI-X table.
    fn interrupt(&mut self, vector: u16);

    /// Whether it wants to be told of each work request and completion, too.
    fn traces_work(&self) -> bool {
        false
    }

    /// Takes note of something that happened.
    fn trace(&mut self, event: &TraceEvent);
}
