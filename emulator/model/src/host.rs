// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Interface of a device to its surroundings: host memory, interrupts, time and trace.

use std::time::Duration;

use crate::{dma::DmaError, trace::TraceEvent};

/// Services that a device uses.
pub trait Host {
    /// Reads host memory.
    ///
    /// # Errors
    ///
    /// Fails unless the whole range is mapped for the device.
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError>;

    /// Writes host memory. The host sees the writes of successive calls in their order.
    ///
    /// # Errors
    ///
    /// Fails unless the whole range is mapped for the device.
    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError>;

    /// Whether the host has enabled bus mastering, so that the device can access memory.
    fn is_bus_master(&self) -> bool {
        true
    }

    /// Current time, if there is a clock for latencies. It may be later than the last time that was passed to the device.
    fn now(&self) -> Option<Duration> {
        None
    }

    /// Reads the device's own memory, which the host writes as the memory BAR. Bytes beyond its end are zero.
    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]);

    /// Waits until all copies from and to host memory that were started for this device have ended.
    ///
    /// A device calls this before it releases memory, that is, before a driver or program may learn that it can reuse the
    /// memory. No copy starts meanwhile. Only a host that copies in the background implements this. The caller must not have an
    /// unfinished copy of its own.
    fn quiesce(&mut self) {}

    /// Raises an interrupt, given by its entry in the MSI-X table.
    fn interrupt(&mut self, vector: u16);

    /// Whether to trace each work request and completion, too.
    fn traces_work(&self) -> bool {
        false
    }

    /// Records an event of the device.
    fn trace(&mut self, event: &TraceEvent);
}
