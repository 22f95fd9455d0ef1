// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Errors of a program in the use of its queues that no status reports. Only an emulator can report them.

use std::fmt::{self, Display, Formatter};

use schemars::JsonSchema;
use serde::Serialize;

/// Something that a program did wrong. The device carries on as the interface says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// Completions came that the program had not made room for.
    #[error("cq {cq} has {depth} entries and overflows: {unread} completions, {since}")]
    CqOverflow {
        /// The completion queue.
        cq: u16,
        /// Its entries, of all sub-queues.
        depth: u32,
        /// Completions that it has got.
        unread: u32,
        /// Since when.
        since: Since,
    },
    /// A memory region is deregistered while a send queue has a work request that uses it.
    #[error("mr {lkey:#x} is deregistered while work request {req_id} of sq {qp} uses it")]
    RegionInUse {
        /// The local key.
        lkey: u32,
        /// The queue pair.
        qp: u16,
        /// Id of the work request.
        req_id: u16,
    },
    /// Two work requests of a send queue that have not ended have the same id.
    #[error("sq {qp} has two work requests with id {req_id} at a time")]
    DuplicateId {
        /// The queue pair.
        qp: u16,
        /// The id.
        req_id: u16,
    },
    /// A work request that is none.
    #[error("{queue} {qp} has a malformed work request at {index}: {reason}: {bytes}")]
    Malformed {
        /// The kind of queue, as in other lines of the trace: `sq` or `rq`.
        queue: &'static str,
        /// The queue pair.
        qp: u16,
        /// Its place in the ring, in entries.
        index: u32,
        /// What is wrong.
        reason: Fault,
        /// The entry.
        bytes: Hex,
    },
}

/// From when on the completions are counted that overflow a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The consumer index of a doorbell, so entries are lost for certain.
    ConsumerIndex,
    /// The last doorbell of any of its queues: more work requests were posted than it has entries.
    Doorbell,
}

impl Display for Since {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConsumerIndex => "by the consumer index of its doorbell",
            Self::Doorbell => "since the last doorbell of any of its queues",
        })
    }
}

/// What is wrong with a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Of the first word of a send work request, `meta_desc` is not set.
    #[error("`meta_desc` is 0")]
    NoMeta,
    /// Of the first word of a send work request, `meta_extension` is set.
    #[error("`meta_extension` is 1")]
    Extension,
    /// A send work request is not its own first and last entry.
    #[error("`first` or `last` is 0")]
    Parts,
    /// The phase is that of another round through the queue.
    #[error("`phase` is that of another round")]
    Phase,
    /// What the interface reserves is not zero.
    #[error("reserved bits are not 0")]
    Reserved,
    /// The first receive descriptor lacks `first`, or another one has it.
    #[error("`first` does not begin it")]
    First,
    /// No receive descriptor has `last` where the work request has to end.
    #[error("no descriptor has `last`")]
    Endless,
}

/// Bytes in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hex(pub Box<[u8]>);

impl Display for Hex {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How often programs did something wrong, since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProgramErrors {
    /// Completion queues that overflowed.
    pub cq_overflows: u64,
    /// Memory regions that were deregistered while a work request used them.
    pub regions_in_use: u64,
    /// Ids of send work requests that another one had.
    pub duplicate_ids: u64,
    /// Work requests that are none.
    pub malformed_requests: u64,
}

impl ProgramErrors {
    pub(crate) fn count(&mut self, error: &ProgramError) {
        *match error {
            ProgramError::CqOverflow { .. } => &mut self.cq_overflows,
            ProgramError::RegionInUse { .. } => &mut self.regions_in_use,
            ProgramError::DuplicateId { .. } => &mut self.duplicate_ids,
            ProgramError::Malformed { .. } => &mut self.malformed_requests,
        } += 1;
    }
}
