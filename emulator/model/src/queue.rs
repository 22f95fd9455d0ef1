// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The queues in host memory, for an operator to inspect and modify as the device sees them.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{dma::DmaError, ensure, host::Host};

/// A queue in host memory, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, thiserror::Error)]
#[serde(rename_all = "lowercase")]
pub enum Queue {
    /// A completion queue.
    #[error("completion queue {0}")]
    Cq(u16),
    /// The receive queue of a queue pair.
    #[error("receive queue of a queue pair {0}")]
    Rq(u16),
    /// An event queue.
    #[error("event queue {0}")]
    Eq(u16),
}

/// Why an access to a queue failed. Sizes, offsets and lengths are in bytes.
#[allow(missing_docs, reason = "the messages describe the fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The queue does not exist.
    #[error("there is no {0}")]
    Missing(Queue),
    /// The access extends beyond the end of the queue.
    #[error("access of {length} bytes at offset {offset} exceeds the {size} bytes of the {queue}")]
    Range { queue: Queue, size: u64, offset: u64, length: usize },
    /// The completion queue has no event queue.
    #[error("the {0} has no event queue")]
    NoEvents(Queue),
    /// The memory of the queue is not accessible.
    #[error(transparent)]
    Dma(#[from] DmaError),
}

/// Location of a queue in host memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) base: u64,
    /// In bytes.
    pub(crate) size: u64,
}

impl Place {
    /// Whether a part is in a range of bus addresses.
    pub(crate) fn overlaps(self, range: &Range<u64>) -> bool {
        self.base < range.end && range.start < self.base.saturating_add(self.size)
    }

    /// Returns the bus address of a part of the queue.
    pub(crate) fn part(self, queue: Queue, offset: u64, length: usize) -> Result<u64, QueueError> {
        let size = self.size;
        let end = offset.checked_add(length as u64);
        let error = QueueError::Range { queue, size, offset, length };
        ensure(end.is_some_and(|end| end <= size), error)?;
        Ok(self.base + offset)
    }
}

/// Writes an entry, the byte with its phase last. A host that sees the new phase thus sees the whole
/// entry.
pub(crate) fn write_entry(
    host: &mut dyn Host,
    address: u64,
    entry: &[u8],
    phase_offset: usize,
) -> Result<(), DmaError> {
    let (before, rest) = entry.split_at(phase_offset);
    let (phase, after) = rest.split_at(1);
    host.dma_write(address, before)?;
    host.dma_write(address + phase_offset as u64 + 1, after)?;
    host.dma_write(address + phase_offset as u64, phase)
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
