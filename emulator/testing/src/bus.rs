// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver's access to its device and to the memory that both use: in process, or over a vfio-user socket.

use std::time::Duration;

/// Bytes in a page.
pub const PAGE: u64 = 4096;

/// Memory of a host, and the BAR with the send queues.
pub trait Memory {
    /// Allocates zeroed pages that are contiguous; returns their bus address. They are never freed.
    fn allocate(&mut self, pages: u64) -> u64;

    /// Reads allocated memory.
    fn load(&self, address: u64, bytes: &mut [u8]);

    /// Writes allocated memory.
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

/// A device, as its driver accesses it.
pub trait Bus {
    /// The memory that it reads and writes.
    type Memory: Memory;

    /// Writes BAR 0. The device has executed the write when this returns.
    fn write(&mut self, memory: &mut Self::Memory, now: Duration, offset: u64, value: u32);

    /// Writes the BAR with the doorbells.
    fn doorbell(&mut self, memory: &mut Self::Memory, offset: u64, value: u32);

    /// Runs the device. Returns whether more may happen without another access.
    fn advance(&mut self, memory: &mut Self::Memory, now: Duration) -> bool;
}
