// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! All that a device is at some moment, for who looks for a fault: settings, registers and queues, but nothing of the guest's
//! memory.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Config, Counters, State,
    profile::attributes::{Attributes, Overrides},
};

/// Most objects of a kind that are listed.
pub(crate) const MAX_LISTED: usize = 256;

/// A device at some moment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Snapshot {
    /// How it was made.
    pub config: Config,
    /// Attributes that were replaced since.
    pub overrides: Overrides,
    /// What it tells a driver of itself.
    pub(crate) attributes: Attributes,
    /// Values of its registers, and addresses that were written to them.
    pub registers: BTreeMap<&'static str, u64>,
    /// Its state.
    pub state: State,
    /// Its counters.
    pub counters: Counters,
    /// The first of its queue pairs; `state` has how many of each kind there are.
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
    /// Completion queue of its send queue, and the sub-queue of that.
    pub send_cq: (u16, u16),
    /// Likewise of its receive queue.
    pub recv_cq: (u16, u16),
    /// How often a receiver that is not ready is tried again; 7 is for ever.
    pub rnr_retry: u8,
    /// Its send queue.
    pub send_queue: WorkQueue,
    /// Its receive queue.
    pub receive_queue: WorkQueue,
}

/// One of the queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WorkQueue {
    /// How many descriptors it has room for.
    pub depth: u64,
    /// How many the program has rung the doorbell for, modulo 2^16.
    pub produced: u16,
    /// How many the device has taken, modulo 2^16.
    pub consumed: u16,
    /// Work requests that were taken and have not ended.
    pub outstanding: usize,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompletionQueue {
    /// Its number.
    pub number: u16,
    /// Bus address.
    pub base: u64,
    /// Bytes in an entry.
    pub entry_size: usize,
    /// Entries of each of its sub-queues.
    pub depth: u32,
    /// Completions ever posted to each of them.
    pub posted: Vec<u32>,
    /// Its event queue.
    pub eq: Option<u16>,
    /// Whether the next completion is to raise an event.
    pub armed: bool,
}

/// An event queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EventQueue {
    /// Its number.
    pub number: u16,
    /// Bus address.
    pub base: u64,
    /// Its entries.
    pub depth: u32,
    /// Its interrupt.
    pub vector: u16,
    /// Events ever posted.
    pub posted: u32,
    /// Whether the driver wants an interrupt.
    pub armed: bool,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MemoryRegion {
    /// Its number, which is in its keys.
    pub number: u16,
    /// Its protection domain.
    pub pd: u16,
    /// The generation of its keys.
    pub generation: u8,
    /// Address by which work requests refer to its start.
    pub iova: u64,
    /// Bytes; 0 for one that has no memory yet.
    pub length: u64,
    /// Size of its pages, as a power of two.
    pub page_shift: u8,
    /// Its device may write to it.
    pub local_write: bool,
    /// Peers may read it.
    pub remote_read: bool,
    /// Peers may write to it.
    pub remote_write: bool,
    /// It gets its pages by work requests.
    pub fast: bool,
    /// Its addresses are bus addresses.
    pub physical: bool,
}
