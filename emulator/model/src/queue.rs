// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The queues that are in host memory, for who wants to see through the device's eyes what is there.

use std::fmt::{self, Display, Formatter};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{dma::DmaError, host::Host};

/// A queue in host memory, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Queue {
    /// A completion queue.
    Cq(u16),
    /// The receive queue of a queue pair.
    Rq(u16),
    /// An event queue.
    Eq(u16),
}

impl Display for Queue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cq(number) => write!(f, "completion queue {number}"),
            Self::Rq(number) => write!(f, "receive queue of a queue pair {number}"),
            Self::Eq(number) => write!(f, "event queue {number}"),
        }
    }
}

/// Something can't be done with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// It does not exist.
    #[error("there is no {0}")]
    Missing(Queue),
    /// It is not so large.
    #[error(
        "the {queue} has {size} bytes, which end before offset {offset} and {length} bytes more"
    )]
    Range {
        /// The queue.
        queue: Queue,
        /// Its size in bytes.
        size: u64,
        /// Where it was to be accessed.
        offset: u64,
        /// How many bytes were to be accessed.
        length: usize,
    },
    /// It has no event queue.
    #[error("the {0} has no event queue")]
    NoEvents(Queue),
    /// Its memory can't be accessed.
    #[error(transparent)]
    Dma(#[from] DmaError),
}

/// Where a queue is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) base: u64,
    /// In bytes.
    pub(crate) size: u64,
}

impl Place {
    /// The address of a part of the queue.
    pub(crate) fn part(self, queue: Queue, offset: u64, length: usize) -> Result<u64, QueueError> {
        let fits = offset
            .checked_add(length as u64)
            .is_some_and(|end| end <= self.size);
        if fits {
            Ok(self.base + offset)
        } else {
            Err(QueueError::Range {
                queue,
                size: self.size,
                offset,
                length,
            })
        }
    }
}

/// Writes an entry; the byte with its phase last, so that a host that sees the new phase sees the
/// rest too.
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
