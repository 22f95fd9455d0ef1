// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How a driver reaches a device, and the memory that both access: in process, or over a vfio-user socket.

use std::time::Duration;

/// Bytes in a page.
pub const PAGE: u64 = 4096;

/// Memory of a host, and the BAR with the send queues.
pub trait Memory {
    /// Allocates zeroed pages that are contiguous; returns their bus address. Nothing frees them.
    fn allocate(&mut self, pages: u64) -> u64;

    /// Reads memory that was allocated.
    fn load(&self, address: u64, bytes: &mut [u8]);

    /// Writes memory that was allocated.
    fn store(&self, address: u64, bytes: &[u8]);

    /// Writes the BAR with the send queues.
    fn write_llq(&mut self, offset: u64, bytes: &[u8]);

    /// Reads an entry of a ring.
    fn entry<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.load(address, &mut bytes);
        bytes
    }
}

/// A device as its driver reaches it.
pub trait Bus {
    /// Where it reads and writes.
    type Memory: Memory;

    /// Writes BAR 0. The device has executed the write when this returns.
    fn write(&mut self, memory: &mut Self::Memory, now: Duration, offset: u64, value: u32);

    /// Writes the BAR with the doorbells.
    fn doorbell(&mut self, memory: &mut Self::Memory, offset: u64, value: u32);

    /// Lets the device run until `look` finds what it looks for.
    ///
    /// # Panics
    ///
    /// The device has nothing more to do, or does not do it within our [patience](crate::wait::patience). The message names `what`.
    fn wait<T>(
        &mut self,
        memory: &mut Self::Memory,
        now: Duration,
        what: &str,
        look: impl FnMut(&mut Self, &mut Self::Memory) -> Option<T>,
    ) -> T;
}
