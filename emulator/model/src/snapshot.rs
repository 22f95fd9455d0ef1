// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Parts of a snapshot that several objects have in common, or that are large.

use schemars::JsonSchema;
use serde::Serialize;

/// One of the queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WorkQueue {
    /// Number of descriptors that it has room for.
    pub depth: u64,
    /// Number of descriptors for which the program has rung the doorbell, modulo 2^16.
    pub produced: u16,
    /// Number of descriptors that the device has taken, modulo 2^16.
    pub consumed: u16,
    /// Number of work requests that were taken and have not ended.
    pub outstanding: usize,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MemoryRegion {
    /// Its number, which is in its keys.
    pub number: u32,
    /// Its protection domain.
    pub pd: u16,
    /// The generation of its keys.
    pub generation: u8,
    /// Address of its start in work requests.
    pub iova: u64,
    /// Length in bytes; 0 for a region without memory.
    pub length: u64,
    /// Size of its pages, as an exponent of two.
    pub page_shift: u8,
    /// Whether its device may write to it.
    pub local_write: bool,
    /// Whether peers may read it.
    pub remote_read: bool,
    /// Whether peers may write to it.
    pub remote_write: bool,
    /// Whether it gets its pages by work requests (fast registration).
    pub fast: bool,
    /// Whether its addresses are bus addresses.
    pub physical: bool,
}
