// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Snapshot of a device for debugging: settings, registers and queues, but no contents of guest memory.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Config,
    profile::attributes::{Attributes, Overrides},
};

/// Limit on the objects of a kind that are listed.
pub(crate) const MAX_LISTED: usize = 256;

/// State of a device at one time.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Snapshot {
    /// Configuration with which the device was created.
    pub config: Config,
    /// Attributes that were overridden since.
    pub overrides: Overrides,
    /// Current attributes of the device.
    pub(crate) attributes: Attributes,
    /// Values of its registers, and addresses that the driver wrote to them.
    pub registers: BTreeMap<&'static str, u64>,
    /// The first of its queue pairs. Its state has the number of objects of each kind.
    pub queue_pairs: Vec<QueuePair>,
    /// The first of its completion queues.
    pub completion_queues: Vec<CompletionQueue>,
    /// The first of its event queues.
    pub event_queues: Vec<EventQueue>,
    /// The first of its memory regions.
    pub memory_regions: Vec<MemoryRegion>,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QueuePair {
    /// Its number.
    pub number: u16,
    /// Its transport.
    pub transport: String,
    /// Its state.
    pub state: String,
    /// Its protection domain.
    pub pd: u16,
    /// Its user access region.
    pub uar: u16,
    /// Completion queue and sub-queue of its send queue.
    pub send_cq: (u16, u16),
    /// Completion queue and sub-queue of its receive queue.
    pub recv_cq: (u16, u16),
    /// Number of retries if the receiver is not ready (RNR); 7 means unlimited.
    pub rnr_retry: u8,
    /// Its send queue.
    pub send_queue: WorkQueue,
    /// Its receive queue.
    pub receive_queue: WorkQueue,
}

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

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompletionQueue {
    /// Its number.
    pub number: u16,
    /// Bus address.
    pub base: u64,
    /// Size of an entry in bytes.
    pub entry_size: usize,
    /// Number of entries of each sub-queue.
    pub depth: u32,
    /// Total number of completions posted to each sub-queue.
    pub posted: Vec<u32>,
    /// Its event queue.
    pub eq: Option<u16>,
    /// Whether the next completion raises an event.
    pub armed: bool,
}

/// An event queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EventQueue {
    /// Its number.
    pub number: u16,
    /// Bus address.
    pub base: u64,
    /// Number of its entries.
    pub depth: u32,
    /// Its interrupt vector.
    pub vector: u16,
    /// Total number of events posted.
    pub posted: u32,
    /// Whether the driver has armed it, so that it raises an interrupt.
    pub armed: bool,
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
